"""Errors over both transports, unary and streamed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio
import pytest

from polling import eventually
from strata.protocol.errors import (
    ERRORS,
    AbortedError,
    DeadlineExceededError,
    FieldViolation,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    Reason,
    ResourceExhaustedError,
    StrataError,
    UnauthenticatedError,
    UnavailableError,
    UnimplementedError,
)
from strata.shared.metric_names import RPC_IN_FLIGHT, RPC_REQUESTS

PATH = "/strata.testing.echo.v1.EchoService"


def failing(echo: Any, error: BaseException) -> Any:
    """Returns a servicer whose methods fail, streams after the first message."""

    class Servicer(echo.pb_grpc.EchoServiceServicer):  # type: ignore[misc]
        async def Echo(self, request: Any, context: Any) -> Any:
            raise error

        async def Count(self, request: Any, context: Any) -> AsyncIterator[Any]:
            yield echo.pb.Note(number=1)
            raise error

        async def Sum(self, requests: Any, context: Any) -> Any:
            async for _ in requests:
                raise error

        async def Chat(self, requests: Any, context: Any) -> AsyncIterator[Any]:
            async for request in requests:
                yield request
                raise error

    return Servicer()


async def calls(served: Any, echo: Any) -> list[StrataError]:
    """Returns the errors of one call of each shape; streams give one message before."""
    note = echo.pb.Note(text="x")
    errors: list[StrataError] = []
    for name, request in (("Echo", note), ("Sum", iter([note]))):
        with pytest.raises(StrataError) as raised:
            await getattr(served.stub, name)(request)
        errors.append(raised.value)
    for name, request in (("Count", note), ("Chat", iter([note]))):
        call = getattr(served.stub, name)(request)
        assert isinstance(await call.read(), echo.pb.Note)
        with pytest.raises(StrataError) as raised:
            await call.read()
        errors.append(raised.value)
    return errors


async def test_an_error_is_raised_after_the_items_that_preceded_it(
    serve: Any, echo: Any, keys: Any
) -> None:
    served = await serve(failing(echo, AbortedError("stop", reason=Reason.STALE_ATTEMPT)))
    received: list[Any] = []

    async def iterate() -> None:
        received.extend([note async for note in served.stub.Count(echo.pb.Note())])

    async def collect() -> None:
        async for note in served.stub.Count(echo.pb.Note()):
            received.append(note)  # noqa: PERF401 - it must keep what came before the error

    with keys.signed_in():
        with pytest.raises(AbortedError):
            await iterate()
        assert not received
        with pytest.raises(AbortedError) as raised:
            await collect()
    assert len(received) == 1
    assert raised.value.reason is Reason.STALE_ATTEMPT


async def test_an_error_is_raised_with_all_its_parts_for_every_shape_of_call(
    serve: Any, echo: Any, keys: Any
) -> None:
    served = await serve(
        failing(
            echo,
            InvalidArgumentError(
                "Zwei Felder sind falsch.",
                reason=Reason.INVALID_FIELD,
                metadata={"id": "block-1", "limit": 5},
                violations=[FieldViolation("a.b", "too long"), FieldViolation("c", "missing")],
                retry_after=1.5,
            ),
        )
    )
    with keys.signed_in():
        for error in await calls(served, echo):
            assert type(error) is InvalidArgumentError
            assert error.message == "Zwei Felder sind falsch."
            assert error.reason is Reason.INVALID_FIELD
            assert dict(error.metadata) == {"id": "block-1", "limit": "5"}
            assert error.violations == (
                FieldViolation("a.b", "too long"),
                FieldViolation("c", "missing"),
            )
            assert error.retry_after == pytest.approx(1.5)


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.status)
async def test_every_error_class_is_raised_again_at_the_client(
    serve: Any, echo: Any, keys: Any, kind: type[StrataError]
) -> None:
    served = await serve(failing(echo, kind("why", reason=Reason.IN_USE)))
    with keys.signed_in(), pytest.raises(kind, match="why") as raised:
        await served.stub.Echo(echo.pb.Note())
    assert raised.value.reason is Reason.IN_USE


async def test_the_status_is_sent_as_google_rpc_details(serve: Any, echo: Any, keys: Any) -> None:
    served = await serve(failing(echo, NotFoundError("gone", reason=Reason.AGENT_NOT_FOUND)))
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await served.raw.unary_unary(f"{PATH}/Echo")(b"", metadata=keys.metadata())
    assert raised.value.code() is grpc.StatusCode.NOT_FOUND
    assert raised.value.details() == "gone"
    trailing = dict(raised.value.trailing_metadata())
    assert b"type.googleapis.com/google.rpc.ErrorInfo" in trailing["grpc-status-details-bin"]
    assert b"AGENT_NOT_FOUND" in trailing["grpc-status-details-bin"]
    assert trailing["x-request-id"].startswith("req-")


async def test_the_status_of_a_defect_shows_only_its_incident_id(
    serve: Any, echo: Any, keys: Any, caplog: pytest.LogCaptureFixture
) -> None:
    served = await serve(failing(echo, KeyError("secret detail")))
    with keys.signed_in(), caplog.at_level(logging.ERROR):
        errors = await calls(served, echo)
    for error in errors:
        assert type(error) is InternalError
        assert error.reason is Reason.INTERNAL
        assert "secret" not in error.message
        assert "KeyError" not in error.message
        assert error.metadata["incident_id"] in caplog.text
    assert "secret detail" in caplog.text


async def test_a_cancelled_error_that_escapes_a_servicer_is_a_defect(
    serve: Any, echo: Any, keys: Any
) -> None:
    served = await serve(failing(echo, asyncio.CancelledError()))
    with keys.signed_in():
        for error in await calls(served, echo):
            assert error.reason is Reason.INTERNAL


async def test_an_exception_group_of_our_errors_is_sent_as_its_first_error(
    serve: Any, echo: Any, keys: Any
) -> None:
    inner = AbortedError("first", reason=Reason.EDIT_CONFLICT)
    served = await serve(failing(echo, ExceptionGroup("two", [inner, AbortedError("second")])))
    with keys.signed_in(), pytest.raises(AbortedError, match="first"):
        await served.stub.Echo(echo.pb.Note())


async def test_a_group_with_a_defect_in_it_is_a_defect(serve: Any, echo: Any, keys: Any) -> None:
    group = ExceptionGroup("two", [AbortedError("first"), ZeroDivisionError()])
    served = await serve(failing(echo, group))
    with keys.signed_in(), pytest.raises(InternalError):
        await served.stub.Echo(echo.pb.Note())


async def test_an_error_passes_through_a_server_in_between(
    serve: Any, echo: Any, keys: Any
) -> None:
    behind = await serve(failing(echo, NotFoundError("gone", reason=Reason.BLOCK_NOT_FOUND)))

    class Front(echo.pb_grpc.EchoServiceServicer):  # type: ignore[misc]
        async def Echo(self, request: Any, context: Any) -> Any:
            return await behind.stub.Echo(request)

    front = await serve(Front())
    with keys.signed_in(), pytest.raises(NotFoundError, match="gone") as raised:
        await front.stub.Echo(echo.pb.Note())
    assert raised.value.reason is Reason.BLOCK_NOT_FOUND


async def test_an_abort_by_the_servicer_keeps_its_status(serve: Any, echo: Any, keys: Any) -> None:
    class Servicer(echo.pb_grpc.EchoServiceServicer):  # type: ignore[misc]
        async def Echo(self, request: Any, context: Any) -> Any:
            await context.abort(grpc.StatusCode.ABORTED, "by hand")

    served = await serve(Servicer())
    with keys.signed_in(), pytest.raises(AbortedError, match="by hand"):
        await served.stub.Echo(echo.pb.Note())
    # The answer may arrive before the server has counted it.
    await eventually(lambda: not served.telemetry.total(RPC_IN_FLIGHT))
    assert served.telemetry.total(RPC_REQUESTS, code="ABORTED") == 1


@pytest.mark.parametrize(
    "garbage",
    [
        pytest.param(b"\xff\xff\xff\xff garbage", id="garbage"),
        pytest.param(b"\x0a\x02\xc3\x28", id="bad utf-8"),
        pytest.param(b"\x0b" * 100_000, id="100,000 open groups"),
    ],
)
async def test_bytes_that_cannot_be_parsed_are_an_invalid_argument(
    serve: Any, echo: Any, keys: Any, garbage: bytes
) -> None:
    class Servicer(echo.pb_grpc.EchoServiceServicer):  # type: ignore[misc]
        async def Echo(self, request: Any, context: Any) -> Any:
            return request

        async def Count(self, request: Any, context: Any) -> AsyncIterator[Any]:
            yield request

        async def Sum(self, requests: Any, context: Any) -> Any:
            return [request async for request in requests][-1]

        async def Chat(self, requests: Any, context: Any) -> AsyncIterator[Any]:
            async for request in requests:
                yield request

    served = await serve(Servicer())
    good = echo.pb.Note(text="fine").SerializeToString()
    with keys.signed_in():
        starts: tuple[Callable[[], Any], ...] = (
            lambda: served.channel.unary_unary(f"{PATH}/Echo")(garbage),
            lambda: served.channel.unary_stream(f"{PATH}/Count")(garbage).read(),
            lambda: served.channel.stream_unary(f"{PATH}/Sum")(iter([good, garbage])),
        )
        for start in starts:
            with pytest.raises(InvalidArgumentError) as raised:
                await start()
            assert raised.value.reason is Reason.MALFORMED_MESSAGE
        chat = served.channel.stream_stream(f"{PATH}/Chat")(iter([good, garbage]))
        assert await chat.read() == good
        with pytest.raises(InvalidArgumentError) as raised:
            await chat.read()
        assert raised.value.reason is Reason.MALFORMED_MESSAGE


async def test_garbage_is_read_only_after_authentication(serve: Any, echo: Any) -> None:
    served = await serve(failing(echo, ValueError()))
    with pytest.raises(UnauthenticatedError):
        await served.channel.unary_unary(f"{PATH}/Echo")(b"\xff\xff")


async def test_oversized_messages_are_refused_with_the_limit(
    serve: Any, echo: Any, keys: Any
) -> None:
    class Servicer(echo.pb_grpc.EchoServiceServicer):  # type: ignore[misc]
        async def Echo(self, request: Any, context: Any) -> Any:
            return echo.pb.Note(data=bytes(request.number))

        async def Sum(self, requests: Any, context: Any) -> Any:
            return [request async for request in requests][-1]

    served = await serve(Servicer(), max_message_bytes=100_000)
    with keys.signed_in():
        assert len((await served.stub.Echo(echo.pb.Note(number=99_000))).data) == 99_000
        for note in (echo.pb.Note(data=bytes(100_001)), echo.pb.Note(number=100_001)):
            with pytest.raises(ResourceExhaustedError) as raised:
                await served.stub.Echo(note)
            assert raised.value.reason is Reason.MESSAGE_TOO_LARGE
            assert raised.value.metadata["limit_bytes"] == "100000"
        # Far above the limit the transport itself may refuse the message, without naming the limit.
        for size in (100_001, 1_000_000):
            with pytest.raises(ResourceExhaustedError) as raised:
                await served.stub.Sum(iter([echo.pb.Note(data=bytes(size))]))
            assert raised.value.reason is Reason.MESSAGE_TOO_LARGE


async def test_oversized_metadata_is_refused(serve: Any, echo: Any, keys: Any) -> None:
    served = await serve(failing(echo, ValueError()))
    with keys.signed_in(), pytest.raises(ResourceExhaustedError):
        await served.stub.Echo(echo.pb.Note(), metadata=(("x-long", "y" * 40_000),))


async def test_unimplemented_methods_of_every_shape_return_unimplemented(
    serve: Any, echo: Any, keys: Any
) -> None:
    served = await serve(echo.pb_grpc.EchoServiceServicer())
    note = echo.pb.Note()
    with keys.signed_in():
        starts: dict[str, Callable[[], Any]] = {
            "Echo": lambda: served.stub.Echo(note),
            "Sum": lambda: served.stub.Sum(iter([note])),
            "Count": lambda: served.stub.Count(note).read(),
            "Chat": lambda: served.stub.Chat(iter([note])).read(),
        }
        for name, start in starts.items():
            with pytest.raises(UnimplementedError) as raised:
                await start()
            assert raised.value.reason is Reason.NOT_BUILT
            assert raised.value.metadata["method"] == f"{PATH[1:]}/{name}"


async def test_an_unknown_method_is_unimplemented(serve: Any, echo: Any, keys: Any) -> None:
    served = await serve(echo.pb_grpc.EchoServiceServicer())
    with keys.signed_in(), pytest.raises(UnimplementedError) as raised:
        await served.channel.unary_unary(f"{PATH}/Nothing")(b"")
    assert raised.value.metadata["method"] == f"{PATH[1:]}/Nothing"
    await eventually(lambda: not served.telemetry.total(RPC_IN_FLIGHT))
    assert served.telemetry.total(RPC_REQUESTS, method="unknown") == 1


async def test_not_implemented_inside_a_handler_is_a_defect(
    serve: Any, echo: Any, keys: Any
) -> None:
    served = await serve(failing(echo, NotImplementedError("abstract")))
    with keys.signed_in(), pytest.raises(InternalError):
        await served.stub.Echo(echo.pb.Note())


async def test_missing_and_wrong_credentials_have_different_reasons(
    serve: Any, echo: Any, keys: Any
) -> None:
    served = await serve(failing(echo, ValueError()))
    cases = [
        ((), Reason.CREDENTIALS_MISSING),
        ((("authorization", "Basic eA=="),), Reason.CREDENTIALS_INVALID),
        ((("authorization", "Bearer nonsense"),), Reason.CREDENTIALS_INVALID),
    ]
    for metadata, reason in cases:
        with pytest.raises(UnauthenticatedError) as raised:
            await served.stub.Echo(echo.pb.Note(), metadata=metadata)
        assert raised.value.reason is reason


async def test_load_is_shed_with_a_hint(serve: Any, echo: Any, keys: Any) -> None:
    go, streaming = asyncio.Event(), asyncio.Event()
    admitted = 0

    class Servicer(echo.pb_grpc.EchoServiceServicer):  # type: ignore[misc]
        async def Echo(self, request: Any, context: Any) -> Any:
            nonlocal admitted
            admitted += 1
            await go.wait()
            return request

        async def Count(self, request: Any, context: Any) -> AsyncIterator[Any]:
            streaming.set()
            await go.wait()
            yield request

    served = await serve(Servicer(), max_in_flight_unary=2, max_in_flight_streams=1)
    with keys.signed_in():
        running = [asyncio.ensure_future(served.stub.Echo(echo.pb.Note())) for _ in range(6)]
        # Each of the six calls has been admitted or has ended.
        await eventually(lambda: admitted + sum(task.done() for task in running) == len(running))
        done = [task for task in running if task.done()]
        pending = [task for task in running if not task.done()]
        assert (len(done), len(pending)) == (4, 2)
        for task in done:
            error = task.exception()
            assert isinstance(error, ResourceExhaustedError)
            assert error.reason is Reason.OVERLOADED
            assert error.retry_after is not None
            assert error.retry_after > 0
        # Streams have a separate limit.
        stream = asyncio.ensure_future(served.stub.Count(echo.pb.Note()).read())
        await eventually(streaming.is_set)
        with pytest.raises(ResourceExhaustedError):
            await served.stub.Count(echo.pb.Note()).read()
        go.set()
        assert len(await asyncio.gather(*pending, stream)) == 3
        await served.stub.Echo(echo.pb.Note())


async def test_a_large_error_is_truncated_to_the_metadata_limit(
    serve: Any, echo: Any, keys: Any
) -> None:
    served = await serve(
        failing(
            echo,
            InvalidArgumentError(
                "ü" * 5000 + "\ud800",
                metadata={f"key{number}": "ß" * 3000 for number in range(20)},
                violations=[FieldViolation(f"f[{n}]", "bad " * 300) for n in range(100)],
            ),
        )
    )
    with keys.signed_in(), pytest.raises(InvalidArgumentError) as raised:
        await served.stub.Echo(echo.pb.Note())
    assert raised.value.reason is Reason.INVALID_FIELD
    assert raised.value.message.startswith("üüü")


async def test_a_failed_dependency_and_a_passed_deadline_have_different_errors(
    serve: Any, echo: Any, keys: Any
) -> None:
    served = await serve(failing(echo, UnavailableError("db", retry_after=2)))
    with keys.signed_in():
        with pytest.raises(UnavailableError) as raised:
            await served.stub.Sum(iter([echo.pb.Note()]), timeout=60)
        assert raised.value.reason is Reason.DEPENDENCY_UNAVAILABLE
        with pytest.raises(DeadlineExceededError):
            await served.stub.Echo(echo.pb.Note(), timeout=0.0001)
