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
    gated_harness,
    no,
    returns,
    until_done,
    with_answer,
    yes,
)
from unit.agent_loop.loop.journals import Died
from unit.agent_loop.loop.loop_harness import LoopHarness, assert_pairs_are_whole
from unit.agent_loop.loop.model_replies import USAGE, reply
from unit.agent_loop.loop.ruled import most, return_messages, rule

GATE = ToolRuleType.REQUIRES_APPROVAL


def roles(harness: LoopHarness) -> list[str]:
    return [message.role.value for message in harness.recall.messages[1:]]


async def test_a_call_that_needs_approval_ends_the_run_with_a_request() -> None:
    harness = gated_harness("acts")
    calls = harness.calls("reads", "acts")
    model_reply = replace(calls, content=(ReasoningPart("hm", "signed"), TextPart("Shall I?")))
    sink = await harness.run(None, model_reply)

    assert sink.outcome.stop_reason is StopReason.REQUIRES_APPROVAL
    assert (sink.outcome.step_count, sink.outcome.usage) == (1, USAGE)
    assert roles(harness) == ["user", "approval"]
    assert harness.tools.batches == []
    request = asked(harness)
    reads, gated = model_reply.tool_calls
    assert (request.tool_calls, request.waiting_calls) == ((gated,), (reads,))
    assert request.calls == model_reply.tool_calls
    assert [bound.tool_call_id for bound in request.bindings] == [reads.id, gated.id]
    assert {bound.tool_version for bound in request.bindings} == {"1"}
    assert request.bindings[1].arguments_hash == arguments_hash("{}")
    assert request.expire_time is not None
    assert (request.expire_time - harness.clock.now()).total_seconds() == harness.ports.approval_s
    assert [event.request for event in sink.of(ApprovalRequested)] == [request]
    assert sink.kinds[-2:] == ["ApprovalRequested", "RunFinished"]


async def test_an_approved_call_runs_once_and_the_reply_is_stored_whole() -> None:
    harness = gated_harness("acts")
    calls = harness.calls("reads", "acts")
    model_reply = replace(calls, content=(ReasoningPart("hm", "signed"), TextPart("Shall I?")))
    await harness.run(None, model_reply)
    sink = await harness.run(with_answer(harness, yes(asked(harness))), reply("Done."))

    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert (sink.outcome.step_count, sink.outcome.usage) == (1, USAGE)
    assert roles(harness) == ["user", "approval", "approval", "assistant", "tool", "assistant"]
    whole = harness.recall.messages[4]
    assert whole.parts == (*model_reply.content, *model_reply.tool_calls)
    assert whole.usage is None
    assert whole.step_id == harness.recall.messages[2].step_id
    assert return_messages(harness) == ["did reads", "did acts"]
    assert acts(harness) == {model_reply.tool_calls[1].id: 1}
    assert_a_provider_takes_it(harness)
    [shown] = harness.model.requests[1:]
    assert [chat.role.value for chat in shown.messages[1:]] == ["user", "assistant", "tool", "tool"]


async def test_a_denied_call_returns_the_reason_and_does_not_run() -> None:
    harness = gated_harness("acts")
    await harness.run(None, harness.calls("reads", "acts"))
    await harness.run(with_answer(harness, no(asked(harness), "Too dear.")), reply("I see."))

    assert return_messages(harness) == [
        "did reads",
        "Error: request to call tool denied. User reason: Too dear.",
    ]
    assert returns(harness)[1].status is ToolStatus.FAILED
    assert not acts(harness)


async def test_client_return_replaces_the_call() -> None:
    harness = gated_harness("acts", "edits")
    await harness.run(None, harness.calls("acts", "edits"))
    first, second = asked(harness).tool_calls
    response = answer(
        asked(harness),
        Decision(first.id, client_return="42"),
        Decision(second.id, client_return="no disk", client_failed=True),
    )
    response = replace(response, answered_by="key-of-the-answer")
    await harness.run(with_answer(harness, response), reply("Good."))

    assert return_messages(harness) == ["42", "no disk"]
    assert [tool_return.status for tool_return in returns(harness)] == [
        ToolStatus.OK,
        ToolStatus.FAILED,
    ]
    # The text is from a person, not from the tool, and has the key of the answer.
    assert {tool_return.provenance for tool_return in returns(harness)} == {Provenance.USER}
    assert {tool_return.returned_by for tool_return in returns(harness)} == {"key-of-the-answer"}
    assert harness.tools.batches == []
    assert harness.journal.opened == 0


