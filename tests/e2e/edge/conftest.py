"""One running Strata with two tenants, and access to its database."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from faults.live import Client, Live, ModelThread
from prepared_folder import copy_prepared_folder
from strata.api.agent_loop.v1 import agent_service_pb2, group_service_pb2, group_service_pb2_grpc
from strata.api.archival.v1 import passage_service_pb2
from strata.api.common.v1 import message_pb2, tool_pb2
from strata.api.core_memory.v1 import block_service_pb2, file_service_pb2
from strata.api.gateway.v1 import admin_service_pb2 as pb
from strata.api.gateway.v1 import (
    run_service_pb2,
    schedule_service_pb2,
    schedule_service_pb2_grpc,
    webhook_service_pb2,
    webhook_service_pb2_grpc,
)
from strata.api.tool_execution.v1 import (
    mcp_service_pb2,
    mcp_service_pb2_grpc,
    tool_service_pb2,
    tool_service_pb2_grpc,
)
from strata.shared.scopes import OrganizationScope, Scope

SCHEMAS = ("gateway", "agent_loop", "core_memory", "recall", "archival", "tool_execution")
_NEXT_WRITE = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text"
_UNFINISHED = """
    SELECT (SELECT count(*) FROM archival.passages WHERE indexed_revision < revision)
         + (SELECT count(*) FROM core_memory.files WHERE state IN ('parsing', 'indexing'))
         + (SELECT count(*) FROM core_memory.dropped_files)
         + (SELECT count(*) FROM archival.reindexes WHERE NOT cleaned AND phase <> 'switched')
         + (SELECT count(*) FROM recall.messages WHERE index_state = 'pending')
         + (SELECT count(*) FROM recall.forgotten_agents WHERE NOT swept)
         + (SELECT count(*) FROM gateway.agent_deletions)
"""
# Rows that change after an answer was sent: deletions that the index has yet to apply, for some
# minutes (also of an agent whose creation was refused), creations that were refused, for the same
# time, and attempts of deliveries to a receiver that does not exist.
_CHANGED_BEHIND_ANSWERS = frozenset(
    {
        ("recall", "forgotten_agents"),
        ("gateway", "agent_creations"),
        ("gateway", "webhook_deliveries"),
    }
)


@pytest.fixture(scope="package")
def model() -> Iterator[ModelThread]:
    """The chat model; it fails the tests at invalid requests."""
    with ModelThread() as thread:
        yield thread
        assert thread.server.violations == []


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def live(
    session_folder: Path, prepared_folder: Path, model: ModelThread
) -> AsyncIterator[Live]:
    """A running Strata."""
    copy_prepared_folder(prepared_folder, session_folder / "edge")
    strata = Live(session_folder / "edge", model.url)
    await strata.start()
    yield strata
    await strata.stop()
    # No request of these tests may cause an unhandled exception.
    assert "Traceback" not in strata.log, strata.log


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def client(live: Live) -> AsyncIterator[Client]:
    """A client of the first project, with every scope."""
    async with live.client() as live_client:
        yield live_client


@dataclass(frozen=True)
class Tenant:
    """A project with an object of every kind.

    Attributes:
        key: An API key of it, with every scope.
        ids: An id of each kind.
        mark: A text that occurs in every text of it.
    """

    key: str = field(repr=False)
    ids: Mapping[str, str]
    mark: str


@dataclass(frozen=True)
class Attacker:
    """A key with all scopes of its kind, of another project or organization.

    Attributes:
        metadata: Of its calls.
        ids: Ids of its own objects, by kind.
    """

    metadata: Sequence[tuple[str, str]] = field(repr=False)
    ids: Mapping[str, str] = field(default_factory=dict)


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def stranger(live: Live, client: Client) -> Tenant:
    """Another project of the same organization."""
    mark = f"mark-{uuid.uuid4().hex}"
    project_id, key_id, secret = await new_project(client, mark, client.as_organization)
    async with Client(live.runtime.address, secret) as other:
        ids = await furnish(other, mark)
    return Tenant(secret, {**ids, "project": project_id, "key": key_id}, mark)


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def attackers(
    client: Client, ids: Mapping[str, str], stranger: Tenant
) -> Mapping[str, Attacker]:
    """Keys with all scopes that must not reach the project of `stranger`."""
    made = await client.admin.CreateOrganization(
        pb.CreateOrganizationRequest(name="elsewhere"), **client.as_organization
    )
    key = await client.admin.CreateOrganizationKey(
        pb.CreateOrganizationKeyRequest(
            organization_id=made.organization.id,
            name="elsewhere",
            # An administrator of the installation has access to every organization, but to no data.
            scopes=set(OrganizationScope) - {OrganizationScope.INSTALLATION},
        ),
        **client.as_organization,
    )
    elsewhere = (("authorization", f"Bearer {key.secret}"),)
    _, _, secret = await new_project(client, "elsewhere", {"metadata": elsewhere, "timeout": 60})
    return {
        "a project of the same organization": Attacker(client.metadata, ids),
        "a project of another organization": Attacker((("x-api-key", secret),)),
        "another organization": Attacker(elsewhere),
    }


async def new_project(
    client: Client, name: str, as_organization: Mapping[str, Any]
) -> tuple[str, str, str]:
    """Creates a project and a key with all scopes; returns both ids and the secret."""
    made = await client.admin.CreateProject(pb.CreateProjectRequest(name=name), **as_organization)
    key = await client.admin.CreateApiKey(
        pb.CreateApiKeyRequest(project_id=made.project.id, name=name, scopes=list(Scope)),
        **as_organization,
    )
    return made.project.id, key.api_key.id, key.secret


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def ids(client: Client) -> Mapping[str, str]:
    """An id of each kind in the client's own project, its organization included."""
    who = await client.admin.WhoAmI(pb.WhoAmIRequest(), **client.call)
    key = await client.admin.CreateApiKey(pb.CreateApiKeyRequest(name="own"), **client.call)
    return {
        **await furnish(client, "A secret."),
        "project": who.project.id,
        "organization": who.organization_id,
        "key": key.api_key.id,
    }


