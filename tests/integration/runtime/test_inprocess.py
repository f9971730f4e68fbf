"""Services of one process: registration and shutdown."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import grpc
import grpc.aio
import pytest

from strata.protocol.errors import Reason, UnavailableError
from strata.shared.auth import TokenVerifier
from strata.shared.context import Caller, RequestContext, current_project, use
from strata.shared.inprocess import InProcessNetwork
from strata.shared.service import Service, Wiring

PATH = "/strata.testing.Raw"


async def test_services_are_wired_in_any_order(
    verifier: TokenVerifier, caller: Caller, service_of: Callable[..., Service]
) -> None:
    """The front is built before the service that it calls; identity and tenant are forwarded."""

    async def front(wiring: Wiring, stack: AsyncExitStack) -> Service:
        behind: Any = wiring.channel("behind").unary_unary(f"{PATH}/Whose")

        async def ask(request: bytes, context: Any) -> bytes:
            answer: bytes = await behind(request)
            return answer

        return service_of({"Ask": ask}, "front")

    async def whose(request: bytes, context: Any) -> bytes:
        return f"{current_project()} via {context.peer()}".encode()

    async with InProcessNetwork(verifier) as network, AsyncExitStack() as stack:
        network.register(await front(network, stack))
        ask = network.channel("front").unary_unary(f"{PATH}/Ask")
        with use(RequestContext(caller=caller)):
            with pytest.raises(UnavailableError, match="'behind' is not up") as raised:
                await ask(b"")
            assert raised.value.reason is Reason.DEPENDENCY_UNAVAILABLE
            waiting = asyncio.ensure_future(network.channel("behind").channel_ready())
            await asyncio.sleep(0)
            network.register(service_of({"Whose": whose}, "behind"))
            await asyncio.wait_for(waiting, 60)
            assert await ask(b"") == b"project-1 via inprocess:behind"
        with pytest.raises(ValueError, match="registered already"):
            network.register(service_of({}, "behind"))


async def test_closing_waits_for_running_calls_and_refuses_new_ones(
    verifier: TokenVerifier, caller: Caller, service_of: Callable[..., Service]
) -> None:
    go, cancelled = asyncio.Event(), asyncio.Event()
    entered = asyncio.Semaphore(0)

    async def wait(request: bytes, context: Any) -> bytes:
        entered.release()
        await go.wait()
        return b"done"

    async def forever(request: bytes, context: Any) -> bytes:
        entered.release()
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()
        return b""

    network = InProcessNetwork(verifier)
    network.register(service_of({"Wait": wait, "Forever": forever}))
    channel = network.channel("raw")
    with use(RequestContext(caller=caller)):
        short = asyncio.ensure_future(channel.unary_unary(f"{PATH}/Wait")(b""))
        long = asyncio.ensure_future(channel.unary_unary(f"{PATH}/Forever")(b""))
        for _ in range(2):
            await asyncio.wait_for(entered.acquire(), 30)
        closing = asyncio.ensure_future(network.close(30))
        await asyncio.sleep(0.05)
        with pytest.raises(UnavailableError) as raised:
            await channel.unary_unary(f"{PATH}/Wait")(b"")
        assert raised.value.reason is Reason.SHUTTING_DOWN
        go.set()
        assert await short == b"done"
        assert not closing.done()
        # The shorter grace period of the other call ends first.
        await network.close(0.1)
        await asyncio.wait_for(closing, 30)
        with pytest.raises(UnavailableError) as raised:
            await long
        assert raised.value.reason is Reason.SHUTTING_DOWN
    assert cancelled.is_set()


async def test_a_closed_channel_accepts_no_calls(
    verifier: TokenVerifier, service_of: Callable[..., Service]
) -> None:
    network = InProcessNetwork(verifier)
    network.register(service_of({}))
    channel = network.raw_channel("raw")
    assert channel.get_state() is grpc.ChannelConnectivity.READY
    await channel.close()
    assert channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN
    with pytest.raises(grpc.aio.UsageError):
        channel.unary_unary(f"{PATH}/Echo")(b"")