async def test_a_rule_can_require_approval_with_a_deadline() -> None:
    harness = LoopHarness()
    rule(harness, ToolRule(GATE, "acts", timeout_s=60), tools=("acts", "reads"))
    await harness.run(None, harness.calls("acts"))
    expires = asked(harness).expire_time
    assert expires is not None
    assert (expires - harness.clock.now()).total_seconds() == 60


async def test_no_approval_is_requested_for_refused_calls() -> None:
    harness = gated_harness("acts")
    broken = replace(harness.calls(), tool_calls=(ToolCall("broken", "acts", "{"),))
    sink = await harness.run(None, broken, reply("Oh."))
    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert roles(harness) == ["user", "assistant", "tool", "assistant"]


def take_an_integer(harness: LoopHarness) -> None:
    """Gives all tools an argument ``x``."""
    toolset = harness.tools.toolset
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
    tools = (replace(t, schema=replace(t.schema, parameters=schema)) for t in toolset.tools)
    harness.tools.toolset = replace(toolset, tools=tuple(tools))


async def test_no_approval_is_requested_for_a_call_with_invalid_arguments() -> None:
    harness = gated_harness("acts")
    take_an_integer(harness)
    wrong = replace(harness.calls(), tool_calls=(ToolCall("wrong", "acts", '{"x": "two"}'),))
    sink = await harness.run(None, wrong, reply("Oh."))

    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert roles(harness) == ["user", "assistant", "tool", "assistant"]
    [message] = return_messages(harness)
    assert message.startswith("Invalid arguments for acts: ")
    assert harness.tools.batches == []


async def test_an_approval_covers_only_the_calls_with_valid_arguments() -> None:
    harness = gated_harness("acts")
    take_an_integer(harness)
    calls = (ToolCall("wrong", "acts", '{"x": "two"}'), ToolCall("right", "acts", '{"x": 2}'))
    await harness.run(None, replace(harness.calls(), tool_calls=calls))
    assert [call.id for call in asked(harness).tool_calls] == ["right"]
    await harness.run(with_answer(harness, yes(asked(harness))), reply("Done."))

    wrong, right = return_messages(harness)
    assert wrong.startswith("Invalid arguments for acts: ")
    assert right == "did acts"
    assert acts(harness) == {"right": 1}


async def test_an_approval_request_shows_prefilled_arguments() -> None:
    harness = gated_harness("acts")
    prefilling = ToolRule(ToolRuleType.RUN_FIRST, "acts", prefilled={"acts": '{"x": 1}'})
    rule(harness, prefilling, tools=("acts",))
    take_an_integer(harness)
    await harness.run(None, harness.calls("acts"))
    [call] = asked(harness).tool_calls
    assert json.loads(call.arguments) == {"x": 1}
    await harness.run(with_answer(harness, yes(asked(harness))), reply("Done."))
    [batch] = harness.tools.batches
    assert batch.calls == [call]


async def test_an_approved_call_is_not_judged_by_the_rules_and_counts() -> None:
    harness = gated_harness("acts")
    rule(harness, most("acts", 1), tools=("acts", "reads"))
    await harness.run(None, harness.calls("acts"))
    await harness.run(with_answer(harness, yes(asked(harness))), harness.calls("acts"), reply("x"))
    first, second = return_messages(harness)
    assert first == "did acts"
    assert second.startswith("[ToolConstraintError]")


async def test_new_message_instead_of_an_answer_denies_and_continues() -> None:
    harness = gated_harness("acts")
    await harness.run(None, harness.calls("reads", "acts"))
    sink = await harness.run(harness.request("Never mind."), reply("Fine."))

    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert roles(harness) == ["user", "approval", "user", "assistant", "tool", "assistant"]
    waited, denied = return_messages(harness)
    assert denied.startswith("Error: request to call tool denied. The user did not answer")
    assert waited.startswith("The call was not started:")
    assert harness.tools.batches == []
    assert open_requests(harness.recall.messages) == []
    assert_a_provider_takes_it(harness)


async def test_expired_request_is_reported_to_the_agent() -> None:
    harness = gated_harness("acts")
    await harness.run(None, harness.calls("acts"))
    harness.clock.advance(harness.ports.approval_s)
    await harness.run(harness.request("Hello?"), reply("Hello."))
    assert return_messages(harness) == [
        "Error: request to call tool denied. Nobody answered before the deadline of the request."
    ]


async def test_later_answers_to_an_approval_are_ignored() -> None:
    harness = gated_harness("acts")
    await harness.run(None, harness.calls("acts"))
    request = asked(harness)
    await harness.run(with_answer(harness, yes(request)), reply("Done."))
    before = roles(harness)
    for late in (yes(request), no(request)):
        sink = await harness.run(with_answer(harness, late))
        failure = sink.outcome.failure
        assert failure is not None
        assert failure.reason is Reason.APPROVAL_NOT_FOUND
    assert sum(acts(harness).values()) == 1
    assert roles(harness) == [*before, "approval", "approval"]
    assert_a_provider_takes_it(harness)


