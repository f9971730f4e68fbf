"""The gRPC server and channels over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

import strata.shared.server as server_module
from callers import TokenKeys
from strata.protocol.errors import (
    InvalidArgumentError,
    Reason,
    ResourceExhaustedError,
    UnauthenticatedError,
    UnavailableError,
)
from strata.shared.channels import ChannelFactory, ChannelOptions
from strata.shared.context import Caller, RequestContext, current_project, require_caller, use
from strata.shared.interceptors.auth import bearer
from strata.shared.interceptors.pipeline import ServedMethod
from strata.shared.server import GrpcServer, serving
from strata.shared.service import Service, Wiring
from strata.shared.settings import ServerLimits, ServiceSettings

Start = Callable[..., Awaitable[GrpcServer]]

PATH = "/strata.testing.Raw"


async def answer(request: bytes, context: Any) -> bytes:
    return request


async def test_health_and_reflection_need_no_credentials_and_list_the_services(
    start: Start,
) -> None:
    server = await start({"Echo": answer})
    async with grpc.aio.insecure_channel(server.address) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        for name in ("", "strata.testing.Raw"):
            checked = await health.Check(health_pb2.HealthCheckRequest(service=name))
            assert checked.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await health.Check(health_pb2.HealthCheckRequest(service="strata.testing.Other"))
        assert raised.value.code() is grpc.StatusCode.NOT_FOUND
        stub_class: Any = reflection_pb2_grpc.ServerReflectionStub
        reflection = stub_class(channel)
        ask = reflection_pb2.ServerReflectionRequest(list_services="")
        async for response in reflection.ServerReflectionInfo(iter([ask])):
            names = {service.name for service in response.list_services_response.service}
        assert names == {
            "strata.testing.Raw",
            "grpc.health.v1.Health",
            "grpc.reflection.v1.ServerReflection",
            "grpc.reflection.v1alpha.ServerReflection",
        }


async def test_a_health_watch_sees_the_drain(start: Start) -> None:
    server = await start({"Echo": answer})
    async with grpc.aio.insecure_channel(server.address) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        watch = health.Watch(health_pb2.HealthCheckRequest(service="strata.testing.Raw"))
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        await server.drain()
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        watch.cancel()


async def test_health_answers_while_load_is_shed(
    start: Start, factory: ChannelFactory, caller: Caller
) -> None:
    entered, go = asyncio.Event(), asyncio.Event()

    async def wait(request: bytes, context: Any) -> bytes:
        entered.set()
        await go.wait()
        return request

    server = await start({"Wait": wait}, limits=ServerLimits(max_in_flight_unary=1))
    channel = factory.channel(server.address)
    call = channel.unary_unary(f"{PATH}/Wait")
    with use(RequestContext(caller=caller)):
        first = asyncio.ensure_future(call(b"a"))
        await asyncio.wait_for(entered.wait(), 30)
        with pytest.raises(ResourceExhaustedError):
            await call(b"b")
        health: Any = health_pb2_grpc.HealthStub(channel)
        checked = await health.Check(health_pb2.HealthCheckRequest())
        assert checked.status == health_pb2.HealthCheckResponse.SERVING
        go.set()
        assert await first == b"a"


async def test_a_silent_call_outlives_the_pings_of_its_client(
    start: Start, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def think(request: bytes, context: Any) -> bytes:
        await asyncio.sleep(4.5)  # gRPC pings once a second at most
        return request

    monkeypatch.setattr(server_module, "_MIN_PING_INTERVAL_S", 0.01)
    server = await start({"Think": think})
    factory = ChannelFactory(ChannelOptions(keepalive_s=0.1, local_subchannels=True))
    try:
        with use(RequestContext(caller=caller)):
            # A server that limits pings closes the connection at the third.
            assert await factory.channel(server.address).unary_unary(f"{PATH}/Think")(b"a") == b"a"
    finally:
        await factory.close()


async def test_garbage_to_health_is_an_invalid_argument(
    start: Start, factory: ChannelFactory
) -> None:
    server = await start({"Echo": answer})
    with pytest.raises(InvalidArgumentError) as raised:
        await factory.channel(server.address).unary_unary("/grpc.health.v1.Health/Check")(b"\xff")
    assert raised.value.reason is Reason.MALFORMED_MESSAGE


async def test_a_used_port_is_an_error_unless_it_is_shared(start: Start) -> None:
    server = await start({"Echo": answer})
    with pytest.raises(OSError, match="cannot listen"):
        await start({"Echo": answer}, port=server.port)
    shared = await start({"Echo": answer}, reuse_port=True)
    twin = await start({"Echo": answer}, reuse_port=True, port=shared.port)
    assert twin.port == shared.port


async def test_a_service_can_listen_on_a_unix_socket(
    start: Start, factory: ChannelFactory, caller: Caller, tmp_path: Path
) -> None:
    server = await start({"Echo": answer}, host=f"unix:{tmp_path}/s")
    assert server.address == f"unix:{tmp_path}/s"
    with use(RequestContext(caller=caller)):
        assert await factory.channel(server.address).unary_unary(f"{PATH}/Echo")(b"x") == b"x"


async def test_other_protocols_and_silent_connections_do_not_affect_the_server(
    start: Start, factory: ChannelFactory, caller: Caller
) -> None:
    server = await start({"Echo": answer})
    opened = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(50)]
    reader, writer = opened[0]
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    await asyncio.wait_for(reader.read(), 60)
    with use(RequestContext(caller=caller)):
        assert await factory.channel(server.address).unary_unary(f"{PATH}/Echo")(b"x") == b"x"
    for _, stream_writer in opened:
        stream_writer.close()


async def test_connections_age_without_failing_a_call(
    start: Start, factory: ChannelFactory, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    peers: set[str] = set()

    async def peer(request: bytes, context: Any) -> bytes:
        peers.add(context.peer())
        return request

    monkeypatch.setattr(server_module, "_MAX_CONNECTION_AGE_S", 0.5)
    server = await start({"Peer": peer})
    call = factory.channel(server.address).unary_unary(f"{PATH}/Peer")
    with use(RequestContext(caller=caller)):
        for _ in range(40):
            assert await call(b"x") == b"x"
            await asyncio.sleep(0.05)
    assert len(peers) > 1


def raw_service() -> Any:
    """Returns a descriptor that declares `Read` free of side effects, and `Write` not."""
    file = descriptor_pb2.FileDescriptorProto(name="raw.proto", package="strata.testing")
    file.message_type.add(name="Nothing")
    service = file.service.add(name="Raw")
    for name in ("Read", "Write"):
        service.method.add(
            name=name, input_type=".strata.testing.Nothing", output_type=".strata.testing.Nothing"
        )
    service.method[0].options.idempotency_level = descriptor_pb2.MethodOptions.NO_SIDE_EFFECTS
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool.FindServiceByName("strata.testing.Raw")


async def test_unavailable_is_retried_for_repeatable_methods_only(
    start: Start, factory: ChannelFactory, caller: Caller
) -> None:
    tries: dict[str, int] = {"Read": 0, "Write": 0, "Busy": 0}

    def failing_twice(name: str) -> Callable[..., Awaitable[bytes]]:
        async def behave(request: bytes, context: Any) -> bytes:
            tries[name] += 1
            if request == b"busy":
                raise ResourceExhaustedError("no")
            if tries[name] < 3:
                raise UnavailableError("database is away")
            return b"at last"

        return behave

    server = await start({"Read": failing_twice("Read"), "Write": failing_twice("Write")})
    channel = factory.channel(server.address, [raw_service()], peer="raw")
    with use(RequestContext(caller=caller)):
        assert await channel.unary_unary(f"{PATH}/Read")(b"") == b"at last"
        with pytest.raises(UnavailableError, match="database is away"):
            await channel.unary_unary(f"{PATH}/Write")(b"")
        with pytest.raises(ResourceExhaustedError):
            await channel.unary_unary(f"{PATH}/Read")(b"busy")
    assert tries == {"Read": 4, "Write": 1, "Busy": 0}


async def test_replicas_are_used_in_turn_and_one_may_stop(
    start: Start, factory: ChannelFactory, caller: Caller
) -> None:
    def counting(into: list[int]) -> Callable[..., Awaitable[bytes]]:
        async def behave(request: bytes, context: Any) -> bytes:
            into[0] += 1
            return request

        return behave

    first, second = [0], [0]
    one = await start({"Read": counting(first)})
    two = await start({"Read": counting(second)})
    target = f"ipv4:127.0.0.1:{one.port},127.0.0.1:{two.port}"
    read = factory.channel(target, [raw_service()]).unary_unary(f"{PATH}/Read")
    with use(RequestContext(caller=caller)):
        async with asyncio.timeout(30):
            while not (first[0] and second[0]):
                await read(b"warm up")
        first[0] = second[0] = 0
        for _ in range(40):
            await read(b"x")
        assert (first[0], second[0]) == (20, 20)
        await one.stop(1)
        for _ in range(20):
            await read(b"x")
        assert second[0] == 40


async def test_an_unreachable_service_is_unavailable(
    factory: ChannelFactory, caller: Caller
) -> None:
    with use(RequestContext(caller=caller)), pytest.raises(UnavailableError) as raised:
        await factory.channel("127.0.0.1:1").unary_unary(f"{PATH}/Echo")(b"")
    assert raised.value.reason is Reason.DEPENDENCY_UNAVAILABLE


async def test_a_service_can_have_its_own_authenticator(
    keys: TokenKeys, factory: ChannelFactory, service_of: Callable[..., Service]
) -> None:
    class ApiKeys:
        async def authenticate(
            self, method: ServedMethod, metadata: Mapping[str, str | bytes]
        ) -> Caller:
            return Caller("org", f"project of {bearer(metadata)}", method.path)

    async def whose(request: bytes, context: Any) -> bytes:
        return f"{current_project()}, {require_caller().principal}".encode()

    async def build(settings: ServiceSettings, wiring: Wiring, stack: AsyncExitStack) -> Service:
        return replace(service_of({"Whose": whose}), authenticator=ApiKeys())

    settings = ServiceSettings(token_public_keys=keys.public, drain_s=0)
    async with serving(build, settings) as server:
        call = factory.channel(server.address).unary_unary(f"{PATH}/Whose")
        metadata = (("authorization", "Bearer key-7"),)
        assert await call(b"", metadata=metadata) == b"project of key-7, /strata.testing.Raw/Whose"
        with pytest.raises(UnauthenticatedError):
            await call(b"")


async def test_services_of_their_own_processes_are_wired_by_their_targets(
    keys: TokenKeys,
    caller: Caller,
    factory: ChannelFactory,
    service_of: Callable[..., Service],
) -> None:
    async def whose(request: bytes, context: Any) -> bytes:
        return current_project().encode()

    async def behind(settings: ServiceSettings, wiring: Wiring, stack: AsyncExitStack) -> Service:
        return service_of({"Whose": whose}, "recall")

    async def front(settings: ServiceSettings, wiring: Wiring, stack: AsyncExitStack) -> Service:
        ask: Any = wiring.channel("recall").unary_unary(f"{PATH}/Whose")

        async def forward(request: bytes, context: Any) -> bytes:
            answer: bytes = await ask(request)
            return answer

        return service_of({"Forward": forward}, "front")

    common: dict[str, Any] = {"token_public_keys": keys.public, "drain_s": 0}
    async with serving(behind, ServiceSettings(**common)) as recall:
        settings = ServiceSettings(**common, targets={"recall": recall.address})
        async with serving(front, settings) as server:
            call = factory.channel(server.address).unary_unary(f"{PATH}/Forward")
            with use(RequestContext(caller=caller)):
                assert await call(b"") == b"project-1"
        with pytest.raises(ValueError, match="no target is configured for the service 'recall'"):
            async with serving(front, ServiceSettings(**common)):
                pass
