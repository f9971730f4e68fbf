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
    gated_world,
    no,
    returns,
    with_answer,
    yes,
)
from unit.agent_loop.loop.in_memory_ports import LoopWorld, assert_pairs_are_whole, reply
from unit.agent_loop.loop.journals import Died
from unit.agent_loop.loop.ruled import leaves, most, return_messages, rule


async def answered_in_vain(
    world: LoopWorld, response: ApprovalResponse | None = None
) -> RunRequest:
    """A run that has an answer, and no model."""
    run = with_answer(world, response or yes(asked(world)))
    world.models.error = ModelError(ModelErrorKind.NOT_CONFIGURED, "no model")
    sink = await world.run(run)
    assert sink.outcome.stop_reason is StopReason.LLM_API_ERROR
    world.models.error = None
    return run


async def died_within(world: LoopWorld, *, after: bool) -> RunRequest:
    """A run that has an answer, and whose process dies in the call or after its result."""
    run = with_answer(world, yes(asked(world)))

    def die(*_: object) -> None:
        raise Died

    if after:
        # The step is not stored: its calls have ended.
        world.recall.commit_step = die  # type: ignore[method-assign, assignment]
    else:
        world.tools.on_call = die
    with pytest.raises(Died):
        await world.run(run)
    world.tools.on_call = lambda: None
    if after:
        del world.recall.commit_step
    return run


async def test_next_run_reports_the_call_as_not_started() -> None:
    world = gated_world("acts")
    rule(world, most("acts", 1), tools=("acts", "reads"))
    await world.run(None, world.calls("reads", "acts"))
    await answered_in_vain(world)
    sink = await world.run(world.request("And?"), reply("It was not done."))
    assert sink.outcome.stop_reason is StopReason.END_TURN
    waited, approved = returns(world)
    assert (waited.status, approved.status) == (ToolStatus.FAILED, ToolStatus.FAILED)
    assert return_messages(world)[1].startswith("The call was not started: it was approved")
    assert not acts(world)
    assert_a_provider_takes_it(world)


async def test_another_answer_counts_and_the_call_runs_once() -> None:
    world = gated_world("acts")
    await world.run(None, world.calls("reads", "acts"))
    request = asked(world)
    await answered_in_vain(world)
    await answered_in_vain(world)
    sink = await world.run(with_answer(world, yes(request)), reply("Done."))
    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert return_messages(world) == ["did reads", "did acts"]
    assert sum(acts(world).values()) == 1
    assert open_requests(world.recall.messages) == []
    assert_a_provider_takes_it(world)


async def test_the_last_answer_counts_whatever_the_first_was() -> None:
    for first, last, runs in ((no, yes, 1), (yes, no, 0)):
        world = gated_world("acts")
        await world.run(None, world.calls("acts"))
        request = asked(world)
        await answered_in_vain(world, first(request))
        await world.run(with_answer(world, last(request)), reply("Done."))
        assert sum(acts(world).values()) == runs


async def test_next_run_reports_denials_and_client_returns() -> None:
    world = gated_world("acts", "edits")
    await world.run(None, world.calls("acts", "edits"))
    first, second = asked(world).tool_calls
    mine = answer(
        asked(world), Decision(first.id, reason="No."), Decision(second.id, client_return="mine")
    )
    await answered_in_vain(world, mine)
    await world.run(world.request("And?"), reply("I see."))
    assert return_messages(world) == [
        "Error: request to call tool denied. User reason: No.",
        "mine",
    ]


@pytest.mark.parametrize("dies", [False, True])
async def test_an_old_request_whose_call_ends_a_turn_does_not_end_the_next_one(dies: bool) -> None:
    world = gated_world("acts")
    rule(world, leaves("acts"), tools=("acts", "reads"))
    await world.run(None, world.calls("acts"))
    [call] = asked(world).tool_calls
    await answered_in_vain(world, answer(asked(world), Decision(call.id, client_return="mine")))
    run = world.request("And?")
    if dies:
        # The request is settled and stored; no model was asked yet.
        world.models.error = ModelError(ModelErrorKind.NOT_CONFIGURED, "no model")
        await world.run(run)
        world.models.error = None
        run = replace(run, attempt=2)
    sink = await world.run(run, reply("I see."))
    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert return_messages(world) == ["mine"]
    assert world.recall.messages[-1].text == "I see."


