"""The contract of the step journal, on PostgreSQL."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from callers import as_project
from journal_records import record, result
from strata.agent_loop.domain.agent.agents import Agent
from strata.agent_loop.domain.model.chat import (
    ToolCall,
)
from strata.agent_loop.domain.run.journal import JournalKey, NestedRecord
from strata.agent_loop.store import PostgresAgentStore, PostgresJournal
from strata.protocol.errors import AbortedError, Reason
from strata.shared import context
from strata.shared.agent_types import AgentType
from strata.shared.db import Database, sql
from strata.shared.idempotency.keys import RequestKey
from strata.shared.ids import new_id
from strata.shared.messages import ToolStatus
from strata.shared.tool_catalogue import ToolEffect


@pytest.fixture
async def key(database: Database) -> JournalKey:
    agent = Agent(new_id("agent"), "a", AgentType.LETTA_V1, "")
    await PostgresAgentStore(database).insert(agent, RequestKey())
    return JournalKey(agent.default_conversation_id, agent.id, new_id("run"), 1)


@pytest.fixture
def journal(database: Database) -> PostgresJournal:
    return PostgresJournal(database)


def stale(error: pytest.ExceptionInfo[AbortedError]) -> bool:
    return error.value.reason is Reason.STALE_ATTEMPT


async def test_a_journalled_step_is_returned_unchanged(
    journal: PostgresJournal, key: JournalKey
) -> None:
    written = record("a", "b")
    await journal.open_step(key, written)
    await journal.record(key, 1, [result("b")])

    resumed = await journal.resume(replace(key, attempt=2), 1)

    assert resumed == replace(written, results={"b": result("b")})


async def test_resume_returns_none_without_a_journal_or_for_another_step(
    journal: PostgresJournal, key: JournalKey
) -> None:
    assert await journal.resume(replace(key, attempt=2), 1) is None
    await journal.open_step(replace(key, attempt=2), record("a"))
    assert await journal.resume(replace(key, attempt=3), 2) is None


async def test_a_later_step_replaces_the_previous_one(
    journal: PostgresJournal, key: JournalKey
) -> None:
    await journal.open_step(key, record("a"))
    await journal.record(key, 1, [result("a")])
    second = record("a", step=2)
    await journal.open_step(key, second)

    assert await journal.resume(replace(key, attempt=2), 2) == second


async def test_an_attempt_that_was_taken_over_writes_nothing(
    journal: PostgresJournal, key: JournalKey
) -> None:
    await journal.open_step(key, record("a"))
    later = replace(key, attempt=2)
    resumed = await journal.resume(later, 1)

    with pytest.raises(AbortedError) as error:
        await journal.open_step(key, record("b", step=2))
    assert stale(error)
    with pytest.raises(AbortedError) as error:
        await journal.record(key, 1, [result("a")])
    assert stale(error)
    with pytest.raises(AbortedError) as error:
        await journal.resume(key, 1)
    assert stale(error)
    assert await journal.resume(later, 1) == resumed


async def test_fence_holds_before_anything_is_journalled(
    journal: PostgresJournal, key: JournalKey
) -> None:
    assert await journal.resume(replace(key, attempt=2), 1) is None
    with pytest.raises(AbortedError) as error:
        await journal.open_step(key, record("a"))
    assert stale(error)


async def test_a_new_attempt_at_a_step_discards_the_results_of_the_former_reply(
    journal: PostgresJournal, key: JournalKey
) -> None:
    await journal.open_step(key, record("a"))
    await journal.record(key, 1, [result("a")])
    anew = record("a")
    await journal.open_step(replace(key, attempt=2), anew)

    assert await journal.resume(replace(key, attempt=3), 1) == anew


async def test_results_recorded_after_a_take_over_belong_to_the_resumed_reply(
    journal: PostgresJournal, key: JournalKey
) -> None:
    await journal.open_step(key, record("a", "b"))
    second = replace(key, attempt=2)
    await journal.resume(second, 1)
    await journal.record(second, 1, [result("a", ToolStatus.UNKNOWN)])

    resumed = await journal.resume(replace(key, attempt=3), 1)

    assert resumed is not None
    assert resumed.results == {"a": result("a", ToolStatus.UNKNOWN)}


async def test_exactly_one_of_a_writer_and_its_successor_succeeds(
    journal: PostgresJournal, key: JournalKey
) -> None:
    for _ in range(20):
        own = replace(key, run_id=new_id("run"))
        written = record("a")
        opened, resumed = await asyncio.gather(
            journal.open_step(own, written),
            journal.resume(replace(own, attempt=2), 1),
            return_exceptions=True,
        )
        if opened is None:
            assert resumed == written
        else:
            assert isinstance(opened, AbortedError)
            assert resumed is None


async def test_each_write_is_one_statement(
    journal: PostgresJournal, key: JournalKey, database: Database
) -> None:
    before = database.statistics.statements
    await journal.open_step(key, record("a", "b", "c"))
    assert database.statistics.statements - before == 1
    await journal.record(key, 1, [result("a"), result("b"), result("c")])
    assert database.statistics.statements - before == 2


async def test_journal_has_the_state_of_each_call(
    journal: PostgresJournal, key: JournalKey, database: Database
) -> None:
    await journal.open_step(key, record("a", "b", "c", "d"))
    statuses = {"a": ToolStatus.OK, "b": ToolStatus.FAILED, "c": ToolStatus.UNKNOWN}
    await journal.record(key, 1, [result(*pair) for pair in statuses.items()])

    async with database.transaction(read_only=True) as connection:
        query = sql("SELECT state FROM agent_loop.tool_calls ORDER BY tool_call_id")
        states = list((await connection.execute(query)).scalars())
    assert states == ["COMMITTED", "FAILED", "UNKNOWN", "PENDING"]


async def test_another_project_sees_no_journal(journal: PostgresJournal, key: JournalKey) -> None:
    await journal.open_step(key, record("a"))
    stranger = as_project()
    with context.use(stranger), pytest.raises(AbortedError):
        await journal.record(key, 1, [result("a")])


async def test_closed_run_writes_nothing(journal: PostgresJournal, key: JournalKey) -> None:
    assert await journal.close(key) is None
    with pytest.raises(AbortedError) as raised:
        await journal.open_step(replace(key, attempt=9), record("a"))
    assert stale(raised)
    with pytest.raises(AbortedError):
        await journal.resume(replace(key, attempt=9), 1)
    assert await journal.close(key) is None


async def test_closing_returns_the_last_step_with_the_known_results_of_its_calls(
    journal: PostgresJournal, key: JournalKey
) -> None:
    await journal.open_step(key, record("a"))
    second = record("b", "c", step=2)
    await journal.open_step(key, second)
    await journal.record(key, 2, [result("b")])
    closed = await journal.close(key)
    assert closed == replace(second, results={"b": result("b")})
    with pytest.raises(AbortedError):
        await journal.record(key, 2, [result("c")])
    assert await journal.close(key) == closed


async def test_nested_calls_are_returned_separately_from_the_calls_of_the_reply(
    journal: PostgresJournal, key: JournalKey
) -> None:
    written = record("a", "b")
    await journal.open_step(key, written)
    first = NestedRecord("a", ToolCall("a/1", "memory_insert", '{"x": "Ü"}'))
    second = NestedRecord("a", ToolCall("a/2", "acts", "{}"))
    await journal.nest(key, 1, first, 1, ToolEffect.IDEMPOTENT)
    await journal.record(key, 1, [result("a/1")])
    await journal.nest(key, 1, second, 2, ToolEffect.UNDECLARED)
    await journal.record(key, 1, [result("b")])

    resumed = await journal.resume(replace(key, attempt=2), 1)

    nested = (replace(first, result=result("a/1")), second)
    assert resumed == replace(written, results={"b": result("b")}, nested=nested)
    again = record("a", step=2)
    await journal.open_step(replace(key, attempt=2), again)
    assert await journal.resume(replace(key, attempt=3), 2) == again


async def test_an_attempt_that_was_taken_over_writes_no_nested_call(
    journal: PostgresJournal, key: JournalKey
) -> None:
    written = record("a")
    await journal.open_step(key, written)
    later = replace(key, attempt=2)
    await journal.resume(later, 1)
    call = NestedRecord("a", ToolCall("a/1", "acts", "{}"))
    for stale_key, step in ((key, 1), (later, 2)):
        with pytest.raises(AbortedError) as error:
            await journal.nest(stale_key, step, call, 1, ToolEffect.UNDECLARED)
        assert stale(error)
    assert await journal.resume(later, 1) == written
