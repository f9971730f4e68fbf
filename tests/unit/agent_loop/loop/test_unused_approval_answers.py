"""Approval responses whose run ended before it started the calls, or may have started them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from strata.agent_loop.domain.conversation.approvals import ApprovalResponse, Decision
from strata.agent_loop.domain.model.errors import ModelError, ModelErrorKind
from strata.agent_loop.domain.run.runs import RunRequest
from strata.agent_loop.loop.approvals import open_requests
from strata.protocol.errors import AbortedError, UnavailableError
from strata.shared.messages import ToolStatus
from strata.shared.stop_reasons import StopReason
from unit.agent_loop.loop.gated import (
    acts,
    answer,
    asked,
    assert_a_provider_takes_it,
    gated_harness,
    no,
    returns,
    with_answer,
    yes,
)
from unit.agent_loop.loop.journals import Died
from unit.agent_loop.loop.loop_harness import LoopHarness, assert_pairs_are_whole
from unit.agent_loop.loop.model_replies import reply
from unit.agent_loop.loop.ruled import leaves, most, return_messages, rule


async def answered_in_vain(
    harness: LoopHarness, response: ApprovalResponse | None = None
) -> RunRequest:
    """Runs a turn with an approval response and without a model."""
    run = with_answer(harness, response or yes(asked(harness)))
    harness.models.error = ModelError(ModelErrorKind.NOT_CONFIGURED, "no model")
    sink = await harness.run(run)
    assert sink.outcome.stop_reason is StopReason.LLM_API_ERROR
    harness.models.error = None
    return run


async def died_within(harness: LoopHarness, *, after: bool) -> RunRequest:
    """Runs a turn with an approval response, whose process dies during the call or after it."""
    run = with_answer(harness, yes(asked(harness)))

    def die(*_: object) -> None:
        raise Died

    if after:
        # The step is not stored although its calls have ended.
        harness.recall.commit_step = die  # type: ignore[method-assign, assignment]
    else:
        harness.tools.on_call = die
    with pytest.raises(Died):
        await harness.run(run)
    harness.tools.on_call = lambda: None
    if after:
        del harness.recall.commit_step
    return run


async def test_next_run_reports_the_call_as_not_started() -> None:
    harness = gated_harness("acts")
    rule(harness, most("acts", 1), tools=("acts", "reads"))
    await harness.run(None, harness.calls("reads", "acts"))
    await answered_in_vain(harness)
    sink = await harness.run(harness.request("And?"), reply("It was not done."))
    assert sink.outcome.stop_reason is StopReason.END_TURN
    waited, approved = returns(harness)
    assert (waited.status, approved.status) == (ToolStatus.FAILED, ToolStatus.FAILED)
    assert return_messages(harness)[1].startswith("The call was not started: it was approved")
    assert not acts(harness)
    assert_a_provider_takes_it(harness)


async def test_an_answer_after_an_unused_one_runs_the_call_once() -> None:
    harness = gated_harness("acts")
    await harness.run(None, harness.calls("reads", "acts"))
    request = asked(harness)
    await answered_in_vain(harness)
    await answered_in_vain(harness)
    sink = await harness.run(with_answer(harness, yes(request)), reply("Done."))
    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert return_messages(harness) == ["did reads", "did acts"]
    assert sum(acts(harness).values()) == 1
    assert open_requests(harness.recall.messages) == []
    assert_a_provider_takes_it(harness)


async def test_the_last_answer_decides_independently_of_the_first() -> None:
    for first, last, runs in ((no, yes, 1), (yes, no, 0)):
        harness = gated_harness("acts")
        await harness.run(None, harness.calls("acts"))
        request = asked(harness)
        await answered_in_vain(harness, first(request))
        await harness.run(with_answer(harness, last(request)), reply("Done."))
        assert sum(acts(harness).values()) == runs


async def test_next_run_reports_denials_and_client_returns() -> None:
    harness = gated_harness("acts", "edits")
    await harness.run(None, harness.calls("acts", "edits"))
    first, second = asked(harness).tool_calls
    mine = answer(
        asked(harness), Decision(first.id, reason="No."), Decision(second.id, client_return="mine")
    )
    await answered_in_vain(harness, mine)
    await harness.run(harness.request("And?"), reply("I see."))
    assert return_messages(harness) == [
        "Error: request to call tool denied. User reason: No.",
        "mine",
    ]


@pytest.mark.parametrize("dies", [False, True])
async def test_an_old_request_with_an_exit_tool_does_not_end_the_next_turn(dies: bool) -> None:
    harness = gated_harness("acts")
    rule(harness, leaves("acts"), tools=("acts", "reads"))
    await harness.run(None, harness.calls("acts"))
    [call] = asked(harness).tool_calls
    await answered_in_vain(harness, answer(asked(harness), Decision(call.id, client_return="mine")))
    run = harness.request("And?")
    if dies:
        # The request is settled and stored; no request to a model was made yet.
        harness.models.error = ModelError(ModelErrorKind.NOT_CONFIGURED, "no model")
        await harness.run(run)
        harness.models.error = None
        run = replace(run, attempt=2)
    sink = await harness.run(run, reply("I see."))
    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert return_messages(harness) == ["mine"]
    assert harness.recall.messages[-1].text == "I see."


@pytest.mark.parametrize("again", [True, False])
async def test_a_call_that_may_have_started_is_unknown_and_never_run_again(again: bool) -> None:
    harness = gated_harness("acts")
    await harness.run(None, harness.calls("acts"))
    request = asked(harness)
    await died_within(harness, after=False)
    ran = sum(acts(harness).values())
    following = with_answer(harness, yes(request)) if again else harness.request("And?")
    sink = await harness.run(following, reply("I do not know."))
    assert sink.outcome.stop_reason is StopReason.END_TURN
    [only] = returns(harness)
    assert only.status is ToolStatus.UNKNOWN
    assert sum(acts(harness).values()) == ran
    assert_pairs_are_whole(harness.recall.messages)


@pytest.mark.parametrize("again", [True, False])
async def test_finished_call_is_reported_with_its_result(again: bool) -> None:
    harness = gated_harness("acts")
    await harness.run(None, harness.calls("acts"))
    request = asked(harness)
    await died_within(harness, after=True)
    assert sum(acts(harness).values()) == 1
    following = with_answer(harness, yes(request)) if again else harness.request("And?")
    await harness.run(following, reply("It is done."))
    assert return_messages(harness) == ["did acts"]
    assert sum(acts(harness).values()) == 1


async def test_finished_run_cannot_start_its_calls() -> None:
    harness = gated_harness("acts")
    await harness.run(None, harness.calls("acts"))
    run = with_answer(harness, yes(asked(harness)))
    following = harness.request("And?")

    async def overtake() -> None:
        # The run is abandoned between the begin of its turn and its journal.
        harness.recall._fence = ("", 0)
        await harness.run(following, reply("Not done."))

    begin = harness.recall.begin_turn

    async def slowly(key: object, inputs: object, *, clear: bool = False) -> object:
        begun = await begin(key, inputs, clear=clear)  # type: ignore[arg-type]
        if key.run_id == run.run_id:  # type: ignore[attr-defined]
            harness.recall.begin_turn = begin  # type: ignore[method-assign]
            await overtake()
        return begun

    harness.recall.begin_turn = slowly  # type: ignore[method-assign, assignment]
    with pytest.raises(AbortedError):
        await harness.run(run)
    assert not acts(harness)
    assert return_messages(harness)[0].startswith("The call was not started:")


async def test_an_answer_is_used_by_the_retry_after_a_service_failure() -> None:
    harness = gated_harness("acts")
    await harness.run(None, harness.calls("acts"))
    run = with_answer(harness, yes(asked(harness)))
    compile_it = harness.memory.compile

    async def down(*_: object, **__: object) -> None:
        raise UnavailableError("core memory is down")

    harness.memory.compile = down  # type: ignore[method-assign, assignment]
    with pytest.raises(UnavailableError):
        await harness.run(run)
    harness.memory.compile = compile_it  # type: ignore[method-assign]
    await harness.run(replace(run, attempt=2), reply("Done."))
    assert return_messages(harness) == ["did acts"]
    assert sum(acts(harness).values()) == 1


async def test_a_fork_does_not_read_the_journal_of_the_original_run() -> None:
    harness = gated_harness("acts")
    await harness.run(None, harness.calls("acts"))
    run = await answered_in_vain(harness)
    harness.recall.messages = [replace(m, copied=True) for m in harness.recall.messages]
    await harness.run(harness.request("And here?"), reply("I do not know."))
    assert {tool_return.status for tool_return in returns(harness)} == {ToolStatus.UNKNOWN}
    assert run.run_id not in harness.journal.rows


async def test_an_answer_older_than_the_journal_counts_as_used() -> None:
    harness = gated_harness("acts")
    await harness.run(None, harness.calls("acts"))
    request = asked(harness)
    await answered_in_vain(harness)
    harness.clock.advance(timedelta(hours=24).total_seconds())
    await harness.run(with_answer(harness, yes(request)), reply("I do not know."))
    assert {tool_return.status for tool_return in returns(harness)} == {ToolStatus.UNKNOWN}
    assert not acts(harness)