async def furnish(client: Client, mark: str, name: str = "") -> dict[str, str]:
    """Creates an object of every kind; `name` makes names unique in a project."""
    rule = tool_pb2.ToolRule(
        type=tool_pb2.TOOL_RULE_TYPE_REQUIRES_APPROVAL, tool_name="archival_memory_search"
    )
    human = block_service_pb2.NewBlock(label="human", value=mark)
    agent = await client.new_agent(name=mark, tool_rules=[rule], blocks=[human])
    conversation = await client.agents.CreateConversation(
        agent_service_pb2.CreateConversationRequest(agent_id=agent.id), **client.call
    )
    turn = await client.send(agent.id, f"hello {mark}")
    log = await client.log(agent.default_conversation_id)
    blocks = await client.blocks.ListBlocks(
        block_service_pb2.ListBlocksRequest(agent_id=agent.id), **client.call
    )
    await client.send(agent.id, f"search {mark}", conversation_id=conversation.conversation.id)
    waiting = await client.runs.ListApprovals(
        run_service_pb2.ListApprovalsRequest(agent_id=agent.id), **client.call
    )
    inserted = await client.passages.InsertPassage(
        passage_service_pb2.InsertPassageRequest(
            agent_id=agent.id, passage=passage_service_pb2.NewPassage(text=mark, tags=[mark])
        ),
        **client.call,
    )
    folder = await client.files.CreateFolder(
        file_service_pb2.CreateFolderRequest(name=f"notes {mark}"), **client.call
    )
    header = file_service_pb2.UploadFileHeader(folder_id=folder.folder.id, name="secrets.txt")
    uploaded = await client.files.UploadFile(
        iter(
            [
                file_service_pb2.UploadFileRequest(header=header),
                file_service_pb2.UploadFileRequest(chunk=f"{mark}\n".encode()),
            ]
        ),
        **client.call,
    )
    await client.files.AttachFolder(
        file_service_pb2.AttachFolderRequest(agent_id=agent.id, folder_id=folder.folder.id),
        **client.call,
    )
    tools = tool_service_pb2_grpc.ToolServiceStub(client.channel)
    tool = await tools.UpsertTool(
        tool_service_pb2.UpsertToolRequest(
            type=tool_pb2.TOOL_TYPE_CLIENT,
            name=f"look_up{name}",
            description=mark,
            parameters_json='{"type": "object", "properties": {}, "required": []}',
        ),
        **client.call,
    )
    mcp = mcp_service_pb2_grpc.McpServiceStub(client.channel)
    server = await mcp.AddMcpServer(
        mcp_service_pb2.AddMcpServerRequest(
            server=mcp_service_pb2.McpServer(
                name=f"far{name}",
                transport=mcp_service_pb2.MCP_TRANSPORT_STREAMABLE_HTTP,
                url="https://mcp.invalid/mcp",
            )
        ),
        **client.call,
    )
    schedules = schedule_service_pb2_grpc.ScheduleServiceStub(client.channel)
    schedule = await schedules.CreateSchedule(
        schedule_service_pb2.CreateScheduleRequest(
            name=mark[:100],
            agent_id=agent.id,
            # It is not due before all tests have ended.
            cron="0 0 1 1 *",
            messages=[
                message_pb2.MessageInput(
                    parts=[message_pb2.Part(text=message_pb2.TextPart(text=mark))]
                )
            ],
        ),
        **client.call,
    )
    webhooks = webhook_service_pb2_grpc.WebhookServiceStub(client.channel)
    # For one finished run, whose end is delivered to a receiver that does not exist.
    webhook = await webhooks.CreateWebhook(
        webhook_service_pb2.CreateWebhookRequest(
            url=f"https://hook.example/{name or 'own'}", run_id=turn.run_id
        ),
        **client.call,
    )
    delivered = await webhooks.ListWebhookDeliveries(
        webhook_service_pb2.ListWebhookDeliveriesRequest(webhook_id=webhook.webhook.id),
        **client.call,
    )
    groups = group_service_pb2_grpc.GroupServiceStub(client.channel)
    group = await groups.CreateGroup(
        group_service_pb2.CreateGroupRequest(agent_ids=[agent.id], description=mark),
        **client.call,
    )
    return {
        "agent": agent.id,
        "group": group.group.id,
        "conversation": conversation.conversation.id,
        "run": turn.run_id,
        "message": log[-1].id,
        "block": blocks.blocks[0].id,
        "approval": waiting.approvals[0].request.approval_id,
        "passage": inserted.passage.id,
        "archive": inserted.passage.archive_id,
        "folder": folder.folder.id,
        "file": uploaded.file.id,
        "tool": tool.tool.id,
        "mcp_server": server.server.id,
        "schedule": schedule.schedule.id,
        "webhook": webhook.webhook.id,
        "delivery": delivered.deliveries[0].id,
    }


