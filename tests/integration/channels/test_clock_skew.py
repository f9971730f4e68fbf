"""Hosts whose clocks differ: measured, tolerated, and never blamed on the client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import grpc.aio
import pytest

from clocks import OffsetClock
from integration.channels.conftest import check_refusals, refusals, targets
from strata.gateway.servicers.proxy import proxied_service
from strata.protocol.errors import Reason, UnavailableError
from strata.protocol.status import from_rpc_error
from strata.shared.channels import ChannelFactory, ChannelOptions
from strata.shared.clock import SystemClock
from strata.shared.clock_skew import SERVER_HOST_KEY, SkewMeter
from strata.shared.inprocess import InProcessNetwork
from strata.shared.metric_names import CLOCK_SKEW_SECONDS
from strata.shared.request_stream import RequestStream
from strata.shared.service import Service
from strata.shared.telemetry import Telemetry

TOLERATED_S = 60.0
REFUSED_S = 600.0


def servicer(echo: Any) -> Any:
    class Servicer(echo.pb_grpc.EchoServiceServicer):  # type: ignore[misc]
        async def Echo(self, request: Any, context: Any) -> Any:
            return request

        async def Change(self, request: Any, context: Any) -> Any:
            return request

        async def Count(self, request: Any, context: Any) -> AsyncIterator[Any]:
            yield request

        async def Sum(self, requests: Any, context: Any) -> Any:
            total = 0
            async for request in requests:
                total += request.number
            return echo.pb.Note(number=total)

        async def Chat(self, requests: Any, context: Any) -> AsyncIterator[Any]:
            async for request in requests:
                yield request

    return Servicer()


def closed(*requests: Any) -> RequestStream[Any]:
    stream = RequestStream(*requests)
    stream.close()
    return stream


async def every_shape(stub: Any, echo: Any) -> None:
    """Makes a call of each shape."""
    await repeated_shapes(stub, echo)
    note = echo.pb.Note(number=7)
    assert (await stub.Sum(iter([note, note]))).number == 14


async def repeated_shapes(stub: Any, echo: Any) -> None:
    """Makes a call of each shape that is repeated when the token is refused."""
    note = echo.pb.Note(number=7)
    assert await stub.Echo(note) == note
    assert await stub.Change(note) == note
    assert [answer async for answer in stub.Count(note)] == [note]
    assert [answer async for answer in stub.Chat(closed(note))] == [note]


class Client:
    """A channel between services."""

    def __init__(self, options: ChannelOptions | None = None) -> None:
        self.telemetry = Telemetry()
        self.factory = ChannelFactory(options, skew=SkewMeter(self.telemetry, SystemClock()))

    def channel(self, target: str, echo: Any) -> Any:
        services = echo.pb.DESCRIPTOR.services_by_name.values()
        return self.factory.channel(target, services, peer="echo")

    def stub(self, target: str, echo: Any) -> Any:
        return echo.pb_grpc.EchoServiceStub(self.channel(target, echo))


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    made = Client()
    yield made
    await made.factory.close()


@pytest.mark.parametrize("ahead_s", [-TOLERATED_S, TOLERATED_S])
async def test_a_minute_between_two_clocks_is_tolerated_measured_and_logged(
    start: Any, echo: Any, keys: Any, client: Client, ahead_s: float, caplog: Any
) -> None:
    server = await start(servicer(echo), clock=OffsetClock(ahead_s))
    with keys.signed_in(), caplog.at_level(logging.WARNING):
        for _ in range(3):
            await every_shape(client.stub(server.address, echo), echo)
    assert client.telemetry.total(CLOCK_SKEW_SECONDS, peer="echo") == pytest.approx(ahead_s, abs=3)
    warnings = [record for record in caplog.records if "clocks differ" in record.getMessage()]
    assert len(warnings) == 1


async def test_clocks_that_agree_are_measured_without_a_warning(
    start: Any, echo: Any, keys: Any, client: Client, caplog: Any
) -> None:
    server = await start(servicer(echo))
    with keys.signed_in(), caplog.at_level(logging.WARNING):
        await every_shape(client.stub(server.address, echo), echo)
    assert [sample.name for sample in client.telemetry.samples()] == [CLOCK_SKEW_SECONDS]
    assert client.telemetry.total(CLOCK_SKEW_SECONDS) == pytest.approx(0, abs=1)
    assert not [record for record in caplog.records if "clocks differ" in record.getMessage()]


async def test_a_replica_that_refuses_the_token_is_left_for_another_one(
    start: Any, echo: Any, keys: Any, client: Client
) -> None:
    servers = [await start(servicer(echo)), await start(servicer(echo), clock=OffsetClock(-900))]
    stub = client.stub(targets(servers), echo)
    with keys.signed_in():
        for _ in range(4):
            await repeated_shapes(stub, echo)
    assert refusals(servers[0]) == 0 < refusals(servers[1])


async def test_a_refused_call_does_not_hang_with_any_pause(
    start: Any, echo: Any, keys: Any
) -> None:
    servers = [await start(servicer(echo)), await start(servicer(echo), clock=OffsetClock(-900))]
    # gRPC's own retries have a race between a short pause and the thread that starts it.
    client = Client(ChannelOptions(first_pause_s=0.001, max_attempts=20))
    stub = client.stub(targets(servers), echo)

    async def calls() -> None:
        for _ in range(10):
            await repeated_shapes(stub, echo)

    try:
        async with asyncio.timeout(60):
            with keys.signed_in():
                await asyncio.gather(*(calls() for _ in range(5)))
    finally:
        await client.factory.close()
    assert refusals(servers[1]) >= 10


async def test_calls_are_repeated_a_few_times_when_the_token_is_refused(
    start: Any, echo: Any, keys: Any
) -> None:
    server = await start(servicer(echo), clock=OffsetClock(-900))
    client = Client(ChannelOptions(first_pause_s=0.01))
    stub = client.stub(server.address, echo)
    note = echo.pb.Note()
    calls: list[Callable[[], Awaitable[Any]]] = [
        lambda: stub.Echo(note),
        lambda: stub.Change(note),
        lambda: stub.Count(note).read(),
        lambda: anext(aiter(stub.Count(note))),
        lambda: stub.Chat(closed(note)).read(),
        lambda: anext(aiter(stub.Chat(closed(note)))),
    ]
    try:
        with keys.signed_in():
            for number, call in enumerate(calls, start=1):
                with pytest.raises(UnavailableError):
                    await call()
                await check_refusals(server, number * ChannelOptions().max_attempts)
    finally:
        await client.factory.close()


async def test_call_is_not_repeated_when_a_service_behind_the_peer_refused_the_token(
    start: Any, echo: Any, keys: Any, client: Client
) -> None:
    calls = 0

    class Passing(echo.pb_grpc.EchoServiceServicer):  # type: ignore[misc]
        async def Sum(self, requests: Any, context: Any) -> Any:
            nonlocal calls
            calls += 1
            raise UnavailableError("Refused.", reason=Reason.INTERNAL_TOKEN_REFUSED)

        async def Change(self, request: Any, context: Any) -> Any:
            await self.Sum(request, context)

        async def Echo(self, request: Any, context: Any) -> Any:
            await self.Sum(request, context)

    stub = client.stub((await start(Passing())).address, echo)
    note = echo.pb.Note()
    with keys.signed_in():
        for call in (stub.Sum(iter([note])), stub.Change(note), stub.Echo(note)):
            with pytest.raises(UnavailableError):
                await call
    assert calls == 3


async def test_a_refused_internal_token_is_not_the_fault_of_the_client(
    start: Any, echo: Any, keys: Any, client: Client
) -> None:
    server = await start(servicer(echo), clock=OffsetClock(-900))
    stub = client.stub(server.address, echo)
    note = echo.pb.Note()
    with keys.signed_in():
        for call in (stub.Echo(note), stub.Change(note), stub.Count(note).read()):
            with pytest.raises(UnavailableError) as raised:
                await call
            assert raised.value.reason is Reason.INTERNAL_TOKEN_REFUSED
            assert raised.value.metadata == {"service": "echo"}
            assert raised.value.retry_after is not None
    # The error names the clock although no call succeeds.
    assert client.telemetry.total(CLOCK_SKEW_SECONDS, peer="echo") == pytest.approx(-900, abs=3)


async def test_the_gateway_answers_unavailable_when_a_service_refuses_its_token(
    start: Any, echo: Any, keys: Any, client: Client
) -> None:
    server = await start(servicer(echo), clock=OffsetClock(-900))
    service = echo.pb.DESCRIPTOR.services_by_name["EchoService"]
    async with AsyncExitStack() as stack:
        network = await stack.enter_async_context(InProcessNetwork(keys.verifier))
        behind = client.channel(server.address, echo)
        network.register(Service("front", [proxied_service(service, behind)]))
        stub = echo.pb_grpc.EchoServiceStub(network.raw_channel("front"))
        note, metadata = echo.pb.Note(), keys.metadata()
        calls = (
            stub.Echo(note, metadata=metadata),
            stub.Change(note, metadata=metadata),
            stub.Count(note, metadata=metadata).read(),
            stub.Sum(iter([note]), metadata=metadata),
            stub.Chat(iter([note]), metadata=metadata).read(),
        )
        for call in calls:
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await call
            assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
            assert from_rpc_error(raised.value).reason is Reason.INTERNAL_TOKEN_REFUSED


async def test_names_of_internal_hosts_are_not_sent_to_clients(
    start: Any, echo: Any, keys: Any, client: Client
) -> None:
    server = await start(servicer(echo))
    service = echo.pb.DESCRIPTOR.services_by_name["EchoService"]
    async with InProcessNetwork(keys.verifier) as network:
        behind = client.channel(server.address, echo)
        network.register(Service("front", [proxied_service(service, behind)]))
        stub = echo.pb_grpc.EchoServiceStub(network.raw_channel("front"))
        direct = echo.pb_grpc.EchoServiceStub(behind)
        with keys.signed_in():
            inside = direct.Echo(echo.pb.Note())
            await inside
        outside = stub.Echo(echo.pb.Note(), metadata=keys.metadata())
        await outside
        assert SERVER_HOST_KEY in dict(await inside.trailing_metadata())
        assert SERVER_HOST_KEY not in dict(await outside.trailing_metadata())
