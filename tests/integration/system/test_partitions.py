"""Projects on two partitions, each a PostgreSQL server of its own."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from doubles.script import Call, Reply, say
from polling import eventually
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.common.v1 import run_event_pb2 as event_pb
from strata.api.common.v1 import search_pb2 as search_pb
from strata.api.core_memory.v1 import block_service_pb2 as block_pb
from strata.api.core_memory.v1 import file_service_pb2 as file_pb
from strata.api.gateway.v1 import admin_service_pb2 as admin_pb
from strata.api.recall.v1 import message_index_service_pb2_grpc as message_index_grpc
from strata.archival.search.index import FILE_CHUNKS, PASSAGES
from strata.protocol.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    Reason,
    StrataError,
    UnavailableError,
)
from strata.recall.search.index import MESSAGES
from strata.shared.search.vectors.client import connect
from strata.shared.search.vectors.partition import PartitionIndex
from strata.shared.search.vectors.qdrant import QdrantIndex
from strata.standalone.postgres import EmbeddedPostgres
from strata.standalone.vectors import EmbeddedVectors
from uploading import make_folder, upload
from whole_system import Shape, System, SystemClient, open_system

pytestmark = pytest.mark.asyncio(loop_scope="session")

PARTITION = "p1"
_TABLES = """
    SELECT format('%I.%I', table_schema, table_name) FROM information_schema.columns
     WHERE column_name = 'project_id' AND table_schema = $1