@pytest.mark.parametrize("again", [True, False])
async def test_a_call_that_may_have_begun_is_unknown_and_never_run_again(again: bool) -> None:
    world = gated_world("acts")
    await world.run(None, world.calls("acts"))
    request = asked(world)
    await died_within(world, after=False)
    ran = sum(acts(world).values())
    following = with_answer(world, yes(request)) if again else world.request("And?")
    sink = await world.run(following, reply("I do not know."))
    assert sink.outcome.stop_reason is StopReason.END_TURN
    [only] = returns(world)
    assert only.status is ToolStatus.UNKNOWN
    assert sum(acts(world).values()) == ran
    assert_pairs_are_whole(world.recall.messages)


@pytest.mark.parametrize("again", [True, False])
async def test_finished_call_is_reported_with_its_result(again: bool) -> None:
    world = gated_world("acts")
    await world.run(None, world.calls("acts"))
    request = asked(world)
    await died_within(world, after=True)
    assert sum(acts(world).values()) == 1
    following = with_answer(world, yes(request)) if again else world.request("And?")
    await world.run(following, reply("It is done."))
    assert return_messages(world) == ["did acts"]
    assert sum(acts(world).values()) == 1


async def test_finished_run_cannot_start_its_calls() -> None:
    world = gated_world("acts")
    await world.run(None, world.calls("acts"))
    run = with_answer(world, yes(asked(world)))
    following = world.request("And?")

    async def overtake() -> None:
        # Between the begin of its turn and its journal, somebody gives it up.
        world.recall._fence = ("", 0)
        await world.run(following, reply("Not done."))

    begin = world.recall.begin_turn

    async def slowly(key: object, inputs: object, *, clear: bool = False) -> object:
        begun = await begin(key, inputs, clear=clear)  # type: ignore[arg-type]
        if key.run_id == run.run_id:  # type: ignore[attr-defined]
            world.recall.begin_turn = begin  # type: ignore[method-assign]
            await overtake()
        return begun

    world.recall.begin_turn = slowly  # type: ignore[method-assign, assignment]
    with pytest.raises(AbortedError):
        await world.run(run)
    assert not acts(world)
    assert return_messages(world)[0].startswith("The call was not started:")


async def test_a_service_that_is_down_leaves_the_answer_to_the_retry() -> None:
    world = gated_world("acts")
    await world.run(None, world.calls("acts"))
    run = with_answer(world, yes(asked(world)))
    compile_it = world.memory.compile

    async def down(*_: object, **__: object) -> None:
        raise UnavailableError("core memory is down")

    world.memory.compile = down  # type: ignore[method-assign, assignment]
    with pytest.raises(UnavailableError):
        await world.run(run)
    world.memory.compile = compile_it  # type: ignore[method-assign]
    await world.run(replace(run, attempt=2), reply("Done."))
    assert return_messages(world) == ["did acts"]
    assert sum(acts(world).values()) == 1


async def test_a_fork_leaves_the_run_of_the_original_alone() -> None:
    world = gated_world("acts")
    await world.run(None, world.calls("acts"))
    run = await answered_in_vain(world)
    world.recall.messages = [replace(m, copied=True) for m in world.recall.messages]
    await world.run(world.request("And here?"), reply("I do not know."))
    assert {tool_return.status for tool_return in returns(world)} == {ToolStatus.UNKNOWN}
    assert run.run_id not in world.journal.rows


async def test_answer_older_than_the_journal_counts_as_used() -> None:
    world = gated_world("acts")
    await world.run(None, world.calls("acts"))
    request = asked(world)
    await answered_in_vain(world)
    world.clock.advance(timedelta(hours=24).total_seconds())
    await world.run(with_answer(world, yes(request)), reply("I do not know."))
    assert {tool_return.status for tool_return in returns(world)} == {ToolStatus.UNKNOWN}
    assert not acts(world)
