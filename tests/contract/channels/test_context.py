"""The context that a call passes to the servicer; deadlines; cancellation."""

from __future__ import annotations

import asyncio
import contextvars
import gc
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from polling import eventually
from strata.protocol.errors import CancelledError, DeadlineExceededError, Reason
from strata.shared.context import RequestContext, current, current_project
from strata.shared.interceptors import standard
from strata.shared.interceptors.client import MARGIN_S
from strata.shared.metric_names import RPC_IN_FLIGHT, RPC_REQUESTS, RPC_SECONDS

PATH = "/strata.testing.echo.v1.EchoService"

DEADLINES_S = (0.2, 1.0, 5.0, 25.0)
"""One after the other: on a busy machine a short one passes before the servicer is even asked."""

leak: contextvars.ContextVar[str] = contextvars.ContextVar("leak", default="clean")


async def test_the_caller_request_and_trace_arrive(serve: Any, echo: Any, keys: Any) -> None:
    seen: list[RequestContext] = []

    class Servicer(echo.pb_grpc.EchoServiceServicer):  # type: ignore[misc]
        async def Echo(self, request: Any, context: Any) -> Any:
            seen.append(current())
            return echo.pb.Note(text=current_project())

        async def Count(self, request: Any, context: Any) -> AsyncIterator[Any]:
            seen.append(current())
            yield echo.pb.Note()

    served = await serve(Servicer())
    caller = keys.caller("project-9", run_id="run-3", scopes={"a", "b"})
    with keys.signed_in(caller=caller, request_id="req-42") as mine:
        assert (await served.stub.Echo(echo.pb.Note())).text == "project-9"
        await served.stub.Count(echo.pb.Note()).read()
    for context in seen:
        assert context.caller == caller
        assert caller.run_id == "run-3"
        assert context.request_id == "req-42"
        assert context.trace_id == mine.trace_id
        assert context.deadline is not None


async def test_context_variables_of_the_caller_do_not_reach_the_servicer(
    serve: Any, echo: Any, keys: Any
) -> None:
    class Servicer(echo.pb_grpc.EchoServiceServicer):  # type: ignore[misc]
        async def Echo(self, request: Any, context: Any) -> Any:
            return echo.pb.Note(text=leak.get())

    served = await serve(Servicer())
    leak.set("leaked")
    with keys.signed_in():
        assert (await served.stub.Echo(echo.pb.Note())).text == "clean"


async def test_missing_ids_of_a_call_are_generated(serve: Any, echo: Any, keys: Any) -> None:
    class Servicer(echo.pb_grpc.EchoServiceServicer):  # type: ignore[misc]
        async def Echo(self, request: Any, context: Any) -> Any:
            return echo.pb.Note(text=f"{current().request_id} {current().trace_id}")

    served = await serve(Servicer())
    bad = (*keys.metadata(), ("x-request-id", "no spaces!"), ("traceparent", "00-zz"))
    call = served.raw.unary_unary(f"{PATH}/Echo")(b"", metadata=bad)
    request_id, trace_id = echo.pb.Note.FromString(await call).text.split()
    assert request_id.startswith("req-")
    assert len(trace_id) == 32
    assert dict(await call.trailing_metadata())["x-request-id"] == request_id


async def test_metadata_is_sent_in_both_directions(serve: Any, echo: Any, keys: Any) -> None:
    class Servicer(echo.pb_grpc.EchoServiceServicer):  # type: ignore[misc]
        async def Echo(self, request: Any, context: Any) -> Any:
            received = dict(context.invocation_metadata())
            await context.send_initial_metadata((("x-first", received["x-text"]),))
            context.set_trailing_metadata((("x-last-bin", received["x-raw-bin"]),))
            return request

    served = await serve(Servicer())
    with keys.signed_in():
        call = served.stub.Echo(
            echo.pb.Note(), metadata=(("x-text", "hello"), ("x-raw-bin", b"\x00\xff"))
        )
        assert dict(await call.initial_metadata())["x-first"] == "hello"
        await call
        assert dict(await call.trailing_metadata())["x-last-bin"] == b"\x00\xff"


@pytest.mark.parametrize("pair", [("Upper", "x"), ("x-raw-bin", "text"), ("x-text", b"raw")])
async def test_illegal_metadata_is_a_value_error_of_the_caller(
    serve: Any, echo: Any, keys: Any, pair: Any
) -> None:
    served = await serve(echo.pb_grpc.EchoServiceServicer())
    with keys.signed_in(), pytest.raises(ValueError, match="not legal"):
        await served.stub.Echo(echo.pb.Note(), metadata=(pair,))


