"""The transparent proxy, and the separation of public and internal methods."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf import descriptor_pool
from google.rpc import error_details_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from integration.gateway.scripted_services import Gateway, ScriptedServices
from loop_time import put_forward
from polling import eventually
from rpc_errors import reason, status_of
from strata.api.agent_loop.v1 import agent_service_pb2, agent_service_pb2_grpc
from strata.api.archival.v1 import passage_service_pb2, passage_service_pb2_grpc
from strata.gateway.registry import public_services
from strata.gateway.servicers.proxy import proxied_service
from strata.shared.auth import TokenSigner, TokenVerifier, generate_key_pair, public_key_of
from strata.shared.channels import ChannelFactory
from strata.shared.inprocess import InProcessNetwork
from strata.shared.service import GrpcService, Service

INTERNAL = [
    "strata.api.agent_loop.v1.TurnService/ExecuteRun",
    "strata.api.core_memory.v1.ContextService/Compile",
    "strata.api.recall.v1.WindowService/BeginTurn",
    "strata.api.archival.v1.AgentArchiveService/GetAgentStats",
    "strata.api.tool_execution.v1.ExecutionService/ExecuteTools",
]


def agents(gateway: Gateway) -> Any:
    return agent_service_pb2_grpc.AgentServiceStub(gateway.channel)


async def import_agent(channel: Any, names: AsyncIterator[str], metadata: Any) -> int:
    """Sends a stream of requests with these names; returns how many the service received."""

    async def requests() -> AsyncIterator[Any]:
        async for name in names:
            yield agent_service_pb2.ImportAgentRequest(name=name)

    stub: Any = agent_service_pb2_grpc.AgentServiceStub(channel)
    response = await stub.ImportAgent(requests(), metadata=metadata)
    return int(response.warnings[0])


async def upload_passages(channel: Any, names: AsyncIterator[str], metadata: Any) -> int:
    """Like `import_agent`, with a method that also streams its responses."""

    async def requests() -> AsyncIterator[Any]:
        async for name in names:
            yield passage_service_pb2.UploadPassagesRequest(archive_id=name)

    stub: Any = passage_service_pb2_grpc.PassageServiceStub(channel)
    responses = stub.UploadPassages(requests(), metadata=metadata)
    counts: list[int] = [response.received_count async for response in responses]
    return counts[-1]


# With a service behind the gateway that has the method.
REQUEST_STREAMS = [
    pytest.param(
        import_agent,
        agent_service_pb2.DESCRIPTOR.services_by_name["AgentService"],
        "agent_loop",
        id="one response",
    ),
    pytest.param(
        upload_passages,
        passage_service_pb2.DESCRIPTOR.services_by_name["PassageService"],
        "archival",
        id="a stream of responses",
    ),
]


async def test_a_unary_call_is_forwarded_with_its_trailing_metadata(
    services: ScriptedServices,
) -> None:
    gateway = await services.gateway()
    agent = services.new_agent()
    call = agents(gateway).DeleteAgent(
        agent_service_pb2.DeleteAgentRequest(agent_id=agent), metadata=gateway.metadata
    )
    await call
    assert ("x-trailing", "kept") in tuple(await call.trailing_metadata())
    assert agent not in services.agents.agents


async def test_a_message_to_a_deleted_agent_is_not_found(
    services: ScriptedServices,
) -> None:
    gateway = await services.gateway()
    agent = services.new_agent()
    await anext(aiter(gateway.send(agent)))
    await agents(gateway).DeleteAgent(
        agent_service_pb2.DeleteAgentRequest(agent_id=agent), metadata=gateway.metadata
    )
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await anext(aiter(gateway.send(agent)))
    assert reason(raised.value) == "AGENT_NOT_FOUND"


async def test_a_response_stream_is_forwarded(services: ScriptedServices) -> None:
    gateway = await services.gateway()
    call = agents(gateway).ExportAgent(
        agent_service_pb2.ExportAgentRequest(agent_id="500"), metadata=gateway.metadata
    )
    assert [response.chunk async for response in call] == [b"%d" % n for n in range(500)]


@pytest.mark.parametrize(("send", "descriptor", "target"), REQUEST_STREAMS)
async def test_a_request_stream_is_forwarded(
    services: ScriptedServices, send: Any, descriptor: Any, target: str
) -> None:
    gateway = await services.gateway()

    async def names() -> AsyncIterator[str]:
        for _ in range(50):
            yield "keep"

    assert await send(gateway.channel, names(), gateway.metadata) == 50


@pytest.mark.parametrize(("send", "descriptor", "target"), REQUEST_STREAMS)
async def test_an_error_arrives_as_the_service_sent_it(
    services: ScriptedServices, send: Any, descriptor: Any, target: str
) -> None:
    gateway = await services.gateway()

    async def names() -> AsyncIterator[str]:
        yield "keep"
        yield "refuse"
        await asyncio.sleep(30)

    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await send(gateway.channel, names(), gateway.metadata)
    assert_refused(raised.value)


@pytest.mark.parametrize(("send", "descriptor", "target"), REQUEST_STREAMS)
async def test_an_error_arrives_complete_while_the_client_is_sending(
    socket_services: ScriptedServices, send: Any, descriptor: Any, target: str
) -> None:
    """The service is behind a socket, where a failed write hides the status; the client is not."""
    services = socket_services
    signer = TokenSigner(services.private_key)
    token = signer.mint("organization-1", "project-1", "key-1", {"write"})

    async def names() -> AsyncIterator[str]:
        yield "keep"
        yield "refuse"
        for _ in range(5000):
            yield "keep"

    factory = ChannelFactory()
    async with InProcessNetwork(TokenVerifier(public_key_of(services.private_key))) as network:
        behind = factory.channel(services.targets[target])
        network.register(Service("front", [proxied_service(descriptor, behind)]))
        channel = network.raw_channel("front")
        for _ in range(20):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await send(channel, names(), (("authorization", f"Bearer {token}"),))
            assert_refused(raised.value)
    await factory.close()


def assert_refused(error: grpc.aio.AioRpcError) -> None:
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert error.details() == "Not now."
    status = status_of(error.trailing_metadata())
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    assert status.details[0].Unpack(info)
    assert dict(info.metadata) == {"count": "2"}
    assert status.details[1].Unpack(retry)
    assert retry.retry_delay.ToMilliseconds() == 2500


async def test_a_client_that_disconnects_cancels_the_forwarded_call(
    services: ScriptedServices,
) -> None:
    ended = asyncio.Event()

    async def endless(request: Any, context: Any) -> AsyncIterator[Any]:
        try:
            while True:
                yield agent_service_pb2.ExportAgentResponse(chunk=b"x")
                await asyncio.sleep(0.01)
        finally:
            ended.set()

    services.agents.on_export = endless
    gateway = await services.gateway()
    call = agents(gateway).ExportAgent(
        agent_service_pb2.ExportAgentRequest(), metadata=gateway.metadata
    )
    await anext(aiter(call))
    call.cancel()
    await asyncio.wait_for(ended.wait(), 60)


async def test_a_slow_reader_blocks_the_service(services: ScriptedServices) -> None:
    produced = 0

    async def fast(request: Any, context: Any) -> AsyncIterator[Any]:
        nonlocal produced
        for _ in range(2000):
            yield agent_service_pb2.ExportAgentResponse(chunk=bytes(64 * 1024))
            produced += 1

    services.agents.on_export = fast
    gateway = await services.gateway()
    call = agents(gateway).ExportAgent(
        agent_service_pb2.ExportAgentRequest(), metadata=gateway.metadata
    )
    await anext(aiter(call))
    await eventually(lambda: produced > 0)
    await asyncio.sleep(0.5)
    # Limited by the buffers of the transports, far below all 2000.
    assert produced < 1000
    call.cancel()


async def test_a_deadline_reaches_the_service(services: ScriptedServices) -> None:
    seen: list[float] = []

    async def slow(request: Any, context: Any) -> Any:
        seen.append(context.time_remaining())
        await asyncio.sleep(30)

    services.agents.on_get = slow
    gateway = await services.gateway()
    # Less than any service's own cap, and time enough to connect in.
    call = agents(gateway).GetAgent(
        agent_service_pb2.GetAgentRequest(), metadata=gateway.metadata, timeout=20.0
    )
    await eventually(lambda: seen)
    # gRPC rounds deadlines up, by some milliseconds.
    assert 0 < seen[0] < 20.5
    call.cancel()
    seen.clear()
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await agents(gateway).GetAgent(
            agent_service_pb2.GetAgentRequest(), metadata=gateway.metadata, timeout=1.0
        )
    assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert all(remaining < 1.5 for remaining in seen)


async def test_error_for_an_unreachable_service_hides_its_address(
    services: ScriptedServices, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = await services.gateway()
    call = gateway.channel.unary_unary("/strata.api.recall.v1.MessageService/GetMessage")
    calling = asyncio.ensure_future(call(b"", metadata=gateway.metadata, timeout=60))
    await eventually(lambda: "call is repeated" in caplog.text)
    # The gateway waits for the service until shortly before the deadline, and then answers. The
    # deadline of the client itself is not put forward.
    put_forward(60)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await calling
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
    assert reason(raised.value) == "DEPENDENCY_UNAVAILABLE"
    assert "127.0.0.1" not in (raised.value.details() or "")


async def test_methods_that_the_service_lacks_are_unimplemented(services: ScriptedServices) -> None:
    gateway = await services.gateway()
    call = gateway.channel.unary_unary("/strata.api.agent_loop.v1.AgentService/UpdateAgent")
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call(b"", metadata=gateway.metadata)
    assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert reason(raised.value) == "NOT_BUILT"


@pytest.mark.parametrize("method", [*INTERNAL, "strata.api.recall.v1.NoService/Nothing", "x"])
async def test_internal_and_unknown_methods_cannot_be_reached(
    services: ScriptedServices, method: str
) -> None:
    gateway = await services.gateway()
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await gateway.channel.unary_unary(f"/{method}")(b"", metadata=gateway.metadata)
    assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert services.turns.requests == []
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await gateway.channel.unary_unary(f"/{method}")(b"")
    assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_garbage_and_oversized_requests_are_refused_with_a_reason(
    services: ScriptedServices,
) -> None:
    gateway = await services.gateway()
    for path in (
        "/strata.api.gateway.v1.RunService/GetRun",
        "/strata.api.agent_loop.v1.AgentService/GetAgent",
    ):
        call = gateway.channel.unary_unary(path)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await call(b"\xff\xff\xff", metadata=gateway.metadata)
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert reason(raised.value) == "MALFORMED_MESSAGE"
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await call(bytes(4 * 1024 * 1024 + 1), metadata=gateway.metadata)
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert reason(raised.value) == "MESSAGE_TOO_LARGE"


async def test_reflection_lists_every_public_service_and_describes_it(
    socket_services: ScriptedServices,
) -> None:
    gateway = await socket_services.gateway()
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(gateway.channel)

    async def ask(request: Any) -> Any:
        call = stub.ServerReflectionInfo(aiter_of(request))
        return await anext(aiter(call))

    listed = await ask(reflection_pb2.ServerReflectionRequest(list_services=""))
    names = {service.name for service in listed.list_services_response.service}
    public = {service.full_name for service in public_services()}
    assert public <= names
    assert not any("TurnService" in name or "WindowService" in name for name in names)
    for name in public:
        described = await ask(reflection_pb2.ServerReflectionRequest(file_containing_symbol=name))
        assert described.file_descriptor_response.file_descriptor_proto, name


async def aiter_of(*items: Any) -> AsyncIterator[Any]:
    for item in items:
        yield item


async def test_a_stream_both_ways_is_forwarded() -> None:
    """No public method has this shape yet; that of reflection has."""
    private, _ = generate_key_pair()
    network = InProcessNetwork(TokenVerifier(public_key_of(private)))
    descriptor = descriptor_pool.Default().FindServiceByName(
        "grpc.reflection.v1alpha.ServerReflection"
    )

    class Echo(reflection_pb2_grpc.ServerReflectionServicer):
        async def ServerReflectionInfo(self, request_iterator: Any, context: Any) -> Any:
            async for request in request_iterator:
                if request.host == "refuse":
                    await context.abort(grpc.StatusCode.ABORTED, "enough")
                yield reflection_pb2.ServerReflectionResponse(valid_host=request.host)

    async with network:
        network.register(
            Service(
                "behind",
                [
                    GrpcService(
                        descriptor.full_name,
                        reflection_pb2_grpc.add_ServerReflectionServicer_to_server,
                        Echo(),
                    )
                ],
            )
        )
        network.register(Service("front", [proxied_service(descriptor, network.channel("behind"))]))
        front: Any = network.raw_channel("front")
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(front)
        hosts = [reflection_pb2.ServerReflectionRequest(host=f"{n}") for n in range(100)]
        call = stub.ServerReflectionInfo(aiter_of(*hosts))
        assert [response.valid_host async for response in call] == [f"{n}" for n in range(100)]
        refused = stub.ServerReflectionInfo(
            aiter_of(hosts[0], reflection_pb2.ServerReflectionRequest(host="refuse"), *hosts)
        )
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            [response async for response in refused]
        assert raised.value.code() is grpc.StatusCode.ABORTED
        assert raised.value.details() == "enough"


async def test_cancelled_forwarded_calls_leave_no_tasks(services: ScriptedServices) -> None:
    gateway = await services.gateway()
    tasks = len(asyncio.all_tasks())
    for _ in range(20):
        call = agents(gateway).ExportAgent(
            agent_service_pb2.ExportAgentRequest(agent_id="100"), metadata=gateway.metadata
        )
        await anext(aiter(call))
        call.cancel()
    await eventually(lambda: len(asyncio.all_tasks()) <= tasks + 2)
