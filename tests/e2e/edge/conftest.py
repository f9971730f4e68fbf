"""One running Strata for the folder, two tenants in it, and a look into its database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg
import pytest
import pytest_asyncio

from faults.live import Client, Live, ModelThread
from strata.api.agent_loop.v1 import agent_service_pb2
from strata.api.archival.v1 import passage_service_pb2
from strata.api.core_memory.v1 import block_service_pb2, file_service_pb2
from strata.api.gateway.v1 import admin_service_pb2
from strata.gateway.bootstrap import ensure_local_project
from strata.gateway.settings import GatewaySettings

SCHEMAS = ("gateway", "agent_loop", "core_memory", "recall", "archival", "tool_execution")
_NEXT_WRITE = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text"
_UNFINISHED = """
    SELECT (SELECT count(*) FROM archival.passages WHERE indexed_revision < revision)
         + (SELECT count(*) FROM core_memory.files WHERE state IN ('parsing', 'indexing'))
         + (SELECT count(*) FROM core_memory.dropped_files)
         + (SELECT count(*) FROM archival.reindexes WHERE NOT cleaned AND phase <> 'switched')
         + (SELECT count(*) FROM recall.messages WHERE index_state = 'pending')
         + (SELECT count(*) FROM recall.forgotten_agents WHERE NOT swept)
"""
# What the index has to forget, for some minutes: also an agent whose creation was refused.
_KEPT_FOR_THE_INDEX = frozenset({("recall", "forgotten_agents")})


@pytest.fixture(scope="package")
def model() -> Iterator[ModelThread]:
    """The chat model; it must never have been asked wrongly."""
    with ModelThread() as thread:
        yield thread
        assert thread.server.violations == []


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def live(session_folder: Path, model: ModelThread) -> AsyncIterator[Live]:
    """A running Strata."""
    strata = Live(session_folder / "edge", model.url)
    await strata.start()
    yield strata
    await strata.stop()
    # Whatever it was given, nothing in it may have been taken by surprise.
    assert "Traceback" not in strata.output(), strata.output()


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def client(live: Live) -> AsyncIterator[Client]:
    """A client of the first project, with every scope."""
    async with live.client() as each:
        yield each


@dataclass(frozen=True)
class Tenant:
    """A project with something of every kind in it.

    Attributes:
        key: An API key of it.
        ids: An id of each kind.
    """

    key: str = field(repr=False)
    ids: Mapping[str, str]


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def stranger(live: Live, client: Client) -> Tenant:
    """Another project, made through the API; its project and key are another organisation's.

    (An administrator may see the projects and keys of the whole organisation.)
    """
    made = await client.admin.CreateProject(
        admin_service_pb2.CreateProjectRequest(name="stranger"), **client.call
    )
    key = await client.admin.CreateApiKey(
        admin_service_pb2.CreateApiKeyRequest(project_id=made.project.id, name="stranger"),
        **client.call,
    )
    async with Client(live.runtime.address, key.secret) as other:
        ids = await _furnish(other)
    foreign = await ensure_local_project(_gateway_settings(live), organization="elsewhere")
    async with Client(live.runtime.address, foreign.api_key) as other:
        who = await other.admin.WhoAmI(admin_service_pb2.WhoAmIRequest(), **other.call)
    return Tenant(key.secret, {**ids, "project": foreign.project_id, "key": who.api_key.id})


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def ids(client: Client) -> Mapping[str, str]:
    """An id of each kind in the client's own project."""
    return await _furnish(client)


async def _furnish(client: Client) -> dict[str, str]:
    agent = await client.new_agent()
    conversation = await client.agents.CreateConversation(
        agent_service_pb2.CreateConversationRequest(agent_id=agent.id), **client.call
    )
    turn = await client.send(agent.id, "hello")
    log = await client.log(agent.default_conversation_id)
    blocks = await client.blocks.ListBlocks(
        block_service_pb2.ListBlocksRequest(agent_id=agent.id), **client.call
    )
    inserted = await client.passages.InsertPassage(
        passage_service_pb2.InsertPassageRequest(
            agent_id=agent.id, passage=passage_service_pb2.NewPassage(text="A secret.")
        ),
        **client.call,
    )
    folder = await client.files.CreateFolder(
        file_service_pb2.CreateFolderRequest(name="notes"), **client.call
    )
    header = file_service_pb2.UploadFileHeader(folder_id=folder.folder.id, name="secrets.txt")
    uploaded = await client.files.UploadFile(
        iter(
            [
                file_service_pb2.UploadFileRequest(header=header),
                file_service_pb2.UploadFileRequest(chunk=b"A secret.\n"),
            ]
        ),
        **client.call,
    )
    await client.files.AttachFolder(
        file_service_pb2.AttachFolderRequest(agent_id=agent.id, folder_id=folder.folder.id),
        **client.call,
    )
    return {
        "agent": agent.id,
        "conversation": conversation.conversation.id,
        "run": turn.run_id,
        "message": log[-1].id,
        "block": blocks.blocks[0].id,
        "passage": inserted.passage.id,
        "archive": inserted.passage.archive_id,
        "folder": folder.folder.id,
        "file": uploaded.file.id,
    }


def _gateway_settings(live: Live) -> GatewaySettings:
    passwords = live.folder.role_passwords("gateway")
    at = live.admin_url.partition("@")[2]
    return GatewaySettings(
        database_url=f"postgresql://strata_gateway:{passwords.service}@{at}",
        worker_database_url=f"postgresql://strata_gateway_worker:{passwords.worker}@{at}",
        key_pepper=live.folder.secret("key-pepper"),
    )


class Store:
    """The database of a running Strata, as its superuser sees it."""

    def __init__(self, connection: asyncpg.Connection, query: str) -> None:
        self._connection = connection
        self._query = query
        self._seen: tuple[int, dict[str, tuple[int, int]]] = (0, {})

    async def state(self) -> dict[str, tuple[int, int]]:
        """Table to its number of rows and a sum over what is in them.

        Read again only if a transaction has written, or tried to, since the last time.
        """
        writes = int(await self._connection.fetchval(_NEXT_WRITE))
        if writes != self._seen[0]:
            rows = await self._connection.fetch(self._query)
            self._seen = writes, {row["name"]: (row["rows"], int(row["sum"])) for row in rows}
        return self._seen[1]

    @asynccontextmanager
    async def untouched(self) -> AsyncIterator[None]:
        """Asserts that the block changes nothing that is stored."""
        await self._rest()
        before = await self.state()
        yield
        after = await self.state()
        assert {name: after[name] for name in after if after[name] != before.get(name)} == {}

    async def _rest(self) -> None:
        """Waits for what is done behind an answer: what is to be indexed is so later."""
        while await self._connection.fetchval(_UNFINISHED):
            await asyncio.sleep(0.02)


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def store(live: Live, ids: object, stranger: object) -> AsyncIterator[Store]:
    """The database, with what both tenants have in it."""
    connection = await asyncpg.connect(live.admin_url)
    try:
        tables = await connection.fetch(
            "SELECT schemaname, tablename FROM pg_tables WHERE schemaname = ANY($1)", SCHEMAS
        )
        assert {row["schemaname"] for row in tables} >= set(SCHEMAS)
        query = " UNION ALL ".join(
            f"SELECT '{s}.{t}' AS name, count(*) AS rows,"
            f" coalesce(sum(hashtextextended(r::text, 0)), 0) AS sum FROM {s}.{t} r"
            for s, t in tables
            if (s, t) not in _KEPT_FOR_THE_INDEX
        )
        yield Store(connection, query)
    finally:
        await connection.close()
