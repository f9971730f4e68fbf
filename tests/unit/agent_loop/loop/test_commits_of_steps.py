"""What is written and read when a step with tool calls is committed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from strata.agent_loop.domain.ports import CommittedStep, MemorySection, StepCommit
from strata.agent_loop.domain.run.journal import JournalKey
from strata.agent_loop.domain.tools import ToolResult
from strata.protocol.errors import (
    AbortedError,
    Reason,
    UnavailableError,
)
from strata.shared.messages import ToolStatus
from strata.shared.stop_reasons import StopReason
from unit.agent_loop.loop.loop_harness import LoopHarness, stop_turn
from unit.agent_loop.loop.model_replies import reply


def counted_records(harness: LoopHarness) -> list[Sequence[ToolResult]]:
    """Returns a list that gets the results of each write to the ledger."""
    record, recorded = harness.journal.record, list[Sequence[ToolResult]]()

    async def counted(key: JournalKey, step: int, results: Sequence[ToolResult]) -> None:
        recorded.append(results)
        await record(key, step, results)

    harness.journal.record = counted  # type: ignore[method-assign]
    return recorded


async def test_memory_is_read_while_the_step_that_changed_it_is_committed() -> None:
    harness = LoopHarness()
    commit, compile_memory = harness.recall.commit_step, harness.memory.compile
    read = asyncio.Event()

    async def compile_noted(*args: Any) -> MemorySection:
        if harness.tools.batches:
            read.set()
        return await compile_memory(*args)

    async def commit_after(step: StepCommit) -> CommittedStep:
        async with asyncio.timeout(10):
            await read.wait()
        return await commit(step)

    def edit() -> None:
        harness.memory.text = "<memory_blocks>\nnew\n</memory_blocks>"

    harness.tools.on_edit = edit
    harness.memory.compile = compile_noted  # type: ignore[assignment,method-assign]
    harness.recall.commit_step = commit_after  # type: ignore[assignment,method-assign]
    sink = await harness.run(None, harness.calls("edits"), reply("Done."))

    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert "new" in harness.model.requests[-1].messages[0].text


async def test_memory_that_is_read_for_nothing_is_abandoned_with_the_commit() -> None:
    harness = LoopHarness()
    compile_memory, ended = harness.memory.compile, asyncio.Event()

    async def compile_later(*args: Any) -> MemorySection:
        if not harness.tools.batches:
            return await compile_memory(*args)
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError

    async def refused(_step: StepCommit) -> CommittedStep:
        # The task that reads memory begins meanwhile.
        await asyncio.sleep(0)
        raise AbortedError("stale", reason=Reason.STALE_ATTEMPT)

    harness.memory.compile = compile_later  # type: ignore[assignment,method-assign]
    harness.recall.commit_step = refused  # type: ignore[assignment,method-assign]
    with pytest.raises(AbortedError):
        await harness.run(None, harness.calls("edits"), reply("Done."))
    assert ended.is_set()


@pytest.mark.parametrize(
    ("names", "writes"),
    [(("keyed", "reads", "edits"), 0), (("reads", "acts"), 1), (("acts", "keyed"), 1)],
)
async def test_results_of_repeatable_calls_are_stored_with_their_step_alone(
    names: tuple[str, ...], writes: int
) -> None:
    harness = LoopHarness()
    recorded = counted_records(harness)

    sink = await harness.run(None, harness.calls(*names), reply("Done."))

    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert len(recorded) == writes


async def test_results_of_repeatable_calls_are_in_the_ledger_while_recall_is_away() -> None:
    harness = LoopHarness()
    recorded = counted_records(harness)
    commit, away = harness.recall.commit_step, True

    async def commit_later(step: StepCommit) -> CommittedStep:
        nonlocal away
        if away:
            away = False
            raise UnavailableError("down")
        assert len(recorded) == 1
        return await commit(step)

    harness.recall.commit_step = commit_later  # type: ignore[assignment,method-assign]
    sink = await harness.run(None, harness.calls("keyed", "reads"), reply("Done."))

    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert [len(results) for results in recorded] == [2]


async def test_results_of_repeatable_calls_survive_the_end_of_their_process() -> None:
    harness = LoopHarness()
    harness.model.replies = [harness.calls("keyed", "reads")]
    commit, begun = harness.recall.commit_step, asyncio.Event()

    async def interrupted(_step: StepCommit) -> CommittedStep:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    harness.recall.commit_step = interrupted  # type: ignore[assignment,method-assign]
    request = harness.request()
    await stop_turn(harness, request, begun)
    harness.recall.commit_step = commit  # type: ignore[method-assign]

    await harness.run(replace(request, attempt=2), reply("Done."))
    assert len(harness.tools.batches) == 1
    assert [part.status for part in harness.recall.messages[3].tool_returns] == [
        ToolStatus.OK,
        ToolStatus.OK,
    ]
