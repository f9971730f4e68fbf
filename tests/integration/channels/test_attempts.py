"""Attempts at a call: their time limits, and slow methods."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from integration.channels.conftest import stub_to
from strata.protocol.errors import DeadlineExceededError
from strata.protocol.shapes import ClientMethod, RpcShape
from strata.shared.channels import ChannelFactory, ChannelOptions


class Slow:
    """Creates a servicer whose methods take some seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.started = 0
        self.cancelled = 0

    def servicer(self, echo: Any) -> Any:
        slow = self

        class Servicer(echo.pb_grpc.EchoServiceServicer):  # type: ignore[misc]
            async def Echo(self, request: Any, context: Any) -> Any:
                slow.started += 1
                try:
                    await asyncio.sleep(slow.seconds)
                except asyncio.CancelledError:
                    slow.cancelled += 1
                    raise
                context.set_trailing_metadata((("x-attempt", str(slow.started)),))
                return request

            async def Change(self, request: Any, context: Any) -> Any:
                return await self.Echo(request, context)

            async def Create(self, request: Any, context: Any) -> Any:
                await self.Echo(request, context)
                return echo.pb.Note(text=request.text)

        return Servicer()


@pytest.fixture
async def factory() -> AsyncIterator[ChannelFactory]:
    made = ChannelFactory(ChannelOptions(attempt_s=0.2))
    yield made
    await made.close()


async def test_a_slow_method_succeeds_in_a_later_and_longer_attempt(
    start: Any, echo: Any, keys: Any, factory: ChannelFactory
) -> None:
    slow = Slow(0.5)
    server = await start(slow.servicer(echo))
    with keys.signed_in():
        call = stub_to(server.address, factory, echo).Echo(echo.pb.Note(text="a"))
        assert (await call).text == "a"
    # The number of the attempt that answered, not of the first one.
    assert ("x-attempt", str(slow.started)) in tuple(await call.trailing_metadata())
    assert slow.started > 1
    # An attempt that the server answers too late may have ended before it was cancelled.
    assert 1 <= slow.cancelled < slow.started


async def test_attempts_end_with_the_deadline_of_the_call(
    start: Any, echo: Any, keys: Any, factory: ChannelFactory
) -> None:
    slow = Slow(60)
    server = await start(slow.servicer(echo))
    stub = stub_to(server.address, factory, echo)
    with keys.signed_in():
        for seconds in (0.1, 0.5, 1.0):
            with pytest.raises(DeadlineExceededError):
                await stub.Echo(echo.pb.Note(), timeout=seconds)


@pytest.mark.parametrize("method", ["Change", "Echo"])
async def test_unrepeatable_calls_and_calls_of_clients_are_attempted_once(
    start: Any, echo: Any, keys: Any, factory: ChannelFactory, method: str
) -> None:
    slow = Slow(1.0)
    server = await start(slow.servicer(echo))
    stub = stub_to(server.address, factory, echo, peer="echo" if method == "Change" else "")
    with keys.signed_in():
        await getattr(stub, method)(echo.pb.Note())
    assert (slow.started, slow.cancelled) == (1, 0)


@pytest.mark.parametrize("as_bytes", [False, True], ids=["message", "bytes"])
@pytest.mark.parametrize("request_id", ["", "once"])
async def test_a_change_is_attempted_again_only_with_a_request_id(
    start: Any, echo: Any, keys: Any, factory: ChannelFactory, request_id: str, as_bytes: bool
) -> None:
    slow = Slow(0.5)
    server = await start(slow.servicer(echo))
    request = echo.pb.NewNote(text="a", request_id=request_id)
    services = echo.pb.DESCRIPTOR.services_by_name.values()
    channel = factory.channel(server.address, services, peer="echo")
    method = ClientMethod(RpcShape(False, False), "/strata.testing.echo.v1.EchoService/Create")
    with keys.signed_in():
        if as_bytes:
            # As the gateway forwards calls.
            answer = await method.open_on(channel)(request.SerializeToString())
            assert echo.pb.Note.FromString(answer).text == "a"
        else:
            assert (await echo.pb_grpc.EchoServiceStub(channel).Create(request)).text == "a"
    assert (slow.started > 1) is bool(request_id)


async def test_a_cancelled_call_is_not_attempted_again(
    start: Any, echo: Any, keys: Any, factory: ChannelFactory
) -> None:
    slow = Slow(60)
    server = await start(slow.servicer(echo))
    stub = stub_to(server.address, factory, echo)
    with keys.signed_in():
        call = asyncio.ensure_future(stub.Echo(echo.pb.Note()))
        while not slow.started:
            await asyncio.sleep(0.01)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        # An earlier attempt may still arrive.
        await asyncio.sleep(0.3)
        started = slow.started
        await asyncio.sleep(1)
    assert slow.started == started