class Waiting:
    """Creates servicers that wait, and records how their calls ended."""

    def __init__(self, echo: Any) -> None:
        self.started = asyncio.Event()
        self.cancelled = asyncio.Event()
        outer = self

        class Servicer(echo.pb_grpc.EchoServiceServicer):  # type: ignore[misc]
            async def Echo(self, request: Any, context: Any) -> Any:
                await outer.wait()

            async def Sum(self, requests: Any, context: Any) -> Any:
                await outer.wait()

            async def Count(self, request: Any, context: Any) -> AsyncIterator[Any]:
                yield echo.pb.Note()
                await outer.wait()

            async def Chat(self, requests: Any, context: Any) -> AsyncIterator[Any]:
                async for request in requests:
                    yield request
                    await outer.wait()

        self.servicer = Servicer()

    async def wait(self) -> None:
        self.started.set()
        try:
            await asyncio.sleep(90)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


def start(served: Any, echo: Any, shape: str, **options: Any) -> Any:
    """Starts a call and returns a coroutine that waits for a response that is never sent."""
    note = echo.pb.Note()
    if shape in {"Echo", "Sum"}:
        call = getattr(served.stub, shape)(note if shape == "Echo" else iter([note]), **options)

        async def result() -> Any:
            return await call

        return call, result()
    call = getattr(served.stub, shape)(note if shape == "Count" else iter([note]), **options)

    async def drain() -> Any:
        return [note async for note in call]

    return call, drain()


SHAPES = ["Echo", "Sum", "Count", "Chat"]


