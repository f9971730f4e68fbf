"""Calls that need approval: requested once, run at most once, and never blocking."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from strata.agent_loop.domain.agent.tool_rules import ToolRule
from strata.agent_loop.domain.conversation.approvals import Decision, arguments_hash
from strata.agent_loop.domain.model.chat import ReasoningPart, TextPart, ToolCall
from strata.agent_loop.domain.run.events import ApprovalRequested, MessageStored
from strata.agent_loop.loop.approvals import open_requests
from strata.protocol.errors import Reason
from strata.shared.messages import MessageRole, ToolStatus
from strata.shared.provenance import Provenance
from strata.shared.stop_reasons import StopReason
from strata.shared.tool_rules import ToolRuleType
from unit.agent_loop.loop.gated import (
    acts,
    answer,
    asked,
    assert_a_provider_takes_it,
    change_tools,
    gated_world,
    no,
    returns,
    until_done,
    with_answer,
    yes,
)
from unit.agent_loop.loop.in_memory_ports import USAGE, LoopWorld, assert_pairs_are_whole, reply
from unit.agent_loop.loop.journals import Died
from unit.agent_loop.loop.ruled import most, return_messages, rule

GATE = ToolRuleType.REQUIRES_APPROVAL


def roles(world: LoopWorld) -> list[str]:
    return [message.role.value for message in world.recall.messages[1:]]


async def test_a_call_that_needs_approval_ends_the_run_with_a_request() -> None:
    world = gated_world("acts")
    calls = world.calls("reads", "acts")
    model_reply = replace(calls, content=(ReasoningPart("hm", "signed"), TextPart("Shall I?")))
    sink = await world.run(None, model_reply)

    assert sink.outcome.stop_reason is StopReason.REQUIRES_APPROVAL
    assert (sink.outcome.step_count, sink.outcome.usage) == (1, USAGE)
    assert roles(world) == ["user", "approval"]
    assert world.tools.batches == []
    request = asked(world)
    reads, gated = model_reply.tool_calls
    assert (request.tool_calls, request.waiting_calls) == ((gated,), (reads,))
    assert request.calls == model_reply.tool_calls
    assert [bound.tool_call_id for bound in request.bindings] == [reads.id, gated.id]
    assert {bound.tool_version for bound in request.bindings} == {"1"}
    assert request.bindings[1].arguments_hash == arguments_hash("{}")
    assert request.expire_time is not None
    assert (request.expire_time - world.clock.now()).total_seconds() == world.ports.approval_s
    assert [event.request for event in sink.of(ApprovalRequested)] == [request]
    assert sink.kinds[-2:] == ["ApprovalRequested", "RunFinished"]


async def test_an_approved_call_runs_once_and_the_reply_is_stored_whole() -> None:
    world = gated_world("acts")
    calls = world.calls("reads", "acts")
    model_reply = replace(calls, content=(ReasoningPart("hm", "signed"), TextPart("Shall I?")))
    await world.run(None, model_reply)
    sink = await world.run(with_answer(world, yes(asked(world))), reply("Done."))

    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert (sink.outcome.step_count, sink.outcome.usage) == (1, USAGE)
    assert roles(world) == ["user", "approval", "approval", "assistant", "tool", "assistant"]
    whole = world.recall.messages[4]
    assert whole.parts == (*model_reply.content, *model_reply.tool_calls)
    assert whole.usage is None
    assert whole.step_id == world.recall.messages[2].step_id
    assert return_messages(world) == ["did reads", "did acts"]
    assert acts(world) == {model_reply.tool_calls[1].id: 1}
    assert_a_provider_takes_it(world)
    [shown] = world.model.requests[1:]
    assert [chat.role.value for chat in shown.messages[1:]] == ["user", "assistant", "tool", "tool"]


async def test_a_denied_call_tells_the_reason_and_does_not_run() -> None:
    world = gated_world("acts")
    await world.run(None, world.calls("reads", "acts"))
    await world.run(with_answer(world, no(asked(world), "Too dear.")), reply("I see."))

    assert return_messages(world) == [
        "did reads",
        "Error: request to call tool denied. User reason: Too dear.",
    ]
    assert returns(world)[1].status is ToolStatus.FAILED
    assert not acts(world)


async def test_client_return_replaces_the_call() -> None:
    world = gated_world("acts", "edits")
    await world.run(None, world.calls("acts", "edits"))
    first, second = asked(world).tool_calls
    response = answer(
        asked(world),
        Decision(first.id, client_return="42"),
        Decision(second.id, client_return="no disk", client_failed=True),
    )
    response = replace(response, answered_by="key-of-the-answer")
    await world.run(with_answer(world, response), reply("Good."))

    assert return_messages(world) == ["42", "no disk"]
    assert [tool_return.status for tool_return in returns(world)] == [
        ToolStatus.OK,
        ToolStatus.FAILED,
    ]
    # A person's words, not the tool's, and with the key that they came with.
    assert {tool_return.provenance for tool_return in returns(world)} == {Provenance.USER}
    assert {tool_return.returned_by for tool_return in returns(world)} == {"key-of-the-answer"}
    assert world.tools.batches == []
    assert world.journal.opened == 0


async def test_a_rule_can_ask_for_approval_and_say_how_long_it_waits() -> None:
    world = LoopWorld()
    rule(world, ToolRule(GATE, "acts", timeout_s=60), tools=("acts", "reads"))
    await world.run(None, world.calls("acts"))
    expires = asked(world).expire_time
    assert expires is not None
    assert (expires - world.clock.now()).total_seconds() == 60


async def test_no_approval_is_requested_for_refused_calls() -> None:
    world = gated_world("acts")
    broken = replace(world.calls(), tool_calls=(ToolCall("broken", "acts", "{"),))
    sink = await world.run(None, broken, reply("Oh."))
    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert roles(world) == ["user", "assistant", "tool", "assistant"]


async def test_people_see_the_arguments_that_rules_give() -> None:
    world = gated_world("acts")
    prefilling = ToolRule(ToolRuleType.RUN_FIRST, "acts", prefilled={"acts": '{"x": 1}'})
    rule(world, prefilling, tools=("acts",))
    toolset = world.tools.toolset
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
    tools = (replace(t, schema=replace(t.schema, parameters=schema)) for t in toolset.tools)
    world.tools.toolset = replace(toolset, tools=tuple(tools))
    await world.run(None, world.calls("acts"))
    [call] = asked(world).tool_calls
    assert json.loads(call.arguments) == {"x": 1}
    await world.run(with_answer(world, yes(asked(world))), reply("Done."))
    [batch] = world.tools.batches
    assert batch.calls == [call]


async def test_an_approved_call_is_not_judged_by_the_rules_and_counts() -> None:
    world = gated_world("acts")
    rule(world, most("acts", 1), tools=("acts", "reads"))
    await world.run(None, world.calls("acts"))
    await world.run(with_answer(world, yes(asked(world))), world.calls("acts"), reply("x"))
    first, second = return_messages(world)
    assert first == "did acts"
    assert second.startswith("[ToolConstraintError]")


async def test_new_message_instead_of_an_answer_denies_and_continues() -> None:
    world = gated_world("acts")
    await world.run(None, world.calls("reads", "acts"))
    sink = await world.run(world.request("Never mind."), reply("Fine."))

    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert roles(world) == ["user", "approval", "user", "assistant", "tool", "assistant"]
    waited, denied = return_messages(world)
    assert denied.startswith("Error: request to call tool denied. The user did not answer")
    assert waited.startswith("The call was not started:")
    assert world.tools.batches == []
    assert open_requests(world.recall.messages) == []
    assert_a_provider_takes_it(world)


async def test_expired_request_is_reported_to_the_agent() -> None:
    world = gated_world("acts")
    await world.run(None, world.calls("acts"))
    world.clock.advance(world.ports.approval_s)
    await world.run(world.request("Hello?"), reply("Hello."))
    assert return_messages(world) == [
        "Error: request to call tool denied. Nobody answered before the deadline of the request."
    ]


async def test_the_first_answer_counts() -> None:
    world = gated_world("acts")
    await world.run(None, world.calls("acts"))
    request = asked(world)
    await world.run(with_answer(world, yes(request)), reply("Done."))
    before = roles(world)
    for late in (yes(request), no(request)):
        sink = await world.run(with_answer(world, late))
        failure = sink.outcome.failure
        assert failure is not None
        assert failure.reason is Reason.APPROVAL_NOT_FOUND
    assert sum(acts(world).values()) == 1
    assert roles(world) == [*before, "approval", "approval"]
    assert_a_provider_takes_it(world)


@pytest.mark.parametrize("change", ["changed", "deleted"])
async def test_tool_that_changed_since_the_request_does_not_run(change: str) -> None:
    world = gated_world("acts")
    await world.run(None, world.calls("acts", "reads"))
    request = asked(world)
    if change == "changed":
        change_tools(world, "acts", version="2")
    else:
        world.tools.toolset = world.tools.toolset.only({"reads"})
    sink = await world.run(with_answer(world, yes(request)), reply("Oh."))
    assert sink.outcome.stop_reason is StopReason.END_TURN
    refused, free = return_messages(world)
    starts = {
        "changed": "The call needs the approval of a person: acts was changed",
        "deleted": "[ToolConstraintError] Cannot call acts",
    }
    assert refused.startswith(starts[change])
    assert free == "did reads"
    assert not acts(world)


async def test_dispatch_after_the_request_emits_it_again_without_a_model_call() -> None:
    world = gated_world("acts")
    request = world.request()
    first = await world.run(request, world.calls("acts"))
    again = await world.run(replace(request, attempt=2))
    assert again.outcome == first.outcome
    assert again.of(ApprovalRequested) == first.of(ApprovalRequested)
    assert len(world.model.requests) == 1


async def test_settling_a_request_does_not_use_up_the_last_step() -> None:
    world = gated_world("acts")
    await world.run(world.request(max_steps=1), world.calls("acts"))
    sink = await world.run(with_answer(world, yes(asked(world)), max_steps=1), reply("Done."))
    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert sink.outcome.step_count == 1


async def test_a_tool_that_ends_the_turn_ends_it_after_approval() -> None:
    world = gated_world("acts")
    rule(world, ToolRule(ToolRuleType.EXIT_LOOP, "acts"), tools=("acts",))
    await world.run(None, world.calls("acts"))
    sink = await world.run(with_answer(world, yes(asked(world))))
    assert sink.outcome.stop_reason is StopReason.TOOL_RULE


async def test_call_that_needs_approval_unexpectedly_is_not_run() -> None:
    world = gated_world("acts")
    # Only after `reads` has returned it is known that `acts` may be called; it is gated from then.
    rule(world, ToolRule(ToolRuleType.RUN_FIRST, "reads"), tools=("acts", "reads"))
    await world.run(None, world.calls("reads", "acts"))
    assert [call.name for call in asked(world).tool_calls] == ["acts"]
    assert not acts(world)


async def test_reply_whose_tool_needs_approval_since_is_not_run() -> None:
    world = gated_world()
    request = world.request()

    def die() -> None:
        raise Died

    world.tools.on_call = die
    with pytest.raises(Died):
        await world.run(request, world.calls("reads", "acts"))
    world.tools.on_call = lambda: None
    change_tools(world, "acts")
    sink = await world.run(replace(request, attempt=2), reply("Oh."))
    assert sink.outcome.stop_reason is StopReason.END_TURN
    free, refused = return_messages(world)
    assert free == "did reads"
    assert refused.startswith("The call needs the approval of a person")
    assert not acts(world)


async def test_crash_at_any_point_asks_once_and_acts_once() -> None:
    for last in range(60):
        world = gated_world("acts")
        world.fate.last = last
        request = world.request()
        await until_done(world, request, [world.calls("acts"), reply("x")])
        world.fate.last = None
        if not open_requests(world.recall.messages):
            # The reply was lost before it was stored, and the model said something else.
            continue
        world.fate.calls = 0
        world.fate.last = last
        world.model.replies.clear()
        sink = await until_done(
            world, with_answer(world, yes(asked(world))), [reply("Done."), reply("Done.")]
        )
        assert sink.outcome.stop_reason is StopReason.END_TURN
        [only] = returns(world)
        assert max(acts(world).values(), default=0) <= 1
        assert (only.status is ToolStatus.OK) <= (sum(acts(world).values()) == 1)
        assert [m.role for m in world.recall.messages].count(MessageRole.APPROVAL) == 2
        assert_pairs_are_whole(world.recall.messages)
        stored = [event.message.id for event in sink.of(MessageStored)]
        assert len(stored) == len(set(stored))
