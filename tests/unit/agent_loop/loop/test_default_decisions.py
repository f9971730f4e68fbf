"""Unanswered approval requests under rules that approve by default."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strata.agent_loop.domain.agent.tool_rules import ToolRule, rule_from_json, rule_to_json
from strata.shared.provenance import Provenance
from strata.shared.tool_rules import ToolRuleType
from unit.agent_loop.loop.gated import (
    acts,
    asked,
    change_tools,
    gated_harness,
    returns,
    with_answer,
    yes,
)
from unit.agent_loop.loop.loop_harness import LoopHarness
from unit.agent_loop.loop.model_replies import reply
from unit.agent_loop.loop.ruled import return_messages, rule

GATE = ToolRuleType.REQUIRES_APPROVAL
TOOLS = ("acts", "reads", "edits")
LENIENT = ToolRule(GATE, "acts", default_approve=True)


@pytest.mark.parametrize(
    ("rules", "calls", "approves"),
    [
        ([LENIENT], ["acts"], True),
        ([LENIENT], ["acts", "reads"], True),
        ([LENIENT, LENIENT], ["acts", "acts"], True),
        ([ToolRule(GATE, "acts")], ["acts"], False),
        ([LENIENT, ToolRule(GATE, "acts")], ["acts"], False),
        ([LENIENT, ToolRule(GATE, "edits")], ["acts", "edits"], False),
        ([LENIENT, replace(LENIENT, tool_name="edits")], ["acts", "edits"], True),
        ([LENIENT, ToolRule(GATE, "acts", when_tainted=True)], ["acts"], True),
    ],
)
async def test_a_request_is_approved_by_default_only_if_every_call_is(
    rules: list[ToolRule], calls: list[str], approves: bool
) -> None:
    harness = LoopHarness()
    rule(harness, *rules, tools=TOOLS)
    await harness.run(None, harness.calls(*calls))
    assert asked(harness).default_approve is approves
    assert not acts(harness)


async def test_a_tool_that_needs_approval_by_itself_is_denied_unless_a_rule_says_otherwise() -> (
    None
):
    harness = gated_harness("acts", "edits")
    rule(harness, LENIENT, tools=TOOLS)
    await harness.run(None, harness.calls("acts"))
    assert asked(harness).default_approve
    await harness.run(with_answer(harness, yes(asked(harness))), reply("Done."))
    await harness.run(None, harness.calls("acts", "edits"))
    assert not asked(harness).default_approve


async def test_untrusted_content_disables_the_default_of_a_taint_rule() -> None:
    harness = LoopHarness()
    rule(harness, LENIENT, ToolRule(GATE, "acts", when_tainted=True), tools=TOOLS)
    harness.memory.taint = {"human": (Provenance.WEB,)}
    await harness.run(None, harness.calls("acts"))
    assert not asked(harness).default_approve


async def test_default_decision_runs_the_calls_and_is_labelled_as_system() -> None:
    harness = LoopHarness()
    rule(harness, LENIENT, tools=TOOLS)
    await harness.run(None, harness.calls("acts"))
    default = replace(yes(asked(harness)), by_default=True)
    await harness.run(with_answer(harness, default), reply("Done."))
    assert return_messages(harness) == ["did acts"]
    assert sum(acts(harness).values()) == 1
    [response_message] = [m for m in harness.recall.messages if m.approval_response is not None]
    assert response_message.provenance == (Provenance.SYSTEM,)


async def test_a_default_approval_applies_only_to_the_version_of_the_tool() -> None:
    harness = LoopHarness()
    rule(harness, LENIENT, tools=TOOLS)
    await harness.run(None, harness.calls("acts"))
    default = replace(yes(asked(harness)), by_default=True)
    change_tools(harness, version="2")
    await harness.run(with_answer(harness, default), reply("Oh."))
    [refused] = return_messages(harness)
    assert refused.startswith("The call needs the approval of a person: acts was changed")
    assert not acts(harness)


async def test_new_message_instead_of_the_default_decision_denies() -> None:
    harness = LoopHarness()
    rule(harness, LENIENT, tools=TOOLS)
    await harness.run(None, harness.calls("acts"))
    harness.clock.advance(harness.ports.approval_s)
    await harness.run(harness.request("Never mind."), reply("Fine."))
    [denied] = return_messages(harness)
    assert "The user did not answer" in denied
    assert [tool_return.name for tool_return in returns(harness)] == ["acts"]
    assert not acts(harness)


@pytest.mark.parametrize("default", [True, False])
def test_the_default_decision_of_a_rule_is_stored(default: bool) -> None:
    kept = replace(LENIENT, default_approve=default)
    assert rule_from_json(rule_to_json(kept)) == kept
    assert ("default_approve" in rule_to_json(kept)) is default
