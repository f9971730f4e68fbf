"""Runs of memory agents in the store: ranges, priority and budgets; on the real PostgreSQL."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace

from contract.gateway.stores import Gateways
from gateway_records import PROJECT, WELL, events, fence_of, new_run
from plans import generic_plan_of
from sql_queries import execute
from strata.api.agent_loop.v1 import turn_service_pb2 as turn_pb
from strata.gateway.runs.domain.memory_agents import (
    DOCUMENT_KEY,
    FIRST_MARK,
    MAX_RANGE,
    MemoryBudget,
    MemoryMark,
    MessageBuffer,
    TendedTurn,
    TranscriptRead,
)
from strata.gateway.runs.domain.principals import Principal
from strata.gateway.runs.domain.runs import Dispatch, RunEnding, RunFailure, RunKind
from strata.gateway.runs.domain.states import RunState
from strata.gateway.runs.store.memory_agents import note_turn
from strata.gateway.runs.store.runs import PostgresRunStore
from strata.shared.context import Caller, RequestContext, use
from strata.shared.db import sql
from strata.shared.ids import default_conversation_id
from strata.shared.stop_reasons import StopReason
from strata.shared.usage import Usage

AGENT, MEMORY_AGENT = "agent-1", "agent-memory"
TALK = default_conversation_id(AGENT)
READ = RunEnding(StopReason.TOOL_RULE, None, Usage(completion_tokens=100), 1, reads_transcript=True)
BROKEN = replace(
    READ, stop_reason=StopReason.ERROR, failure=RunFailure("INTERNAL", "broken", retryable=True)
)
STOPPED = replace(READ, stop_reason=StopReason.CANCELLED)


async def turn(
    gateways: Gateways, sequence: int, *, project: str = PROJECT, frequency: int = 1
) -> str:
    """Stores a turn whose last message has this sequence; returns its run."""
    accepted = await gateways.first.accept(new_run(TALK, project, agent_id=AGENT))
    assert accepted.dispatch is not None
    tended = TendedTurn(MEMORY_AGENT, frequency, f"message-{sequence}", sequence)
    fence = fence_of(accepted.dispatch, "gateway-1")
    ending = replace(WELL, tended=tended)
    await gateways.first.finish(fence, ending, events(1), take_next=True)
    return accepted.run.id


async def claimed(
    store: PostgresRunStore, project: str = PROJECT, budget: MemoryBudget | None = None
) -> Dispatch | None:
    """Claims the next run of the memory agent."""
    claims = await store.claim_memory_runs(10, held={}, most=10, budget=budget or MemoryBudget())
    mine = [run_id for project_id, run_id in claims if project_id == project]
    assert len(mine) <= 1
    return await store.load(project, mine[0]) if mine else None


def range_of(dispatch: Dispatch | None) -> tuple[int, int]:
    assert dispatch is not None
    read = turn_pb.ExecuteRunRequest.FromString(dispatch.payload).transcript
    assert (read.agent_id, read.conversation_id) == (AGENT, TALK)
    return read.after_sequence, read.until_sequence


async def end(store: PostgresRunStore, dispatch: Dispatch | None, ending: RunEnding = READ) -> None:
    assert dispatch is not None
    await store.finish(fence_of(dispatch, "gateway-2"), ending, events(1), take_next=False)


async def mark(gateways: Gateways) -> MemoryMark:
    [marks] = await gateways.first.memory_marks(PROJECT, [AGENT], limit=9)
    return marks


async def test_a_turn_queues_a_memory_run_from_the_mark_to_the_last_message(
    gateways: Gateways,
) -> None:
    ended = await turn(gateways, 3)
    run = await claimed(gateways.second)
    assert range_of(run) == (-1, 3)
    assert run is not None
    assert (run.run.kind, run.run.parent_run_id) == (RunKind.SLEEPTIME, ended)
    assert run.principal.project_id == PROJECT
    assert (await mark(gateways)).processed_sequence == -1
    await end(gateways.second, run)
    memory_mark = await mark(gateways)
    assert (memory_mark.processed_sequence, memory_mark.processed_message_id) == (3, "message-3")
    assert await claimed(gateways.second) is None


async def test_marks_of_several_agents_are_read_at_once(gateways: Gateways) -> None:
    await turn(gateways, 3)
    await turn(gateways, 3, project="project-2")
    accepted = await gateways.first.accept(new_run("conversation-2", agent_id="agent-2"))
    assert accepted.dispatch is not None
    ending = replace(WELL, tended=TendedTurn("agent-memory-2", 1, "message-5", 5))
    fence = fence_of(accepted.dispatch, "gateway-1")
    await gateways.first.finish(fence, ending, events(1), take_next=True)
    before = gateways.database.statistics.statements
    marks = await gateways.first.memory_marks(
        PROJECT, ["agent-memory-2", AGENT, "agent-unknown"], limit=9
    )
    assert gateways.database.statistics.statements - before == 1
    assert [(mark.agent_id, mark.newest_sequence) for mark in marks] == [(AGENT, 3), ("agent-2", 5)]
    assert await gateways.first.memory_marks(PROJECT, ["agent-unknown"], limit=9) == []


async def test_marks_are_read_in_pages(gateways: Gateways) -> None:
    talks = [f"conversation-{number}" for number in range(1, 6)]
    for talk in talks:
        accepted = await gateways.first.accept(new_run(talk, agent_id=AGENT))
        assert accepted.dispatch is not None
        fence = fence_of(accepted.dispatch, "gateway-1")
        ending = replace(WELL, tended=TendedTurn(MEMORY_AGENT, 1, "message-1", 1))
        await gateways.first.finish(fence, ending, events(1), take_next=True)
    read: list[str] = []
    after = FIRST_MARK
    while marks := await gateways.first.memory_marks(PROJECT, [AGENT], after=after, limit=2):
        assert len(marks) <= 2
        read += [mark.conversation_id for mark in marks]
        after = (marks[-1].agent_id, marks[-1].conversation_id)
    assert read == talks


async def test_turns_that_end_during_a_memory_run_form_the_range_of_the_next_run(
    gateways: Gateways,
) -> None:
    await turn(gateways, 2)
    first = await claimed(gateways.second)
    for sequence in (4, 6, 8):
        await turn(gateways, sequence)
    assert await claimed(gateways.second) is None
    await end(gateways.second, first)
    assert range_of(await claimed(gateways.second)) == (2, 8)


async def test_two_turns_that_end_at_once_queue_one_run(gateways: Gateways) -> None:
    for number in range(5):
        await asyncio.gather(*(turn_elsewhere(gateways, number, last) for last in (2, 3)))
    marks = await gateways.first.memory_marks(PROJECT, [AGENT], limit=9)
    assert {mark.turns_counter for mark in marks} == {1}
    claims = await gateways.second.claim_memory_runs(50, held={}, most=50, budget=MemoryBudget())
    # All of them are runs in one conversation of the memory agent.
    assert len(claims) == 1
    assert {mark.run_count for mark in marks} == {1}


async def turn_elsewhere(gateways: Gateways, number: int, sequence: int) -> None:
    accepted = await gateways.first.accept(
        new_run(f"conversation-{number}-{sequence}", agent_id=AGENT)
    )
    assert accepted.dispatch is not None
    async with gateways.database.transaction(project_id=PROJECT) as connection:
        run = accepted.run.id, AGENT, f"conversation-{number}"
        tended = TendedTurn(MEMORY_AGENT, 1, f"message-{sequence}", sequence)
        await note_turn(connection, PROJECT, run, tended)
    fence = fence_of(accepted.dispatch, "gateway-1")
    await gateways.first.finish(fence, WELL, events(1), take_next=False)


async def test_a_memory_run_is_queued_after_the_first_turn_and_then_every_frequency_turns(
    gateways: Gateways,
) -> None:
    ranges = []
    for number in range(1, 12):
        await turn(gateways, 2 * number, frequency=5)
        run = await claimed(gateways.second)
        if run is not None:
            ranges.append((number, range_of(run)))
            await end(gateways.second, run)
    assert ranges == [(1, (-1, 2)), (6, (2, 12)), (11, (12, 22))]


async def test_a_failed_run_waits_longer_each_time_and_its_range_stays_unread(
    gateways: Gateways,
) -> None:
    await turn(gateways, 2)
    pauses = []
    for _ in range(9):
        run = await claimed(gateways.second)
        await end(gateways.second, run, BROKEN)
        assert await claimed(gateways.second) is None
        memory_mark = await mark(gateways)
        pauses.append(memory_mark.pause_s)
        assert (memory_mark.processed_sequence, memory_mark.last_error) == (-1, "INTERNAL: broken")
        await gateways.first.start_memory_run(PROJECT, AGENT, TALK)
    assert pauses == [30, 60, 120, 240, 480, 960, 1920, 3600, 3600]
    last = await claimed(gateways.second)
    assert range_of(last) == (-1, 2)
    await end(gateways.second, last)
    assert (await mark(gateways)).failures == 0


async def test_the_range_of_a_cancelled_run_is_added_to_the_next_one(gateways: Gateways) -> None:
    await turn(gateways, 2)
    await end(gateways.second, await claimed(gateways.second), STOPPED)
    assert await claimed(gateways.second) is None
    await turn(gateways, 4)
    queued = await mark(gateways)
    # Cancelled before it began.
    assert (await gateways.first.cancel(PROJECT, queued.run_id, b"")).state is RunState.CANCELLED
    await turn(gateways, 6)
    assert range_of(await claimed(gateways.second)) == (-1, 6)


async def test_a_removed_memory_agent_is_not_retried(gateways: Gateways) -> None:
    await turn(gateways, 2)
    gone = RunFailure("AGENT_NOT_FOUND", "There is no such agent.", retryable=False)
    await end(gateways.second, await claimed(gateways.second), replace(BROKEN, failure=gone))
    assert not (await mark(gateways)).run_open
    assert await claimed(gateways.second) is None
    # Another run continues after its last turn.
    await turn(gateways, 4)
    assert range_of(await claimed(gateways.second)) == (-1, 4)


async def test_a_range_over_the_maximum_is_read_in_several_runs(gateways: Gateways) -> None:
    newest = 2 * MAX_RANGE + 7
    await turn(gateways, newest)
    ranges = []
    while (run := await claimed(gateways.second)) is not None:
        ranges.append(range_of(run))
        await end(gateways.second, run)
    assert ranges == [
        (-1, MAX_RANGE - 1),
        (MAX_RANGE - 1, 2 * MAX_RANGE - 1),
        (2 * MAX_RANGE - 1, newest),
    ]
    assert (await mark(gateways)).processed_message_id == f"message-{newest}"


async def test_turns_beyond_the_size_of_a_run_are_read_by_the_next_run_immediately(
    gateways: Gateways,
) -> None:
    await turn(gateways, 9, frequency=5)
    await end(gateways.second, await claimed(gateways.second), read_until(4))
    memory_mark = await mark(gateways)
    assert (memory_mark.processed_sequence, memory_mark.processed_message_id) == (4, "message-4")
    second = await claimed(gateways.second)
    assert range_of(second) == (4, 9)
    # A failed run has read nothing, whatever its range was.
    await end(gateways.second, second, replace(BROKEN, read=TranscriptRead(6, "message-6")))
    assert (await mark(gateways)).processed_sequence == 4
    await gateways.first.start_memory_run(PROJECT, AGENT, TALK)
    await end(gateways.second, await claimed(gateways.second), read_until(9))
    memory_mark = await mark(gateways)
    assert (memory_mark.processed_sequence, memory_mark.processed_message_id) == (9, "message-9")
    assert await claimed(gateways.second) is None


async def test_a_finished_run_ends_its_range_even_if_it_reports_a_wrong_position(
    gateways: Gateways,
) -> None:
    for newest, wrong in ((4, -1), (6, 4), (8, 100)):
        await turn(gateways, newest)
        await end(gateways.second, await claimed(gateways.second), read_until(wrong))
        assert (await mark(gateways)).processed_sequence == newest


def read_until(sequence: int) -> RunEnding:
    return replace(READ, read=TranscriptRead(sequence, f"message-{sequence}"))


async def test_a_run_of_a_dead_gateway_is_taken_over_with_its_range(
    gateways: Gateways,
) -> None:
    await turn(gateways, 2)
    run = await claimed(gateways.first)
    assert run is not None
    await gateways.first.release()
    await turn(gateways, 4)
    assert (PROJECT, run.run.id) in await gateways.second.claim(10)
    again = await gateways.second.load(PROJECT, run.run.id)
    assert range_of(again) == (-1, 2)
    await end(gateways.second, again)
    assert range_of(await claimed(gateways.second)) == (2, 4)


async def test_other_runs_do_not_wait_for_queued_memory_runs(gateways: Gateways) -> None:
    await turn(gateways, 2)
    assert await gateways.second.claim(10) == []
    conversation = default_conversation_id(MEMORY_AGENT)
    direct = await gateways.first.accept(new_run(conversation, agent_id=MEMORY_AGENT))
    assert direct.dispatch is not None
    assert await claimed(gateways.second) is None
    fence = fence_of(direct.dispatch, "gateway-1")
    # The end of the run does not give its slot to the memory agent's run.
    assert await gateways.first.finish(fence, WELL, events(1), take_next=True) is None
    assert await claimed(gateways.second) is not None


async def test_memory_runs_do_not_count_as_open_runs_of_the_project(gateways: Gateways) -> None:
    # The project may have 20.
    for number in range(25):
        await turn_elsewhere(gateways, number, 2)
    accepted = await gateways.first.accept(new_run("conversation-last"))
    assert accepted.dispatch is not None


async def test_a_project_that_has_used_its_tokens_waits_and_others_do_not(
    gateways: Gateways,
) -> None:
    budget = MemoryBudget(project=100)
    await turn(gateways, 2)
    await end(gateways.second, await claimed(gateways.second, budget=budget))
    await turn(gateways, 4)
    await turn(gateways, 2, project="project-2")
    claims = await gateways.second.claim_memory_runs(10, held={}, most=10, budget=budget)
    assert [project_id for project_id, _ in claims] == ["project-2"]
    assert await claimed(gateways.second, budget=MemoryBudget(project=101)) is not None


async def test_memory_runs_of_all_projects_wait_when_the_server_budget_is_used(
    gateways: Gateways,
) -> None:
    await turn(gateways, 2)
    await end(gateways.second, await claimed(gateways.second))
    await turn(gateways, 2, project="project-2")
    budget = MemoryBudget(server=100)
    assert await claimed(gateways.second, "project-2", budget) is None
    assert await claimed(gateways.second, "project-2", MemoryBudget(server=101)) is not None


async def test_concurrent_memory_runs_of_a_project_are_limited(gateways: Gateways) -> None:
    await turn(gateways, 2)
    held = {PROJECT: 2}
    budget = MemoryBudget()
    assert await gateways.second.claim_memory_runs(10, held=held, most=2, budget=budget) == []
    assert await gateways.second.claim_memory_runs(10, held=held, most=3, budget=budget)


async def test_deleting_a_memory_agent_deletes_its_marks(gateways: Gateways) -> None:
    await turn(gateways, 2)
    run = await claimed(gateways.second)
    assert run is not None
    assert await gateways.first.forget_memory_agent(PROJECT, MEMORY_AGENT) == [run.run.id]
    assert await gateways.first.memory_marks(PROJECT, [AGENT], limit=9) == []
    await end(gateways.second, run)
    assert await claimed(gateways.second) is None


async def test_turns_end_after_a_memory_agent_was_deleted_and_made_again(
    gateways: Gateways,
) -> None:
    newest = MAX_RANGE + 200
    for sequence in (newest, newest + 10):
        run_id = await turn(gateways, sequence)
        run = await gateways.first.get(PROJECT, run_id)
        assert run.state is RunState.COMPLETED
        run_of_memory = await claimed(gateways.second)
        assert range_of(run_of_memory) == (-1, MAX_RANGE - 1)
        await end(gateways.second, run_of_memory)
        for open_run in await gateways.first.forget_memory_agent(PROJECT, MEMORY_AGENT):
            await gateways.first.cancel(PROJECT, open_run, b"")


async def test_projects_whose_runs_are_not_due_do_not_delay_others(
    gateways: Gateways,
) -> None:
    for number in range(65):
        project = f"project-{number:03}"
        await turn(gateways, 2, project=project)
        await end(gateways.second, await claimed(gateways.second, project), BROKEN)
    await turn(gateways, 2, project="project-zzz")
    # This gateway has not claimed anything yet: its first claim begins with the first project.
    assert await claimed(gateways.first, "project-zzz") is not None


async def test_a_file_has_one_mark_for_its_content_and_is_read_in_portions(
    gateways: Gateways,
) -> None:
    principal = Principal("org-1", PROJECT, "key-1", frozenset({"run"}))
    document = MemoryMark(
        agent_id=AGENT,
        conversation_id=f"{DOCUMENT_KEY}abc",
        memory_agent_id="agent-reader",
        frequency=1,
        newest_sequence=MAX_RANGE + 99,
        file_id="file-1",
        file_name="notes.txt",
        block_label="notes.txt",
    )
    started = await asyncio.gather(
        gateways.first.start_document(document, principal),
        gateways.second.start_document(document, principal),
    )
    assert [mark for mark in started if mark is None] == [None]
    first = await claimed(gateways.second)
    assert lines_of(first) == (-1, MAX_RANGE + 99)
    await end(gateways.second, first, read_until(40))
    second = await claimed(gateways.second)
    assert lines_of(second) == (40, MAX_RANGE + 99)
    await end(gateways.second, second)
    assert await claimed(gateways.second) is None
    assert (await mark(gateways)).pending == 0

    # After the memory agent is deleted, its position is kept until the agent itself is deleted.
    await gateways.first.retire_document(PROJECT, AGENT, document.conversation_id)
    await gateways.first.forget_memory_agent(PROJECT, "agent-reader")
    assert (await mark(gateways)).memory_agent_id == ""
    assert await gateways.first.start_document(document, principal) is None
    await gateways.first.forget_memory_agent(PROJECT, AGENT)
    assert not await gateways.first.memory_marks(PROJECT, [AGENT], limit=9)


def lines_of(dispatch: Dispatch | None) -> tuple[int, int]:
    assert dispatch is not None
    document = turn_pb.ExecuteRunRequest.FromString(dispatch.payload).document
    assert (document.file_id, document.content_hash) == ("file-1", "abc")
    return document.after_line, document.until_line


async def voice_turn(gateways: Gateways, until: int, *, full: bool = True, after: int = 0) -> None:
    """Stores a turn of a voice agent; messages up to `until` can then be archived."""
    accepted = await gateways.first.accept(new_run(TALK, agent_id=AGENT))
    assert accepted.dispatch is not None
    buffer = MessageBuffer(after, until, f"message-{until}", full)
    tended = TendedTurn(MEMORY_AGENT, 0, "message-99", 99, buffer)
    fence = fence_of(accepted.dispatch, "gateway-1")
    await gateways.first.finish(fence, replace(WELL, tended=tended), events(1), take_next=True)


async def test_the_memory_agent_of_a_voice_agent_runs_when_the_window_is_full(
    gateways: Gateways,
) -> None:
    await voice_turn(gateways, -1, full=False)
    assert (await mark(gateways)).pending == 0
    await voice_turn(gateways, 4, full=False)
    assert await claimed(gateways.second) is None
    assert (await mark(gateways)).pending == 4
    await voice_turn(gateways, 6)
    run = await claimed(gateways.second)
    assert range_of(run) == (0, 6)
    await end(gateways.second, run)
    memory_mark = await mark(gateways)
    assert (memory_mark.processed_sequence, memory_mark.processed_message_id) == (6, "message-6")
    await voice_turn(gateways, 9)
    assert range_of(await claimed(gateways.second)) == (6, 9)


async def test_a_window_that_fills_up_during_archiving_is_checked_again_at_the_next_turn(
    gateways: Gateways,
) -> None:
    await voice_turn(gateways, 6)
    run = await claimed(gateways.second)
    await voice_turn(gateways, 8)
    await end(gateways.second, run)
    # The messages that left the window during the first run may have been enough.
    assert await claimed(gateways.second) is None
    await voice_turn(gateways, 8, full=False)
    assert await claimed(gateways.second) is None
    await voice_turn(gateways, 12)
    assert range_of(await claimed(gateways.second)) == (6, 12)


async def test_the_range_of_a_voice_agent_stays_unchanged_until_it_is_archived(
    gateways: Gateways,
) -> None:
    await voice_turn(gateways, 6)
    await end(gateways.second, await claimed(gateways.second), BROKEN)
    await voice_turn(gateways, 10)
    await gateways.first.start_memory_run(PROJECT, AGENT, TALK)
    again = await claimed(gateways.second)
    assert range_of(again) == (0, 6)
    await end(gateways.second, again, STOPPED)
    await voice_turn(gateways, 12)
    # The memory agent is still in its back-off.
    await gateways.first.start_memory_run(PROJECT, AGENT, TALK)
    again = await claimed(gateways.second)
    assert range_of(again) == (0, 6)
    await end(gateways.second, again)
    assert (await mark(gateways)).processed_message_id == "message-6"
    await voice_turn(gateways, 12)
    assert range_of(await claimed(gateways.second)) == (6, 12)


async def test_messages_that_left_the_window_earlier_are_not_archived(
    gateways: Gateways,
) -> None:
    await voice_turn(gateways, 50, after=40)
    assert range_of(await claimed(gateways.second)) == (40, 50)


_MANY_MARKS = sql("""
INSERT INTO gateway.memory_agents (
    project_id, agent_id, conversation_id, memory_agent_id, frequency)
SELECT :project_id, 'agent-' || number % 1000, 'conversation-' || number,
       'agent-memory-' || number % 1000, 1
  FROM generate_series(1, 5000) number
""")


async def test_marks_of_an_agent_are_found_without_those_of_others(gateways: Gateways) -> None:
    async with gateways.database.transaction(project_id=PROJECT) as connection:
        await connection.execute(_MANY_MARKS, {"project_id": PROJECT})
    await execute(gateways.urls.admin_url, "ANALYZE gateway.memory_agents")
    with gateways.database.statistics.record() as statements:
        marks = await gateways.first.memory_marks(PROJECT, ["agent-memory-7"], limit=9)
    assert {mark.agent_id for mark in marks} == {"agent-7"}
    (statement,) = statements
    with use(RequestContext(Caller("", PROJECT, "test"))):
        plan = await generic_plan_of(gateways.database, statement)
    assert re.search(r"memory_agents_pkey\b.*\n\s+Index Cond: .*agent_id = wanted", plan), plan
    assert re.search(r"by_memory_agent\b.*\n\s+Index Cond: .*agent_id = wanted", plan), plan