@pytest.mark.parametrize("shape", SHAPES)
async def test_when_the_deadline_passes_both_sides_end(
    serve: Any, echo: Any, keys: Any, shape: str
) -> None:
    waiting = Waiting(echo)
    served = await serve(waiting.servicer)
    for deadline in DEADLINES_S:
        with keys.signed_in():
            _, result = start(served, echo, shape, timeout=deadline)
            with pytest.raises(DeadlineExceededError) as raised:
                await result
        assert raised.value.reason is Reason.DEADLINE_EXCEEDED
        if waiting.started.is_set():
            break
    await asyncio.wait_for(waiting.cancelled.wait(), 30)


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_call_without_a_deadline_is_ended_by_the_default_deadline(
    serve: Any, echo: Any, keys: Any, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = Waiting(echo)
    for imposed in DEADLINES_S:
        monkeypatch.setattr(standard, "UNARY_DEADLINE_S", imposed)
        monkeypatch.setattr(standard, "STREAM_DEADLINE_S", imposed)
        served = await serve(waiting.servicer)
        raw = {
            "Echo": served.raw.unary_unary,
            "Sum": served.raw.stream_unary,
            "Count": served.raw.unary_stream,
            "Chat": served.raw.stream_stream,
        }[shape](f"{PATH}/{shape}")
        call = raw(b"" if shape in {"Echo", "Count"} else iter([b""]), metadata=keys.metadata())
        if shape in {"Count", "Chat"}:
            # The status comes after the messages, and they have to be read first.
            with pytest.raises(grpc.aio.AioRpcError):
                async for _ in call:
                    pass
        assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "default" in await call.details()
        if waiting.started.is_set():
            break
    await asyncio.wait_for(waiting.cancelled.wait(), 30)


async def test_the_deadline_is_forwarded_minus_a_margin(serve: Any, echo: Any, keys: Any) -> None:
    """gRPC rounds deadlines up on the wire, so the margin shows in the call that is made."""
    arrived: list[tuple[float, float]] = []
    kept: list[float] = []
    loop = asyncio.get_running_loop()

    def remaining() -> float:
        left = current().remaining()
        assert left is not None
        return left

    class Behind(echo.pb_grpc.EchoServiceServicer):  # type: ignore[misc]
        async def Echo(self, request: Any, context: Any) -> Any:
            arrived.append((remaining(), loop.time() + remaining()))
            return request

    behind = await serve(Behind())

    class Front(echo.pb_grpc.EchoServiceServicer):  # type: ignore[misc]
        async def Echo(self, request: Any, context: Any) -> Any:
            arrived.append((remaining(), loop.time() + remaining()))
            before = remaining()
            call = behind.stub.Echo(request)
            kept.append(before - call.time_remaining())
            return await call

    front = await serve(Front())
    with keys.signed_in():
        put = loop.time() + 25
        await front.stub.Echo(echo.pb.Note(), timeout=25)
    # The two clocks differ by less than a millisecond, and time can only have passed meanwhile.
    assert [remaining > MARGIN_S - 0.001 for remaining in kept] == [True]
    assert len(arrived) == 2
    for left, deadline in arrived:
        assert left < 25.5
        # The transport adds the time that a request takes.
        assert deadline > put - 0.5


async def test_a_call_that_cannot_end_in_time_is_not_started(
    serve: Any, echo: Any, keys: Any
) -> None:
    called = False

    class Servicer(echo.pb_grpc.EchoServiceServicer):  # type: ignore[misc]
        async def Echo(self, request: Any, context: Any) -> Any:
            nonlocal called
            called = True

    served = await serve(Servicer())
    deadline = asyncio.get_running_loop().time() + 0.03
    with keys.signed_in(deadline=deadline), pytest.raises(DeadlineExceededError):
        await served.stub.Echo(echo.pb.Note())
    assert not called


async def test_a_call_below_the_floor_is_refused(
    serve: Any, echo: Any, keys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standard, "DEADLINE_FLOOR_S", 50)
    served = await serve(Waiting(echo).servicer)
    with keys.signed_in(), pytest.raises(DeadlineExceededError, match="Too little time"):
        await served.stub.Echo(echo.pb.Note(), timeout=30)


@pytest.mark.parametrize("shape", SHAPES)
async def test_cancelling_the_call_cancels_the_handler(
    serve: Any, echo: Any, keys: Any, shape: str
) -> None:
    waiting = Waiting(echo)
    served = await serve(waiting.servicer)
    with keys.signed_in():
        call, result = start(served, echo, shape)
        task = asyncio.ensure_future(result)
        await asyncio.wait_for(waiting.started.wait(), 30)
        assert call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await asyncio.wait_for(waiting.cancelled.wait(), 30)
    assert call.cancelled()
    assert await call.code() is grpc.StatusCode.CANCELLED
    assert not call.cancel()


@pytest.mark.parametrize("shape", SHAPES)
async def test_cancelling_the_waiting_task_cancels_the_handler(
    serve: Any, echo: Any, keys: Any, shape: str
) -> None:
    waiting = Waiting(echo)
    served = await serve(waiting.servicer)
    with keys.signed_in():
        _, result = start(served, echo, shape)
        task = asyncio.ensure_future(result)
        await asyncio.wait_for(waiting.started.wait(), 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await asyncio.wait_for(waiting.cancelled.wait(), 30)


async def test_a_reader_cancelled_as_the_request_is_sent_cancels_the_call(
    serve: Any, echo: Any, keys: Any
) -> None:
    waiting = Waiting(echo)
    served = await serve(waiting.servicer)
    with keys.signed_in():
        call, result = start(served, echo, "Count")

        begun = asyncio.Event()

        async def cancel_once_sent() -> None:
            await call.wait_for_connection()
            await begun.wait()
            reading.cancel()

        async def read() -> None:
            begun.set()
            await result

        # Waits for the sending before the reader does, and therefore resumes first.
        sent = asyncio.ensure_future(cancel_once_sent())
        reading = asyncio.ensure_future(read())
        await sent
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert await asyncio.wait_for(call.code(), 30) is grpc.StatusCode.CANCELLED


async def test_an_abandoned_stream_is_cancelled(serve: Any, echo: Any, keys: Any) -> None:
    waiting = Waiting(echo)
    served = await serve(waiting.servicer)
    with keys.signed_in():
        call = served.stub.Count(echo.pb.Note())
        await call.read()
        await asyncio.wait_for(waiting.started.wait(), 30)
    del call
    gc.collect()
    await asyncio.wait_for(waiting.cancelled.wait(), 30)


async def test_a_status_of_cancelled_from_the_server_is_an_error(
    serve: Any, echo: Any, keys: Any
) -> None:
    class Servicer(echo.pb_grpc.EchoServiceServicer):  # type: ignore[misc]
        async def Echo(self, request: Any, context: Any) -> Any:
            raise CancelledError("the run was cancelled")

    served = await serve(Servicer())
    with keys.signed_in(), pytest.raises(CancelledError, match="the run was cancelled"):
        await served.stub.Echo(echo.pb.Note())


async def test_a_failing_iterator_of_requests_cancels_the_call(
    serve: Any, echo: Any, keys: Any
) -> None:
    waiting = Waiting(echo)
    served = await serve(waiting.servicer)

    async def requests() -> AsyncIterator[Any]:
        yield echo.pb.Note()
        await waiting.started.wait()
        raise RuntimeError("no more")

    with keys.signed_in():
        call = served.stub.Sum(requests())
        with pytest.raises(asyncio.CancelledError):
            await call
    await asyncio.wait_for(waiting.cancelled.wait(), 30)


async def test_calls_are_counted_by_method_and_code(serve: Any, echo: Any, keys: Any) -> None:
    class Servicer(echo.pb_grpc.EchoServiceServicer):  # type: ignore[misc]
        async def Echo(self, request: Any, context: Any) -> Any:
            return request

    served = await serve(Servicer())
    with keys.signed_in():
        for _ in range(3):
            await served.stub.Echo(echo.pb.Note())
    method = f"{PATH}/Echo"
    await eventually(lambda: not served.telemetry.total(RPC_IN_FLIGHT, method=method))
    assert served.telemetry.total(RPC_REQUESTS, method=method, code="OK") == 3
    assert served.telemetry.total(RPC_IN_FLIGHT, method=method) == 0
    assert served.telemetry.histogram(RPC_SECONDS, method=method).count == 3
