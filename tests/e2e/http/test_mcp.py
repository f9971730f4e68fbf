"""A real MCP client at ``/mcp/{agent}``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import quote

import grpc.aio
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import ResourcesListChanged, ResourceUpdated
from starlette.applications import Starlette
from starlette.routing import Route

from mcp_clients import EDITOR, refused, result_of
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.core_memory.v1 import block_service_pb2 as pb
from strata.api.gateway.v1 import admin_service_pb2 as admin_pb
from strata.gateway.http.mcp import McpApplication
from strata.shared.agent_mcp.definitions import CHANGING, READING
from strata.shared.agent_mcp.resources import uri_of
from strata.shared.http_listener import HttpListener
from strata.shared.ids import new_id
from strata.shared.scopes import Scope
from whole_system import System

pytestmark = pytest.mark.asyncio(loop_scope="session")


@asynccontextmanager
async def client_of(
    system: System,
    agent: str,
    *,
    key: str = "",
    query: str = "",
    mode: str = "legacy",
    base_url: str = "",
) -> AsyncIterator[Client]:
    headers = {"authorization": f"Bearer {key or system.key}", "user-agent": "ed/7.1"}
    async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
        url = f"{base_url or system.http_url}/mcp/{quote(agent)}{query}"
        transport = streamable_http_client(url, http_client=http)
        async with Client(transport, client_info=EDITOR, mode=mode) as client:
            yield client


async def ada(system: System) -> agent_pb.Agent:
    return await system.make_agent(blocks=[pb.NewBlock(label="human", value="City: Graz")])


@pytest.mark.parametrize("by", ["name", "id"])
async def test_edit_through_mcp_is_in_the_history(system: System, by: str) -> None:
    agent = await ada(system)
    async with client_of(system, getattr(agent, by)) as client:
        assert client.server_info is not None
        assert agent.name in (client.server_info.title or "")
        block = await result_of(client, "read_memory_block", label="human")
        assert block["value"] == "City: Graz"
        edited = await result_of(
            client, "memory_replace", label="human", old_str="Graz", new_str="Linz"
        )
    assert edited["revision"] == 2
    stored = await system.block(agent, "human")
    assert stored.value == "City: Linz"
    blame = await system.blocks.BlameBlock(pb.BlameBlockRequest(block_id=stored.id))
    assert {line.origin.reason for line in blame.lines} == {"through MCP, by ed/7.1"}


async def test_agent_whose_name_begins_like_an_id_is_found(system: System) -> None:
    agent = await system.make_agent(name=f"agent-{new_id('x')[-8:]}")
    async with client_of(system, agent.name) as client:
        assert (await client.list_tools()).tools


async def test_blocks_are_resources(system: System) -> None:
    agent = await ada(system)
    async with client_of(system, agent.name) as client:
        resources = (await client.list_resources()).resources
        assert uri_of(agent.id, "human") in [resource.uri for resource in resources]
        [contents] = (await client.read_resource(uri_of(agent.id, "human"))).contents
    assert getattr(contents, "text", "") == "City: Graz"


async def test_changed_blocks_are_reported_to_clients_that_listen(system: System) -> None:
    agent = await ada(system)
    human = uri_of(agent.id, "human")
    async with (
        asyncio.timeout(30),
        client_of(system, agent.name, mode="auto") as client,
        client.listen(resource_subscriptions=[human], resources_list_changed=True) as events,
    ):
        block = await system.block(agent, "human")
        await system.blocks.UpdateBlock(
            pb.UpdateBlockRequest(block_id=block.id, value="City: Linz")
        )
        assert await anext(events) == ResourceUpdated(human)
        [contents] = (await client.read_resource(human)).contents
        await system.blocks.CreateBlock(
            pb.CreateBlockRequest(agent_id=agent.id, block=pb.NewBlock(label="plans"))
        )
        assert await anext(events) == ResourcesListChanged()
        # Requests of other kinds are answered as before.
        assert (await result_of(client, "read_memory_block", label="plans"))["value"] == ""
    assert getattr(contents, "text", "") == "City: Linz"


async def test_a_client_whose_key_is_revoked_gets_no_more_events(system: System) -> None:
    agent = await ada(system)
    made = await system.admin.CreateApiKey(
        admin_pb.CreateApiKeyRequest(name="listener", scopes=[Scope.READ])
    )
    uri = uri_of(agent.id, "human")
    async with (
        asyncio.timeout(30),
        client_of(system, agent.name, key=made.secret, mode="auto") as client,
        client.listen(resource_subscriptions=[uri]) as events,
    ):
        await system.admin.RevokeApiKey(admin_pb.RevokeApiKeyRequest(api_key_id=made.api_key.id))
        block = await system.block(agent, "human")
        await system.blocks.UpdateBlock(pb.UpdateBlockRequest(block_id=block.id, value="Secret"))
        assert [event async for event in events] == []


async def test_port_is_closed_although_a_client_listens(
    system: System, caplog: pytest.LogCaptureFixture
) -> None:
    agent = await ada(system)
    async with asyncio.timeout(30), grpc.aio.insecure_channel(system.address) as channel:
        application = McpApplication(channel, max_body_bytes=1_000_000)
        routes = [Route("/mcp/{agent}", application)]
        listener = HttpListener(lambda _: Starlette(routes=routes), "127.0.0.1", 0)
        await listener.start(channel)
        url = f"http://127.0.0.1:{listener.port}"
        async with (
            client_of(system, agent.id, mode="auto", base_url=url) as client,
            client.listen(resource_subscriptions=[uri_of(agent.id, "human")]) as events,
        ):
            stopping = asyncio.create_task(listener.stop())
            with pytest.raises(SubscriptionLost):
                await anext(events)
        await stopping
    assert [record for record in caplog.records if record.name == "uvicorn.error"] == []


async def test_subscriptions_of_a_project_are_limited_to_its_share(system: System) -> None:
    agent = await ada(system)
    async with grpc.aio.insecure_channel(system.address) as channel:
        application = McpApplication(channel, max_body_bytes=1_000_000, max_subscriptions=4)
        routes = [Route("/mcp/{agent}", application)]
        listener = HttpListener(lambda _: Starlette(routes=routes), "127.0.0.1", 0)
        await listener.start(channel)
        url = f"http://127.0.0.1:{listener.port}"
        uris = [uri_of(agent.id, "human")]
        try:
            for _ in range(2):
                async with (
                    client_of(system, agent.id, mode="auto", base_url=url) as client,
                    client.listen(resource_subscriptions=uris),
                ):
                    with pytest.raises(MCPError):
                        async with client.listen(resource_subscriptions=uris):
                            pass
                    # Other requests need no subscription.
                    assert (await client.list_tools()).tools
        finally:
            await listener.stop()


async def test_clients_of_earlier_versions_cannot_subscribe(system: System) -> None:
    agent = await ada(system)
    async with client_of(system, agent.name) as client:
        resources = client.server_capabilities.resources
        assert resources is not None
        assert not resources.subscribe


async def test_prompts_return_parts_of_the_memory(system: System) -> None:
    agent = await ada(system)
    async with client_of(system, agent.name) as client:
        names = [prompt.name for prompt in (await client.list_prompts()).prompts]
        [message] = (await client.get_prompt("memory")).messages
    assert names == ["memory", "recall", "remember"]
    assert "City: Graz" in getattr(message.content, "text", "")


async def test_conflict_is_explained_to_the_model(system: System) -> None:
    agent = await ada(system)
    async with client_of(system, agent.name) as client:
        refusal = await refused(
            client, "memory_replace", label="human", old_str="Rome", new_str="Oslo"
        )
    assert "Rome" in refusal
    assert "[" in refusal, "the reason is named"


@pytest.mark.parametrize("read_only_by", ["query", "key"])
async def test_memory_is_read_only_on_request_and_for_keys_that_may_not_write(
    system: System, read_only_by: str
) -> None:
    agent = await ada(system)
    key, query = "", "?read_only=true"
    if read_only_by == "key":
        made = await system.admin.CreateApiKey(
            admin_pb.CreateApiKeyRequest(name="reader", scopes=[Scope.READ])
        )
        key, query = made.secret, ""
    async with client_of(system, agent.name, key=key, query=query) as client:
        tools = {tool.name for tool in (await client.list_tools()).tools}
        prompts = [prompt.name for prompt in (await client.list_prompts()).prompts]
    assert prompts == ["memory", "recall"]
    assert tools == {tool.name for tool in READING}
    assert tools.isdisjoint(tool.name for tool in CHANGING)


async def test_nothing_is_shown_without_a_valid_key(system: System, other_project_key: str) -> None:
    agent = await ada(system)
    request = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    headers = {"accept": "application/json, text/event-stream"}
    async with httpx2.AsyncClient(base_url=system.http_url, headers=headers) as http:
        for path in (agent.name, agent.id, "nobody"):
            for key, status in (("", 401), ("Bearer wrong", 401)):
                response = await http.post(
                    f"/mcp/{quote(path)}", json=request, headers={"authorization": key}
                )
                assert response.status_code == status
                assert response.headers["www-authenticate"] == "Bearer"
            response = await http.post(
                f"/mcp/{quote(path)}", json=request, headers={"x-api-key": other_project_key}
            )
            assert response.status_code == 404


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"{", 400), (b"[]", 400), (b"{}", 400), (b" " * 5_000_000, 413)],
)
async def test_bad_body_is_refused(
    system: System, http: httpx2.AsyncClient, body: bytes, status: int
) -> None:
    agent = await ada(system)
    headers = {
        "accept": "application/json, text/event-stream",
        "content-type": "application/json",
    }
    response = await http.post(f"/mcp/{quote(agent.name)}", content=body, headers=headers)
    assert response.status_code == status, response.text


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_there_is_no_stream_or_session_outside_of_requests(
    system: System, method: str
) -> None:
    agent = await system.make_agent()
    headers = {"authorization": f"Bearer {system.key}", "accept": "text/event-stream"}
    async with httpx2.AsyncClient(headers=headers, timeout=20) as http:
        response = await http.request(method, f"{system.http_url}/mcp/{agent.id}")
    assert (response.status_code, response.headers["allow"]) == (405, "POST")
