"""Retries of calls that a client makes to a gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import grpc.aio
import pytest

from strata.client.channel import open_gateway_channel
from strata.protocol.attempts import RepeatLimits
from strata.protocol.errors import Reason, StrataError, UnavailableError

Connect = Callable[..., Awaitable[Any]]


@pytest.fixture
async def connect(echo: Any) -> AsyncIterator[Connect]:
    """Opens channels to servers, and returns stubs on them."""
    async with AsyncExitStack() as stack:

        async def stub(target: str, key: str = "key", first_pause_s: float = 0.01) -> Any:
            services = echo.pb.DESCRIPTOR.services_by_name.values()
            limits = RepeatLimits(max_attempts=4, first_pause_s=first_pause_s)
            opened = open_gateway_channel(target, key, services, limits=limits)
            channel = await stack.enter_async_context(opened)
            return echo.pb_grpc.EchoServiceStub(channel)

        yield stub


class FailingServer:
    """A bare gRPC server whose first calls end with a status code."""

    def __init__(self, code: grpc.StatusCode, failures: int) -> None:
        self.code, self.failures = code, failures
        self.calls = 0

    async def start(self) -> str:
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers((_Handlers(self),))
        port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        return f"127.0.0.1:{port}"

    async def stop(self) -> None:
        await self._server.stop(0)

    async def answer(self, request: bytes, context: Any) -> bytes:
        self.calls += 1
        if self.calls <= self.failures:
            await context.abort(self.code, "Not now.")
        return request


class _Handlers(grpc.GenericRpcHandler):
    def __init__(self, server: FailingServer) -> None:
        self._server = server

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        async def stream(request: bytes, context: Any) -> AsyncIterator[bytes]:
            yield await self._server.answer(request, context)

        if details.method.endswith("Count"):
            return grpc.unary_stream_rpc_method_handler(stream)
        return grpc.unary_unary_rpc_method_handler(self._server.answer)


UNAVAILABLE, CANCELLED = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED


@pytest.mark.parametrize(
    ("method", "code", "calls"),
    [
        ("Echo", UNAVAILABLE, 4),
        ("Replace", UNAVAILABLE, 4),
        ("Change", UNAVAILABLE, 1),
        ("Count", UNAVAILABLE, 1),
        ("Echo", CANCELLED, 4),
        ("Replace", CANCELLED, 4),
        ("Change", CANCELLED, 1),
        ("Echo", grpc.StatusCode.UNAUTHENTICATED, 1),
        ("Echo", grpc.StatusCode.RESOURCE_EXHAUSTED, 1),
        ("Echo", grpc.StatusCode.INTERNAL, 1),
    ],
)
async def test_only_repeatable_methods_are_repeated_and_only_a_few_times(
    echo: Any, connect: Connect, method: str, code: grpc.StatusCode, calls: int
) -> None:
    server = FailingServer(code, 100)
    stub = await connect(await server.start())
    try:
        call = getattr(stub, method)(echo.pb.Note())
        with pytest.raises(StrataError):
            await (call.read() if method == "Count" else call)
        assert server.calls == calls
        assert await call.code() is code
    finally:
        await server.stop()


@pytest.mark.parametrize(("request_id", "calls"), [("", 1), ("once", 3)])
async def test_a_change_is_repeated_only_with_a_request_id(
    echo: Any, connect: Connect, request_id: str, calls: int
) -> None:
    server = FailingServer(grpc.StatusCode.UNAVAILABLE, failures=2)
    stub = await connect(await server.start())
    request = echo.pb.NewNote(text="a", request_id=request_id)
    try:
        if request_id:
            await stub.Create(request)
        else:
            with pytest.raises(UnavailableError):
                await stub.Create(request)
    finally:
        await server.stop()
    assert server.calls == calls


@pytest.mark.parametrize("code", [UNAVAILABLE, CANCELLED])
async def test_call_succeeds_in_a_later_attempt_and_nothing_is_logged(
    echo: Any, connect: Connect, code: grpc.StatusCode, caplog: pytest.LogCaptureFixture
) -> None:
    server = FailingServer(code, 3)
    stub = await connect(await server.start())
    ended: list[Any] = []
    try:
        call = stub.Echo(echo.pb.Note(text="a"))
        call.add_done_callback(ended.append)
        assert (await call).text == "a"
        assert (server.calls, ended) == (4, [call])
        assert not call.cancelled()
        # The log of a command-line program goes to its terminal.
        assert not [record for record in caplog.records if record.name.startswith("strata")]
    finally:
        await server.stop()


async def test_no_attempt_is_made_after_the_deadline(echo: Any, connect: Connect) -> None:
    server = FailingServer(UNAVAILABLE, 100)
    stub = await connect(await server.start(), first_pause_s=60)
    try:
        with pytest.raises(UnavailableError):
            await stub.Echo(echo.pb.Note(), timeout=5)
        assert server.calls == 1
    finally:
        await server.stop()


async def test_a_client_does_not_wait_for_an_unreachable_server_until_its_deadline(
    echo: Any, connect: Connect
) -> None:
    stub = await connect("127.0.0.1:1")
    # A client gives up long before its deadline; a call of a service would wait until then.
    async with asyncio.timeout(60):
        with pytest.raises(UnavailableError) as raised:
            await stub.Echo(echo.pb.Note(), timeout=600)
    assert raised.value.unsent


async def test_retry_hint_of_the_gateway_does_not_lengthen_the_pauses(
    start: Any, echo: Any, keys: Any, connect: Connect
) -> None:
    calls = 0

    class Hinting(echo.pb_grpc.EchoServiceServicer):  # type: ignore[misc]
        async def Echo(self, request: Any, context: Any) -> Any:
            nonlocal calls
            calls += 1
            raise UnavailableError(
                "Not now.", reason=Reason.INTERNAL_TOKEN_REFUSED, retry_after=600.0
            )

    server = await start(Hinting())
    stub = await connect(server.address, keys.caller().token)
    async with asyncio.timeout(60):
        with pytest.raises(UnavailableError) as raised:
            await stub.Echo(echo.pb.Note(), timeout=1000)
    assert (calls, raised.value.retry_after) == (4, 600.0)