@dataclass(frozen=True)
class Table:
    """A table, and whether its rows belong to projects."""

    name: str
    has_project: bool


def _sum_of(table: Table) -> str:
    return (
        f"SELECT '{table.name}' AS name, count(*) AS rows,"
        f" coalesce(sum(hashtextextended(r::text, 0)), 0) AS sum FROM {table.name} r"
    )


class Store:
    """The database of a running Strata, as its superuser sees it."""

    def __init__(self, connection: asyncpg.Connection, tables: Sequence[Table]) -> None:
        self._connection = connection
        self._tables = tables
        self._query = " UNION ALL ".join(_sum_of(table) for table in tables)
        self._seen: tuple[int, dict[str, tuple[int, int]]] = (0, {})

    async def state(self) -> dict[str, tuple[int, int]]:
        """Returns the number of rows and a checksum for each table.

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
        await self.rest()
        before = await self.state()
        yield
        after = await self.state()
        assert {name: after[name] for name in after if after[name] != before.get(name)} == {}

    async def rows_of(self, project_id: str) -> dict[str, tuple[int, int]]:
        """Returns the number and a checksum of the rows of a project for each table."""
        query = " UNION ALL ".join(
            f"{_sum_of(table)} WHERE project_id = $1" for table in self._tables if table.has_project
        )
        rows = await self._connection.fetch(query, project_id)
        return {row["name"]: (row["rows"], int(row["sum"])) for row in rows}

    async def rest(self) -> None:
        """Waits for background work after an answer, such as indexing."""
        while await self._connection.fetchval(_UNFINISHED):
            await asyncio.sleep(0.02)


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def store(live: Live, ids: object, stranger: object) -> AsyncIterator[Store]:
    """The database with the data of both tenants."""
    connection = await asyncpg.connect(live.admin_url)
    try:
        rows = await connection.fetch(
            "SELECT schemaname, tablename, EXISTS (SELECT FROM information_schema.columns c"
            " WHERE c.table_schema = schemaname AND c.table_name = tablename"
            " AND c.column_name = 'project_id') AS has_project"
            " FROM pg_tables WHERE schemaname = ANY($1)",
            SCHEMAS,
        )
        assert {row["schemaname"] for row in rows} >= set(SCHEMAS)
        yield Store(
            connection,
            [
                Table(f"{row['schemaname']}.{row['tablename']}", row["has_project"])
                for row in rows
                if (row["schemaname"], row["tablename"]) not in _CHANGED_BEHIND_ANSWERS
            ],
        )
    finally:
        await connection.close()
