"""The contract of `AgentStore`, on PostgreSQL, and the deletion of old rows."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from callers import as_project
from strata.agent_loop.domain.agent.agents import (
    Agent,
    AgentFilter,
    AgentPatch,
    AgentState,
    CompactionSettings,
    Conversation,
    ListedAgent,
    MessagePackaging,
    ModelConfig,
)
from strata.agent_loop.domain.agent.tool_rules import ToolRule
from strata.agent_loop.store import Housekeeping, PostgresAgentStore
from strata.agent_loop.store import agents as agents_of_store
from strata.agent_loop.store.rows import to_agent
from strata.protocol.errors import AbortedError, AlreadyExistsError, NotFoundError, Reason
from strata.shared import context
from strata.shared.agent_types import AgentType
from strata.shared.db import Database, sql
from strata.shared.idempotency.keys import RequestKey
from strata.shared.ids import new_id
from strata.shared.tool_rules import ToolRuleType


@pytest.fixture
def store(database: Database) -> PostgresAgentStore:
    return PostgresAgentStore(database)


def agent(name: str = "Bo", **fields: Any) -> Agent:
    return Agent(new_id("agent"), name, AgentType.LETTA_V1, "Base.", **fields)


async def active(store: PostgresAgentStore, **fields: Any) -> Agent:
    made = await store.insert(agent(**fields), RequestKey())
    return await store.activate(made.agent.id)


async def test_a_stored_agent_is_returned_unchanged(store: PostgresAgentStore) -> None:
    full = agent(
        description="d",
        model=ModelConfig("a/b", 8000, 100, 0.5, True, "low", 10, True),
        tools=("z", "a"),
        tool_rules=(
            ToolRule(
                ToolRuleType.CONDITIONAL,
                "z",
                child_output_mapping={'ja \\u0000"': "a", "": "z"},
                default_child="a",
            ),
            ToolRule(
                ToolRuleType.CONSTRAIN_CHILD_TOOLS,
                "a",
                ("z", "a"),
                prefilled={"z": '{"b": 1, "a": 2}'},
            ),
            ToolRule(ToolRuleType.MAX_COUNT_PER_STEP, "a", max_count=3),
        ),
        tags=("x", "y"),
        timezone="Asia/Tokyo",
        metadata={"ключ": "värde"},
        max_files_open=7,
        per_file_view_window_char_limit=9,
        compaction=CompactionSettings(
            "m", "p", "all", 0.25, 10, ModelConfig(temperature=0.5, max_output_tokens=99), False
        ),
        packaging=MessagePackaging(True, 'Lis\u00fcbon "x"'),
    )
    stored = await store.insert(full, RequestKey("r", "h"))
    assert stored.state is AgentState.CREATING
    activated = await store.activate(full.id)

    for name in ("model", "tools", "tags", "metadata", "compaction", "timezone", "description"):
        assert getattr(activated, name) == getattr(full, name)
    assert activated == (await store.get(full.id)).agent
    assert activated == await store.load(full.id, full.default_conversation_id)


async def test_agent_in_creation_or_deletion_is_not_loaded_or_listed(
    store: PostgresAgentStore,
) -> None:
    made = (await store.insert(agent(), RequestKey())).agent
    with pytest.raises(NotFoundError):
        await store.load(made.id, made.default_conversation_id)
    assert list(await store.page(AgentFilter(), 10, "")) == []
    await store.activate(made.id)
    assert len(await store.page(AgentFilter(), 10, "")) == 1
    await store.begin_deletion(made.id)
    assert list(await store.page(AgentFilter(), 10, "")) == []
    with pytest.raises(NotFoundError):
        await store.activate(made.id)
    with pytest.raises(NotFoundError):
        await store.update(AgentPatch(made.id, name="x"), RequestKey())


async def test_agents_are_listed_by_ids_with_one_statement(
    store: PostgresAgentStore, database: Database
) -> None:
    first, second = await active(store), await active(store, name="Al", tags=("x",))
    unfinished = (await store.insert(agent("Cy"), RequestKey())).agent
    wanted = AgentFilter(agent_ids=(second.id, first.id, unfinished.id, new_id("agent")))
    before = database.statistics.statements
    assert await store.page(wanted, 10, "") == [first, second]
    assert database.statistics.statements - before == 1
    assert await store.page(wanted, 10, first.id) == [second]
    other_tag = AgentFilter(("x",), agent_ids=(first.id,))
    assert await store.page(other_tag, 10, "") == []
    with context.use(as_project()):
        assert await store.page(wanted, 10, "") == []


def as_listed(agent: Agent) -> ListedAgent:
    """Returns what a list by name shows of an agent."""
    assert agent.create_time is not None
    return ListedAgent(
        agent.id, agent.name, agent.description, agent.tends_agent_id, agent.create_time
    )


async def test_names_are_those_of_the_agents_that_are_listed(store: PostgresAgentStore) -> None:
    first, second = await active(store), await active(store, name="Al", tags=("x",))
    await store.insert(agent("Cy"), RequestKey())
    tending = await active(
        store, name="Di", description="Rewrites blocks.", tends_agent_id=first.id
    )
    named = [as_listed(one) for one in (first, second, tending)]
    assert await store.names(AgentFilter(), 10, "") == named
    assert await store.names(AgentFilter(), 1, first.id) == named[1:2]
    wanted = AgentFilter(("x",), "a", (first.id, second.id))
    assert await store.names(wanted, 10, "") == named[1:2]


async def test_agents_are_read_from_their_rows_beside_the_event_loop(
    store: PostgresAgentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = await active(store)
    read_on: list[int] = []

    def note(row: Mapping[str, Any]) -> Agent:
        read_on.append(threading.get_ident())
        return to_agent(row)

    monkeypatch.setattr(agents_of_store, "to_agent", note)
    assert await store.page(AgentFilter(), 10, "") == [listed]
    assert read_on
    assert threading.get_ident() not in read_on


async def test_concurrent_creations_with_one_request_id_create_one_agent(
    store: PostgresAgentStore,
) -> None:
    made = await asyncio.gather(
        *(store.insert(agent(f"Bo {n}"), RequestKey("r", "h")) for n in range(6))
    )
    assert len({stored.agent.id for stored in made}) == 1
    with pytest.raises(AlreadyExistsError) as raised:
        await store.insert(agent("Other"), RequestKey("r", "other"))
    assert raised.value.reason is Reason.REQUEST_ID_REUSED


async def test_loading_for_a_turn_is_one_statement(
    store: PostgresAgentStore, database: Database
) -> None:
    made = await active(store)
    before = database.statistics.statements
    await store.load(made.id, made.default_conversation_id)
    assert database.statistics.statements - before == 1


async def test_concurrent_updates_of_different_fields_are_all_stored(
    store: PostgresAgentStore,
) -> None:
    made = await active(store)
    await asyncio.gather(
        *(
            store.update(AgentPatch(made.id, metadata={f"k{n}": "v"}), RequestKey())
            for n in range(8)
        )
    )
    updated = (await store.get(made.id)).agent
    assert updated.revision == 9
    assert len(updated.metadata) == 8


async def test_repeated_update_gets_the_first_answer(store: PostgresAgentStore) -> None:
    made = await active(store)
    patch = AgentPatch(made.id, name="New", expected_revision=1)
    answers = await asyncio.gather(*(store.update(patch, RequestKey("u", "h")) for _ in range(4)))
    await store.update(AgentPatch(made.id, name="Newer"), RequestKey())
    answers.append(await store.update(patch, RequestKey("u", "h")))

    assert all(answer == answers[0] for answer in answers)
    assert answers[0].name == "New"
    with pytest.raises(AbortedError):
        await store.update(patch, RequestKey("v", "h"))


async def test_an_update_that_changes_nothing_keeps_the_revision(store: PostgresAgentStore) -> None:
    made = await active(store)
    patch = AgentPatch(
        made.id, name=made.name, system=made.system, model=made.model, tools=made.tools, metadata={}
    )
    assert await store.update(patch, RequestKey("u", "h")) == made
    assert (await store.get(made.id)).agent == made
    changed = await store.update(AgentPatch(made.id, name="New"), RequestKey())
    assert changed.revision == made.revision + 1
    assert await store.update(patch, RequestKey("u", "h")) == made, "the answer of the first"


async def test_conversations_belong_to_their_agent_and_project(store: PostgresAgentStore) -> None:
    made, other = await active(store), await active(store, name="Other")
    talk = Conversation(new_id("conversation"), made.id, "Work")
    stored = await store.insert_conversation(talk, RequestKey("c", "h"))
    assert await store.known_conversation(RequestKey("c", "h")) == stored
    assert len(await store.conversations(made.id, 10, "")) == 2
    with pytest.raises(NotFoundError) as raised:
        await store.load(other.id, talk.id)
    assert raised.value.reason is Reason.CONVERSATION_NOT_FOUND
    with context.use(as_project()):
        assert await store.known_conversation(RequestKey("c", "h")) is None
        for work in (
            store.get(made.id),
            store.by_name("Bo"),
            store.load(made.id, talk.id),
            store.conversations(made.id, 10, ""),
            store.begin_deletion(made.id),
        ):
            with pytest.raises(NotFoundError):
                await work
        assert list(await store.page(AgentFilter(), 10, "")) == []
        await store.remove([made.id])
    assert (await store.get(made.id)).state is AgentState.ACTIVE
    await store.remove([made.id])
    with pytest.raises(NotFoundError):
        await store.conversations(made.id, 10, "")


async def test_a_removed_agent_takes_the_answers_that_hold_it(
    store: PostgresAgentStore, database: Database
) -> None:
    made, other = await active(store), await active(store, name="Other")
    for one in (made, other):
        await store.update(AgentPatch(one.id, description="Secret."), RequestKey(one.id, "h"))
    async with database.transaction() as connection:
        # As an earlier release has stored it.
        values = {"id": made.id}
        await connection.execute(
            sql(
                "INSERT INTO agent_loop.requests (project_id, request_id, payload_hash, answer)"
                " SELECT project_id, 'earlier', '',"
                " json_build_object('agent_id', CAST(:id AS text))"
                " FROM agent_loop.requests WHERE request_id = CAST(:id AS text)"
            ),
            values,
        )
    await store.remove([made.id])
    async with database.transaction(read_only=True) as connection:
        rows = await connection.execute(sql("SELECT request_id FROM agent_loop.requests"))
        assert [row.request_id for row in rows] == [other.id]


async def test_housekeeping_deletes_old_rows_of_every_project(
    store: PostgresAgentStore, database: Database, worker: Database
) -> None:
    made = await active(store)
    await store.update(AgentPatch(made.id, name="New"), RequestKey("u", "h"))
    week = timedelta(days=7)
    assert await Housekeeping(worker, requests=week, journals=week).clean() == 0
    none = timedelta(0)
    assert await Housekeeping(worker, requests=none, journals=none).clean() == 1
    with pytest.raises(asyncpg.SyntaxOrAccessError, match="permission denied"):
        async with worker.system_transaction(read_only=True) as connection:
            await connection.execute(sql("SELECT answer FROM agent_loop.requests"))


async def test_external_id_names_one_conversation_of_an_agent(store: PostgresAgentStore) -> None:
    made, other = await active(store), await active(store, name="Other")

    def talk(agent_id: str, title: str = "") -> Conversation:
        return Conversation(new_id("conversation"), agent_id, title, external_id="ann")

    first, again, elsewhere = await asyncio.gather(
        store.insert_conversation(talk(made.id, "Work"), RequestKey("e", "h")),
        store.insert_conversation(talk(made.id, "Work"), RequestKey("e", "h")),
        store.insert_conversation(talk(other.id), RequestKey()),
    )
    assert first == again
    assert first.id != elsewhere.id
    with pytest.raises(AlreadyExistsError) as raised:
        await store.insert_conversation(talk(made.id), RequestKey("f", "h"))
    assert raised.value.reason is Reason.NAME_TAKEN
    assert await store.external_conversation(made.id, "ann") == first
    assert list(await store.conversations(made.id, 10, "", "Work")) == [first]
    assert list(await store.conversations(made.id, 10, "", "work")) == []
    for agent_id, external_id in ((made.id, "bea"), (made.id, ""), (new_id("agent"), "ann")):
        with pytest.raises(NotFoundError):
            await store.external_conversation(agent_id, external_id)
    with context.use(as_project()), pytest.raises(NotFoundError):
        await store.external_conversation(made.id, "ann")
