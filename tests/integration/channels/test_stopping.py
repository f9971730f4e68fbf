"""Calls of a server that is stopping, over a socket and in process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import grpc.aio
import pytest

from integration.channels.conftest import echo_service, targets
from integration.channels.endless_calls import Endless
from strata.protocol.errors import Reason, UnavailableError
from strata.protocol.status import from_rpc_error
from strata.shared.channels import ChannelFactory, ChannelOptions
from strata.shared.inprocess import InProcessNetwork
from strata.shared.interceptors.auth import TokenAuthenticator
from strata.shared.metric_names import RPC_REQUESTS
from strata.shared.server import GrpcServer
from strata.shared.settings import ServiceSettings


class Side:
    """A server on one of the transports."""

    def __init__(self, kind: str, stack: AsyncExitStack, echo: Any, keys: Any) -> None:
        self.kind, self.stack, self.echo, self.keys = kind, stack, echo, keys
        self.stop: Any = None
        self.telemetry: Any = None

    async def start(self, servicer: object) -> Any:
        service = echo_service(self.echo, servicer)
        if self.kind == "socket":
            server = GrpcServer(service, ServiceSettings(), TokenAuthenticator(self.keys.verifier))
            await server.start()
            channel = grpc.aio.insecure_channel(server.address)
            self.stack.push_async_callback(channel.close)
            self.stop, self.telemetry = server.stop, server.telemetry
        else:
            network = InProcessNetwork(self.keys.verifier)
            network.register(service)
            channel = network.raw_channel("echo")
            self.stop, self.telemetry = network.close, network.telemetry
        return self.echo.pb_grpc.EchoServiceStub(channel)


@pytest.fixture(params=["socket", "inprocess"])
async def side(request: Any, echo: Any, keys: Any) -> AsyncIterator[Side]:
    async with AsyncExitStack() as stack:
        made = Side(request.param, stack, echo, keys)
        yield made
        await made.stop(0)


@pytest.mark.parametrize("grace", [None, 0.2])
async def test_calls_broken_off_by_a_stopping_server_end_unavailable_with_a_retry_delay(
    side: Side, echo: Any, keys: Any, grace: float | None
) -> None:
    endless = Endless()
    stub = await side.start(endless.servicer(echo))
    metadata, note = keys.metadata(), echo.pb.Note(text="x")

    async def requests() -> AsyncIterator[Any]:
        yield note
        await asyncio.sleep(3600)

    streams = [stub.Count(note, metadata=metadata), stub.Chat(requests(), metadata=metadata)]
    for stream in streams:
        assert await stream.read() == note
    calls = [
        asyncio.ensure_future(call)
        for call in (
            stub.Echo(note, metadata=metadata),
            stub.Change(note, metadata=metadata),
            stub.Sum(requests(), metadata=metadata),
            *(stream.read() for stream in streams),
        )
    ]
    await endless.until_waiting(5)
    await side.stop(grace)
    for call in calls:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await call
        error = from_rpc_error(raised.value)
        assert isinstance(error, UnavailableError), error
        assert error.reason is Reason.SHUTTING_DOWN
        assert error.retry_after is not None
    assert endless.cleaned_up == 5
    # The log and the metrics count the status that the callers got.
    assert side.telemetry.total(RPC_REQUESTS, code="UNAVAILABLE") == 5
    assert side.telemetry.total(RPC_REQUESTS, code="CANCELLED") == 0


async def test_calls_that_end_within_the_grace_are_answered(
    side: Side, echo: Any, keys: Any
) -> None:
    begun = asyncio.Event()

    class Servicer(echo.pb_grpc.EchoServiceServicer):  # type: ignore[misc]
        async def Echo(self, request: Any, context: Any) -> Any:
            begun.set()
            await asyncio.sleep(0.2)
            return request

    stub = await side.start(Servicer())
    call = asyncio.ensure_future(stub.Echo(echo.pb.Note(text="a"), metadata=keys.metadata()))
    await begun.wait()
    await side.stop(30)
    assert (await call).text == "a"


async def test_stopping_one_of_two_replicas_fails_no_call(start: Any, echo: Any, keys: Any) -> None:
    class Servicer(echo.pb_grpc.EchoServiceServicer):  # type: ignore[misc]
        async def Echo(self, request: Any, context: Any) -> Any:
            await asyncio.sleep(0.05)
            return request

    servers = [await start(Servicer()) for _ in range(2)]
    factory = ChannelFactory(ChannelOptions(local_subchannels=True))
    services = echo.pb.DESCRIPTOR.services_by_name.values()
    channel = factory.channel(targets(servers), services, peer="echo")
    stub = echo.pb_grpc.EchoServiceStub(channel)
    answered, stopped = 0, False

    async def keep_calling() -> None:
        nonlocal answered
        while not stopped:
            await stub.Echo(echo.pb.Note())
            answered += 1

    with keys.signed_in():
        callers = [asyncio.create_task(keep_calling()) for _ in range(100)]
        while answered < 200:
            await asyncio.sleep(0.01)
        # At the stop some calls are running, some begin and some wait to be accepted.
        await servers[0].stop(0)
        enough = answered + 200
        while answered < enough and not any(caller.done() for caller in callers):
            await asyncio.sleep(0.01)
        stopped = True
        await asyncio.gather(*callers)
    await factory.close()


async def test_a_call_cut_off_without_a_status_counts_as_unavailable() -> None:
    cut = grpc.aio.AioRpcError(grpc.StatusCode.CANCELLED, None, None, details="CANCELLED")
    error = from_rpc_error(cut)
    assert isinstance(error, UnavailableError)
    # The method may have run: gRPC ends handlers this way when they do not end by themselves.
    assert error.lost
