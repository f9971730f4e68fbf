"""Changes of an MCP server while another process stores its tools, or a sign-in to it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from gates import gate, waiting_sessions
from strata.protocol.errors import NotFoundError, Reason, ResourceExhaustedError
from strata.shared.db import Database
from strata.shared.idempotency.keys import RequestKey
from strata.shared.ids import new_id
from strata.tool_execution.domain.mcp import (
    MAX_SERVERS,
    CompletedSignIn,
    McpServer,
    OAuthClient,
    ReportedTool,
    Transport,
)
from strata.tool_execution.store import PostgresMcpStore, PostgresSignInStore, PostgresToolStore
from tool_records import NOTHING, custom

URL = "https://server.example/mcp"
SIGNED = CompletedSignIn("key-1", datetime(2026, 1, 1, tzinfo=UTC), "https://issuer.example")


async def added(
    store: PostgresMcpStore, oauth: OAuthClient | None = None, *, name: str = "vault"
) -> McpServer:
    made = McpServer(new_id("mcp_server"), name, Transport.STREAMABLE_HTTP, url=URL, oauth=oauth)
    return await store.add(made, RequestKey())


@pytest.mark.parametrize("is_known", [False, True])
async def test_a_tool_that_is_stored_meanwhile_is_deleted_with_its_server(
    is_known: bool, database: Database, urls: Any
) -> None:
    store = PostgresMcpStore(database)
    server = await added(store)
    if is_known:
        await store.sync(server.id, [ReportedTool("open", "vault__open", "Opens it.")])
    of_server = f"NEW.mcp_server_id = '{server.id}'"
    async with gate(urls.admin_url, "tool_execution.tools", "INSERT", of_server) as connection:
        reported = [ReportedTool("open", "vault__open", "Opens it."), ReportedTool("a", "vault__a")]
        storing = asyncio.create_task(store.sync(server.id, reported))
        await waiting_sessions(connection, 1)
        deleting = asyncio.create_task(store.delete(server.id))
        await waiting_sessions(connection, 2)
    await storing
    await deleting
    assert await store.usable(server.id) == []
    # Its name is free again.
    await PostgresToolStore(database).upsert(custom("vault__open"), NOTHING)
    with pytest.raises(NotFoundError) as caught:
        await store.sync(server.id, reported)
    assert caught.value.reason is Reason.MCP_SERVER_NOT_FOUND


async def test_a_change_of_the_url_deletes_the_tokens_of_a_sign_in_that_ends_meanwhile(
    database: Database, urls: Any
) -> None:
    servers, sign_ins = PostgresMcpStore(database), PostgresSignInStore(database)
    server = await added(servers, OAuthClient())
    await sign_ins.put(server.id, b"1", SIGNED)
    table = "tool_execution.mcp_tokens"
    async with gate(urls.admin_url, table, "INSERT", "true") as connection:
        signing_in = asyncio.create_task(sign_ins.put(server.id, b"2", SIGNED))
        await waiting_sessions(connection, 1)
        moved = replace(server, url="https://other.example/mcp")
        changing = asyncio.create_task(servers.update(moved))
        await waiting_sessions(connection, 2)
    await signing_in
    await changing
    assert await sign_ins.get(server.id) is None


async def test_concurrent_additions_do_not_exceed_the_maximum(
    database: Database, urls: Any
) -> None:
    store = PostgresMcpStore(database)
    for number in range(MAX_SERVERS - 1):
        await added(store, name=f"server_{number}")
    async with gate(urls.admin_url, "tool_execution.mcp_servers", "INSERT", "true") as connection:
        additions = [asyncio.create_task(added(store, name=name)) for name in ("one", "two")]
        await waiting_sessions(connection, 2)
    outcomes = await asyncio.gather(*additions, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes].count(ResourceExhaustedError) == 1
    assert len(await store.page("", 2 * MAX_SERVERS)) == MAX_SERVERS
