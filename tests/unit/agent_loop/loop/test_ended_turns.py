"""Turns that are cancelled, stopped with their process, or out of time."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from typing import Any

import pytest

from loop_time import put_forward
from strata.agent_loop.context.packaging import CANCELLED
from strata.agent_loop.domain.run.events import (
    MessageStored,
    ModelRequestSent,
    ToolFinished,
)
from strata.agent_loop.domain.run.journal import JournalKey, StepRecord, key_of
from strata.agent_loop.domain.run.runs import RunRequest
from strata.agent_loop.loop.control import CallerLostError, TurnControl
from strata.agent_loop.loop.turn import Turn
from strata.protocol.errors import (
    Reason,
    UnavailableError,
)
from strata.shared.messages import ToolStatus
from strata.shared.stop_reasons import StopReason
from strata.shared.unstored_steps import is_step_not_stored
from strata.shared.usage import Usage
from unit.agent_loop.loop.in_memory_ports import Sink
from unit.agent_loop.loop.loop_harness import (
    LoopHarness,
    assert_pairs_are_whole,
    content,
    roles,
    stop_turn,
)
from unit.agent_loop.loop.model_replies import reply


async def cancelled_turn(harness: LoopHarness, ready: asyncio.Event) -> Sink:
    sink, control = Sink(), TurnControl()
    task = asyncio.create_task(Turn(harness.ports, harness.request(), sink, control).run())
    await ready.wait()
    await asyncio.sleep(0)
    control.cancelled = True
    task.cancel()
    await task
    assert sink.outcome.stop_reason is StopReason.CANCELLED
    return sink


async def test_cancel_while_tools_run_keeps_the_pair_whole() -> None:
    harness = LoopHarness()
    harness.model.replies = [harness.calls("acts", "blocks", "acts")]
    sink = await cancelled_turn(harness, harness.tools.running)

    assert [event.result.tool_return.status for event in sink.of(ToolFinished)] == [
        ToolStatus.OK,
        ToolStatus.UNKNOWN,
        ToolStatus.UNKNOWN,
    ]
    assert harness.tools.killed == 1
    assert roles(harness) == ["system", "user", "assistant", "tool"]
    assert_pairs_are_whole(harness.recall.messages)
    returns = harness.recall.messages[3].tool_returns
    assert [part.status for part in returns] == [
        ToolStatus.OK,
        ToolStatus.UNKNOWN,
        ToolStatus.UNKNOWN,
    ]
    assert content(harness, 3, 1) == content(harness, 3, 2) == CANCELLED


async def test_a_turn_stopped_by_its_process_stores_no_returns_for_interrupted_calls() -> None:
    """The ledger has the finished calls; the next attempt reports the rest."""
    harness = LoopHarness()
    harness.model.replies = [harness.calls("acts", "blocks", "acts")]
    request = harness.request()
    task = asyncio.create_task(Turn(harness.ports, request, Sink()).run())
    await harness.tools.running.wait()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert roles(harness) == ["system", "user"]

    sink = await harness.run(replace(request, attempt=2), reply("Done."))
    returns = harness.recall.messages[3].tool_returns
    assert [part.status for part in returns] == [
        ToolStatus.OK,
        ToolStatus.UNKNOWN,
        ToolStatus.UNKNOWN,
    ]
    assert "cancelled" not in content(harness, 3, 1)
    assert sink.outcome.stop_reason is StopReason.END_TURN


async def test_results_whose_write_is_interrupted_are_written_again() -> None:
    harness = LoopHarness()
    harness.model.replies = [harness.calls("acts")]
    record, begun = harness.journal.record, asyncio.Event()

    async def interrupted(*_: Any, **__: Any) -> None:
        harness.journal.record = record  # type: ignore[method-assign]
        begun.set()
        await asyncio.Event().wait()

    harness.journal.record = interrupted  # type: ignore[method-assign]
    request = harness.request()
    await stop_turn(harness, request, begun)

    await harness.run(replace(request, attempt=2), reply("Done."))
    [tool_return] = harness.recall.messages[3].tool_returns
    assert tool_return.status is ToolStatus.OK


async def cut_in_a_step() -> tuple[LoopHarness, RunRequest]:
    """Returns a run whose process was stopped while one of two calls was running."""
    harness = LoopHarness()
    harness.model.replies = [harness.calls("acts", "blocks")]
    request = harness.request()
    await stop_turn(harness, request, harness.tools.running)
    return harness, request


async def test_a_cancelled_run_stores_the_unfinished_step_of_an_earlier_attempt() -> None:
    harness, request = await cut_in_a_step()
    batches = len(harness.tools.batches)

    sink = await harness.run(replace(request, attempt=2, cancelled=True))

    assert sink.outcome.stop_reason is StopReason.CANCELLED
    assert len(harness.tools.batches) == batches
    assert_pairs_are_whole(harness.recall.messages)
    returns = harness.recall.messages[3].tool_returns
    assert [part.status for part in returns] == [ToolStatus.OK, ToolStatus.UNKNOWN]


@pytest.mark.parametrize("cancelled", [False, True], ids=["attempt begins late", "settled"])
async def test_a_run_dispatched_after_its_deadline_stores_the_unfinished_step(
    cancelled: bool,
) -> None:
    harness, request = await cut_in_a_step()
    batches, resume = len(harness.tools.batches), harness.journal.resume

    async def from_a_database(key: JournalKey, step: int | None) -> StepRecord | None:
        for _ in range(5):
            await asyncio.sleep(0)
        return await resume(key, step)

    harness.journal.resume = from_a_database  # type: ignore[method-assign]
    again = replace(request, attempt=2, remaining_s=0.0, cancelled=cancelled)
    sink = await harness.run(again)

    assert sink.outcome.stop_reason is StopReason.ERROR
    assert sink.outcome.failure is not None
    assert sink.outcome.failure.reason is Reason.DEADLINE_EXCEEDED
    assert len(harness.tools.batches) == batches
    assert_pairs_are_whole(harness.recall.messages)
    returns = harness.recall.messages[3].tool_returns
    assert [part.status for part in returns] == [ToolStatus.OK, ToolStatus.UNKNOWN]
    assert "cancelled" not in content(harness, 3, 1)


@pytest.mark.parametrize("kind", ["plain", "with calls"])
async def test_step_of_a_cancelled_run_is_stored_when_recall_is_back(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strata.agent_loop.loop.steps.CLEANUP_S", 0.05)
    harness, control, sink = LoopHarness(), TurnControl(), Sink()
    harness.model.replies = [reply("Hello.") if kind == "plain" else harness.calls("acts")]
    commit, begin, tried = harness.recall.commit_step, harness.recall.begin_turn, asyncio.Event()

    async def away(*_: Any, **__: Any) -> Any:
        tried.set()
        raise UnavailableError("down")

    harness.recall.commit_step = away  # type: ignore[method-assign]
    request = harness.request()
    task = asyncio.create_task(Turn(harness.ports, request, sink, control).run())
    await tried.wait()
    control.cancelled = True
    task.cancel()
    with pytest.raises(UnavailableError) as raised:
        await task
    assert is_step_not_stored(raised.value)
    assert roles(harness) == ["system", "user"]

    harness.recall.begin_turn = away  # type: ignore[method-assign]
    with pytest.raises(UnavailableError) as raised:
        await harness.run(replace(request, attempt=2, cancelled=True))
    assert is_step_not_stored(raised.value)

    harness.recall.commit_step = commit  # type: ignore[method-assign]
    harness.recall.begin_turn = begin  # type: ignore[method-assign]
    sink = await harness.run(replace(request, attempt=3, cancelled=True))
    assert sink.outcome.stop_reason is StopReason.CANCELLED
    if kind == "plain":
        assert roles(harness) == ["system", "user", "assistant"]
    else:
        assert roles(harness) == ["system", "user", "assistant", "tool"]
        [tool_return] = harness.recall.messages[3].tool_returns
        assert tool_return.status is ToolStatus.OK
    assert [event.message.role for event in sink.of(MessageStored)] == [
        message.role for message in harness.recall.messages[2:]
    ]
    assert len(harness.model.requests) == 1


async def test_cancelled_run_without_a_step_waits_for_nothing() -> None:
    harness = LoopHarness()

    async def away(*_: Any, **__: Any) -> Any:
        raise UnavailableError("down")

    harness.recall.begin_turn = away  # type: ignore[method-assign]
    sink = await harness.run(replace(harness.request(), attempt=2, cancelled=True))
    assert sink.outcome.stop_reason is StopReason.CANCELLED


async def test_a_run_cancelled_while_it_loads_an_unfinished_step_stores_it() -> None:
    harness, request = await cut_in_a_step()

    control, looked, resume = TurnControl(), asyncio.Event(), harness.journal.resume

    async def look(key: JournalKey, step: int | None) -> StepRecord | None:
        if not looked.is_set():
            looked.set()
            await asyncio.Event().wait()
        return await resume(key, step)

    harness.journal.resume = look  # type: ignore[method-assign]
    sink = Sink()
    turn = Turn(harness.ports, replace(request, attempt=2), sink, control)
    running = asyncio.create_task(turn.run())
    await looked.wait()
    control.cancelled = True
    running.cancel()
    await running

    assert sink.outcome.stop_reason is StopReason.CANCELLED
    assert_pairs_are_whole(harness.recall.messages)
    returns = harness.recall.messages[3].tool_returns
    assert [part.status for part in returns] == [ToolStatus.OK, ToolStatus.UNKNOWN]


async def test_a_turn_without_a_caller_finishes_its_step_and_starts_no_other() -> None:
    harness = LoopHarness()
    harness.model.replies = [harness.calls("acts"), reply("Done.")]
    request, control = harness.request(), TurnControl()

    def lose() -> None:
        control.detached = True

    harness.tools.on_call = lose
    with pytest.raises(CallerLostError):
        await Turn(harness.ports, request, Sink(), control).run()
    assert roles(harness) == ["system", "user", "assistant", "tool"]
    assert len(harness.model.requests) == 1

    sink = await harness.run(replace(request, attempt=2))
    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert roles(harness) == ["system", "user", "assistant", "tool", "assistant"]
    assert len(harness.model.requests) == 2


async def test_the_next_attempt_waits_for_an_attempt_that_is_finishing_its_step() -> None:
    harness = LoopHarness()
    request = harness.request()
    await harness.journal.mark_finishing(key_of(request), 60.0)
    second = asyncio.create_task(harness.run(replace(request, attempt=2), reply("Done.")))
    await asyncio.sleep(0.05)
    # The attempt has not fenced the first one, whose steps are still accepted.
    assert harness.recall.attempt == 0
    assert not second.done()
    await harness.journal.mark_finishing(key_of(request), 0.0)
    assert (await second).outcome.stop_reason is StopReason.END_TURN


async def test_cancel_during_the_reply_stores_nothing_of_the_step() -> None:
    harness = LoopHarness()
    harness.model.hold = asyncio.Event()
    harness.model.replies = [reply("Never heard.")]
    sink, control = Sink(), TurnControl()
    task = asyncio.create_task(Turn(harness.ports, harness.request(), sink, control).run())
    while not harness.model.requests:
        await asyncio.sleep(0)
    control.cancelled = True
    task.cancel()
    await task
    assert sink.outcome.stop_reason is StopReason.CANCELLED
    (sent,) = sink.of(ModelRequestSent)
    completion = math.ceil(len("Never heard.") / sent.bytes_per_token)
    assert sink.outcome.usage == Usage(sent.prompt_tokens, completion, estimated=True)

    assert roles(harness) == ["system", "user"]
    harness.model.hold = None
    assert (await harness.run(None, reply("Hello."))).outcome.stop_reason is StopReason.END_TURN


async def test_deadline_ends_the_run_with_its_reason() -> None:
    harness = LoopHarness()
    harness.model.replies = [harness.calls("blocks")]
    turn = asyncio.create_task(harness.run(harness.request(remaining_s=3_600.0)))
    await harness.tools.running.wait()
    put_forward(3_600)
    sink = await turn

    assert sink.outcome.stop_reason is StopReason.ERROR
    assert sink.outcome.failure is not None
    assert sink.outcome.failure.reason is Reason.DEADLINE_EXCEEDED
    assert_pairs_are_whole(harness.recall.messages)
    assert roles(harness)[-1] == "tool"
