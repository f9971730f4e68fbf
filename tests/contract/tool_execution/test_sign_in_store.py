"""The contract of `SignInStore`, on PostgreSQL, and tokens that two replicas renew at once."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from callers import as_project
from contract.tool_execution.conftest import SCOPES
from doubles.sign_in_server import SignInServer
from mcp_support import serving_http
from strata.protocol.errors import NotFoundError, ResourceExhaustedError
from strata.shared import context
from strata.shared.clock import SystemClock
from strata.shared.db import Database
from strata.shared.idempotency.keys import RequestKey
from strata.shared.ids import new_id
from strata.shared.secrets import Envelope
from strata.shared.web.resolver import SystemResolver
from strata.shared.web.url_guard import Guard
from strata.tool_execution.custom.secrets import SecretBox
from strata.tool_execution.domain.mcp import CompletedSignIn, McpServer, OAuthClient, Transport
from strata.tool_execution.domain.mcp_sign_in import MAX_PENDING, RegisteredClient, Tokens
from strata.tool_execution.mcp.http import GuardedTransport
from strata.tool_execution.mcp.sign_in import NoTokenError, SignIns
from strata.tool_execution.store import PostgresMcpStore, PostgresSignInStore

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = datetime(2126, 1, 1, tzinfo=UTC)
SIGNED = CompletedSignIn("key-1", NOW, "https://issuer.example")
URL = "https://server.example/mcp"


@pytest.fixture
def store(database: Database) -> PostgresSignInStore:
    return PostgresSignInStore(database)


@pytest.fixture
async def server(database: Database) -> McpServer:
    made = McpServer(
        new_id("mcp_server"), "vault", Transport.STREAMABLE_HTTP, url=URL, oauth=OAuthClient()
    )
    return await PostgresMcpStore(database).add(made, RequestKey())


async def test_a_pending_sign_in_is_used_once_and_in_time(
    store: PostgresSignInStore, server: McpServer
) -> None:
    await store.begin(server.id, "one", b"sealed", LATER)
    await store.begin(server.id, "old", b"sealed", NOW)
    assert await store.take(server.id, "other") is None
    assert await store.take(new_id("mcp_server"), "one") is None
    with context.use(as_project(scopes=SCOPES)):
        assert await store.take(server.id, "one") is None
    assert await store.take(server.id, "one") == b"sealed"
    assert await store.take(server.id, "one") is None
    assert await store.take(server.id, "old") is None
    with pytest.raises(NotFoundError):
        await store.begin(new_id("mcp_server"), "two", b"", LATER)


async def test_pending_sign_ins_are_limited(store: PostgresSignInStore, server: McpServer) -> None:
    await store.begin(server.id, "old", b"", NOW)
    for number in range(MAX_PENDING):
        await store.begin(server.id, str(number), b"", LATER)
    with pytest.raises(ResourceExhaustedError):
        await store.begin(server.id, "one more", b"", LATER)
    await store.take(server.id, "0")
    await store.begin(server.id, "one more", b"", LATER)


async def test_tokens_and_the_sign_in_state_are_stored_together(
    store: PostgresSignInStore, database: Database, server: McpServer
) -> None:
    servers = PostgresMcpStore(database)
    assert await store.get(server.id) is None
    async with store.renewing(server.id) as renewal:
        assert renewal is None
    await store.put(server.id, b"1", SIGNED)
    first = await store.get(server.id)
    assert first is not None
    assert (await servers.get(server.id)).sign_in == SIGNED
    async with store.renewing(server.id) as renewal:
        assert renewal is not None
        assert renewal.current == first
        assert (await renewal.put(b"2")).version == first.version + 1
    async with store.renewing(server.id) as renewal:
        assert renewal is not None
        await renewal.require_sign_in("revoked")
    kept = await store.get(server.id)
    assert kept is not None
    assert (kept.sealed, kept.problem) == (b"2", "revoked")
    [listed] = await servers.page("", 5)
    assert listed.sign_in is not None
    assert listed.sign_in.problem == "revoked"
    with context.use(as_project(scopes=SCOPES)):
        assert await store.get(server.id) is None
        await store.forget(server.id)
        with pytest.raises(NotFoundError):
            await store.put(server.id, b"3", SIGNED)
    await store.put(server.id, b"3", SIGNED)
    kept = await store.get(server.id)
    assert kept is not None
    assert kept.problem == ""
    await servers.delete(server.id)
    assert await store.get(server.id) is None


@asynccontextmanager
async def replica(urls: Any, envelope: Envelope) -> AsyncIterator[SignIns]:
    """The sign-ins as another process opens them."""
    database, resolver = Database(urls.service_url), SystemResolver()
    guard = Guard(resolver, private_networks=["127.0.0.0/8"], ports=range(1, 65536))
    trusting = ssl.create_default_context()
    yield SignIns(
        PostgresMcpStore(database),
        PostgresSignInStore(database),
        SecretBox(envelope),
        lambda: GuardedTransport(guard, 1 << 20, trusting),
        SystemClock(),
        10.0,
    )
    resolver.close()
    await database.close()


async def test_two_replicas_that_renew_concurrently_send_one_request(
    urls: Any, store: PostgresSignInStore, server: McpServer
) -> None:
    envelope = Envelope({"key": os.urandom(32)})
    authority = SignInServer(clients={"us": ""}, refreshing={"first"})
    async with (
        serving_http(authority.app()) as issuer,
        replica(urls, envelope) as one,
        replica(urls, envelope) as two,
    ):
        old = Tokens(
            access="ended",
            server_url=URL,
            issuer=issuer,
            token_endpoint=f"{issuer}/token",
            client=RegisteredClient("us"),
            resource=URL,
            refresh="first",
            expire_time=0.0,
        )
        await store.put(server.id, one._sealed(server.id, old), SIGNED)
        tokens = await asyncio.gather(*(sign_ins.token(server) for sign_ins in (one, two) * 4))
        assert {token.access for token in tokens} == set(authority.issued)
        assert [form["refresh_token"] for form in authority.asked] == ["first"]
        # The newer refresh token is stored, too.
        newer = await two.token(server, refused=tokens[0].access)
        assert newer.access == authority.issued[-1] != tokens[0].access
    async with replica(urls, Envelope({"other": os.urandom(32)})) as stranger:
        with pytest.raises(NoTokenError, match="sign in to it again"):
            await stranger.token(server)