"""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def second_server(engine_folder: Path) -> AsyncIterator[EmbeddedPostgres]:
    server = EmbeddedPostgres(
        engine_folder / "postgres-of-p1",
        settings={"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"},
    )
    await server.start()
    yield server
    await server.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def partitioned(
    databases: Any, second_server: EmbeddedPostgres, vectors: EmbeddedVectors
) -> AsyncIterator[System]:
    further = {PARTITION: type(databases)(second_server)}
    async with open_system(
        databases, vectors, Shape.IN_PROCESS, further, project_partitions=("default", PARTITION)
    ) as system:
        yield system


@pytest.fixture
def system(partitioned: System) -> System:
    partitioned.model.reset()
    return partitioned


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def placed(partitioned: System) -> AsyncIterator[SystemClient]:
    """A client with a key of a project on the second server."""
    client = partitioned.client(await partitioned.key_of_other_project(PARTITION))
    yield client
    await client.channel.close()


async def project_of(client: SystemClient) -> admin_pb.Project:
    described = await client.admin.WhoAmI(admin_pb.WhoAmIRequest())
    project: admin_pb.Project = described.project
    return project


async def rows(urls: dict[str, Any], project_id: str) -> Counter[str]:
    """Returns the rows of a project in the tables of the services, without empty ones."""
    counts: Counter[str] = Counter()
    for service, database in urls.items():
        connection = await asyncpg.connect(database.admin_url)
        try:
            for (table,) in await connection.fetch(_TABLES, service):
                query = f"SELECT count(*) FROM {table} WHERE project_id = $1"
                counts[table] = await connection.fetchval(query, project_id)
        finally:
            await connection.close()
    return +counts


async def converse(system: System, client: SystemClient, fact: str) -> agent_pb.Agent:
    """Runs a turn that changes every tier, one that searches them, a compaction and a last turn."""
    agent = await client.make_agent()
    system.model.script(
        Reply(
            calls=(
                Call("memory_insert", {"label": "human", "new_str": f"Likes {fact}."}),
                Call("archival_memory_insert", {"content": f"They told me about {fact}."}),
            )
        ),
        say("Noted."),
        Reply(
            calls=(
                Call("archival_memory_search", {"query": fact}),
                Call("conversation_search", {"query": fact}),
            )
        ),
        say("You like it."),
    )
    await client.send(agent, f"I like {fact}.")
    ran = await client.send(agent, "What do I like?")
    returns = [json.loads(part.tool_return.content) for part in ran.messages[1].parts]
    assert [tool_return["status"] for tool_return in returns] == ["OK", "OK"]
    assert all(fact in json.dumps(tool_return) for tool_return in returns), returns
    system.model.respond(lambda _: say(f"They like {fact}."))
    compacting = agent_pb.CompactConversationRequest(agent_id=agent.id)
    await client.agents.CompactConversation(compacting)
    after = await client.send(agent, "Go on.")
    assert after.finished.stop_reason == event_pb.STOP_REASON_END_TURN
    assert fact in (await client.block(agent, "human")).value
    return agent


async def test_rows_and_vectors_of_a_project_are_on_its_partition_only(
    system: System, placed: SystemClient, vectors: EmbeddedVectors
) -> None:
    first, second = await project_of(system), await project_of(placed)
    assert (first.partition, second.partition) == ("default", PARTITION)
    await converse(system, system, "rowing")
    await converse(system, placed, "sailing")
    folder = await make_folder(placed)
    file = await upload(placed, folder.id, "boats.txt", b"A sloop has one mast.")

    of_first = await rows(system.urls, first.id)
    of_second = await rows(system.partition_urls[PARTITION], second.id)
    assert of_first["gateway.runs"] == of_second["gateway.runs"] == 3
    memory_tables = ("core_memory.blocks", "recall.messages", "archival.passages")
    for table in ("agent_loop.agents", *memory_tables):
        assert of_first[table], table
        assert of_second[table], table
    # Tables that are read before the partition of a caller is known.
    assert set(await rows(system.urls, second.id)) == {"gateway.projects", "gateway.api_keys"}
    assert await rows(system.partition_urls[PARTITION], first.id) == Counter()

    engine = QdrantIndex(connect(vectors.url, vectors.api_key))
    own = PartitionIndex(engine, PARTITION)

    try:
        for collection in (PASSAGES, MESSAGES, FILE_CHUNKS):
            await eventually(partial(own.count, collection, second.id))
            assert await engine.count(collection, second.id) == 0
        for collection in (PASSAGES, MESSAGES):
            await eventually(partial(engine.count, collection, first.id))
            assert await own.count(collection, first.id) == 0
    finally:
        await engine.close()
    read = await placed.files.GetFile(file_pb.GetFileRequest(file_id=file.id))
    assert read.file.line_count == 1


async def test_keys_do_not_see_projects_of_other_partitions(
    system: System, placed: SystemClient
) -> None:
    agent, other = await system.make_agent(), await placed.make_agent()

    for client, hidden in ((placed, agent), (system, other)):
        with pytest.raises(NotFoundError):
            await client.agents.GetAgent(agent_pb.GetAgentRequest(agent_id=hidden.id))
        with pytest.raises(NotFoundError):
            await client.blocks.GetBlock(
                block_pb.GetBlockRequest(agent_id=hidden.id, label="human")
            )
        listed = (await client.agents.ListAgents(agent_pb.ListAgentsRequest())).agents
        assert hidden.id not in {agent.id for agent in listed}


async def test_projects_of_other_partitions_work_while_one_server_is_down(
    system: System, placed: SystemClient, second_server: EmbeddedPostgres
) -> None:
    agent, affected = await system.make_agent(), await placed.make_agent()
    shown = asyncio.Event()
    system.model.script(Reply("Hello, indeed.", piece=1, held=shown))
    interrupted = placed.begin(affected, "Hello.")
    await interrupted.until("step_started")
    system.model.respond(lambda _: say("Here."))
    await second_server.stop()
    shown.set()
    try:
        ran = await system.send(agent, "Are you there?")
        assert ran.finished.stop_reason == event_pb.STOP_REASON_END_TURN
        for call in (placed.block(affected, "human"), placed.send(affected, "And you?")):
            with pytest.raises(UnavailableError) as raised:
                await call
            assert raised.value.metadata["dependency"] == "postgres"
        again = await system.send(agent, "Still?")
        assert again.finished.stop_reason == event_pb.STOP_REASON_END_TURN
    finally:
        await second_server.start()
    ended = await interrupted.rest()
    assert ended.finished.stop_reason == event_pb.STOP_REASON_END_TURN
    after = await placed.send(affected, "And you?")
    assert after.finished.stop_reason == event_pb.STOP_REASON_END_TURN


async def test_projects_on_a_partition_that_services_do_not_have_fail_clearly(
    system: System,
) -> None:
    client = system.client(await system.key_of_other_project())
    connection = await asyncpg.connect(system.urls["gateway"].admin_url)
    try:
        project = await project_of(client)
        # As if the setting had been lost: the gateway keeps the stored value.
        move = "UPDATE gateway.projects SET partition = 'gone' WHERE project_id = $1"
        await connection.execute(move, project.id)
        made = system.client(await key_of(system, project.id))
        try:
            with pytest.raises(FailedPreconditionError) as raised:
                await made.make_agent()
        finally:
            await made.channel.close()
    finally:
        await connection.close()
        await client.channel.close()
    assert raised.value.reason is Reason.PARTITION_NOT_CONFIGURED
    assert raised.value.metadata["partition"] == "gone"


async def key_of(system: System, project_id: str) -> str:
    operator = system.client(system.organization_key)
    try:
        request = admin_pb.CreateApiKeyRequest(
            project_id=project_id, name="another", scopes=["read", "write", "run"]
        )
        return str((await operator.admin.CreateApiKey(request)).secret)
    finally:
        await operator.channel.close()


async def test_new_projects_are_placed_on_the_partition_with_the_fewest(system: System) -> None:
    operator = system.client(system.organization_key)
    try:
        names = [f"placed {number}" for number in range(4)]
        made = [
            (await operator.admin.CreateProject(admin_pb.CreateProjectRequest(name=name))).project
            for name in names
        ]
        with pytest.raises(InvalidArgumentError) as raised:
            await operator.admin.CreateProject(
                admin_pb.CreateProjectRequest(name="placed elsewhere", partition="p9")
            )
        repeated = admin_pb.CreateProjectRequest(
            request_id="place-once", name="placed once", partition=PARTITION
        )
        once = (await operator.admin.CreateProject(repeated)).project
        assert (await operator.admin.CreateProject(repeated)).project == once
        repeated.partition = "default"
        with pytest.raises(StrataError) as reused:
            await operator.admin.CreateProject(repeated)
    finally:
        await operator.channel.close()
    counts = Counter(project.partition for project in made)
    assert counts.keys() == {"default", PARTITION}
    assert [violation.field for violation in raised.value.violations] == ["partition"]
    assert reused.value.reason is Reason.REQUEST_ID_REUSED


async def test_operators_rebuild_the_indexes_of_one_partition(
    system: System, vectors: EmbeddedVectors
) -> None:
    operator = system.client(system.organization_key)
    index = message_index_grpc.MessageIndexServiceStub(operator.channel)
    engine = QdrantIndex(connect(vectors.url, vectors.api_key))
    try:
        asked = search_pb.GetIndexRequest(collection="messages")
        before = (await index.GetIndex(asked)).index
        request = search_pb.StartReindexRequest(collection="messages", partition=PARTITION)
        started = (await index.StartReindex(request)).reindex
        assert not (await index.GetIndex(asked)).index.HasField("reindex")
        asked.partition = PARTITION

        async def serves() -> bool:
            rebuild = (await index.GetIndex(asked)).index.reindex
            assert rebuild.id == started.id
            return bool(rebuild.phase == search_pb.REINDEX_PHASE_SWITCHED)

        await eventually(serves)
        own = PartitionIndex(engine, PARTITION)
        assert len(await own.generations(MESSAGES)) == 2
        after = (await index.GetIndex(asked)).index
        assert after.generation != before.generation
        assert after.generation not in await engine.generations(MESSAGES)
        asked.partition = "p9"
        with pytest.raises(InvalidArgumentError, match="partition"):
            await index.GetIndex(asked)
    finally:
        await engine.close()
        await operator.channel.close()