@pytest.mark.parametrize("change", ["changed", "deleted"])
async def test_tool_that_changed_since_the_request_does_not_run(change: str) -> None:
    harness = gated_harness("acts")
    await harness.run(None, harness.calls("acts", "reads"))
    request = asked(harness)
    if change == "changed":
        change_tools(harness, "acts", version="2")
    else:
        harness.tools.toolset = harness.tools.toolset.only({"reads"})
    sink = await harness.run(with_answer(harness, yes(request)), reply("Oh."))
    assert sink.outcome.stop_reason is StopReason.END_TURN
    refused, free = return_messages(harness)
    starts = {
        "changed": "The call needs the approval of a person: acts was changed",
        "deleted": "[ToolConstraintError] Cannot call acts",
    }
    assert refused.startswith(starts[change])
    assert free == "did reads"
    assert not acts(harness)


async def test_dispatch_after_the_request_emits_it_again_without_a_model_call() -> None:
    harness = gated_harness("acts")
    request = harness.request()
    first = await harness.run(request, harness.calls("acts"))
    again = await harness.run(replace(request, attempt=2))
    assert again.outcome == first.outcome
    assert again.of(ApprovalRequested) == first.of(ApprovalRequested)
    assert len(harness.model.requests) == 1


async def test_settling_a_request_does_not_use_up_the_last_step() -> None:
    harness = gated_harness("acts")
    await harness.run(harness.request(max_steps=1), harness.calls("acts"))
    sink = await harness.run(with_answer(harness, yes(asked(harness)), max_steps=1), reply("Done."))
    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert sink.outcome.step_count == 1


async def test_a_tool_that_ends_the_turn_ends_it_after_approval() -> None:
    harness = gated_harness("acts")
    rule(harness, ToolRule(ToolRuleType.EXIT_LOOP, "acts"), tools=("acts",))
    await harness.run(None, harness.calls("acts"))
    sink = await harness.run(with_answer(harness, yes(asked(harness))))
    assert sink.outcome.stop_reason is StopReason.TOOL_RULE


async def test_call_that_needs_approval_unexpectedly_is_not_run() -> None:
    harness = gated_harness("acts")
    # Only after `reads` has returned, the rules allow `acts`, which needs approval from then on.
    rule(harness, ToolRule(ToolRuleType.RUN_FIRST, "reads"), tools=("acts", "reads"))
    await harness.run(None, harness.calls("reads", "acts"))
    assert [call.name for call in asked(harness).tool_calls] == ["acts"]
    assert not acts(harness)


async def test_reply_whose_tool_now_needs_approval_is_not_run() -> None:
    harness = gated_harness()
    request = harness.request()

    def die() -> None:
        raise Died

    harness.tools.on_call = die
    with pytest.raises(Died):
        await harness.run(request, harness.calls("reads", "acts"))
    harness.tools.on_call = lambda: None
    change_tools(harness, "acts")
    sink = await harness.run(replace(request, attempt=2), reply("Oh."))
    assert sink.outcome.stop_reason is StopReason.END_TURN
    free, refused = return_messages(harness)
    assert free == "did reads"
    assert refused.startswith("The call needs the approval of a person")
    assert not acts(harness)


async def test_a_crash_at_any_point_requests_approval_once_and_runs_once() -> None:
    for last in range(60):
        harness = gated_harness("acts")
        harness.fate.last = last
        request = harness.request()
        await until_done(harness, request, [harness.calls("acts"), reply("x")])
        harness.fate.last = None
        if not open_requests(harness.recall.messages):
            # The reply was lost before it was stored, and the model gave another one.
            continue
        harness.fate.calls = 0
        harness.fate.last = last
        harness.model.replies.clear()
        sink = await until_done(
            harness, with_answer(harness, yes(asked(harness))), [reply("Done."), reply("Done.")]
        )
        assert sink.outcome.stop_reason is StopReason.END_TURN
        [only] = returns(harness)
        assert max(acts(harness).values(), default=0) <= 1
        assert (only.status is ToolStatus.OK) <= (sum(acts(harness).values()) == 1)
        assert [m.role for m in harness.recall.messages].count(MessageRole.APPROVAL) == 2
        assert_pairs_are_whole(harness.recall.messages)
        stored = [event.message.id for event in sink.of(MessageStored)]
        assert len(stored) == len(set(stored))
