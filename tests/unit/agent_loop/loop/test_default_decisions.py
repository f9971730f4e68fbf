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
    gated_world,
    returns,
    with_answer,
    yes,
)
from unit.agent_loop.loop.in_memory_ports import LoopWorld, reply
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
async def test_a_request_is_approved_by_default_if_every_call_is(
    rules: list[ToolRule], calls: list[str], approves: bool
) -> None:
    world = LoopWorld()
    rule(world, *rules, tools=TOOLS)
    await world.run(None, world.calls(*calls))
    assert asked(world).default_approve is approves
    assert not acts(world)


async def test_a_tool_that_needs_approval_by_itself_is_denied_unless_a_rule_says_otherwise() -> (
    None
):
    world = gated_world("acts", "edits")
    rule(world, LENIENT, tools=TOOLS)
    await world.run(None, world.calls("acts"))
    assert asked(world).default_approve
    await world.run(with_answer(world, yes(asked(world))), reply("Done."))
    await world.run(None, world.calls("acts", "edits"))
    assert not asked(world).default_approve


async def test_untrusted_content_disables_the_default_of_a_taint_rule() -> None:
    world = LoopWorld()
    rule(world, LENIENT, ToolRule(GATE, "acts", when_tainted=True), tools=TOOLS)
    world.memory.taint = {"human": (Provenance.WEB,)}
    await world.run(None, world.calls("acts"))
    assert not asked(world).default_approve


async def test_default_decision_runs_the_calls_and_is_labelled_as_system() -> None:
    world = LoopWorld()
    rule(world, LENIENT, tools=TOOLS)
    await world.run(None, world.calls("acts"))
    default = replace(yes(asked(world)), by_default=True)
    await world.run(with_answer(world, default), reply("Done."))
    assert return_messages(world) == ["did acts"]
    assert sum(acts(world).values()) == 1
    [response_message] = [m for m in world.recall.messages if m.approval_response is not None]
    assert response_message.provenance == (Provenance.SYSTEM,)


async def test_the_default_is_bound_to_the_version_of_the_tool() -> None:
    world = LoopWorld()
    rule(world, LENIENT, tools=TOOLS)
    await world.run(None, world.calls("acts"))
    default = replace(yes(asked(world)), by_default=True)
    change_tools(world, version="2")
    await world.run(with_answer(world, default), reply("Oh."))
    [refused] = return_messages(world)
    assert refused.startswith("The call needs the approval of a person: acts was changed")
    assert not acts(world)


async def test_new_message_instead_of_the_default_decision_denies() -> None:
    world = LoopWorld()
    rule(world, LENIENT, tools=TOOLS)
    await world.run(None, world.calls("acts"))
    world.clock.advance(world.ports.approval_s)
    await world.run(world.request("Never mind."), reply("Fine."))
    [denied] = return_messages(world)
    assert "The user did not answer" in denied
    assert [tool_return.name for tool_return in returns(world)] == ["acts"]
    assert not acts(world)


@pytest.mark.parametrize("default", [True, False])
def test_a_rule_is_stored_with_its_default(default: bool) -> None:
    kept = replace(LENIENT, default_approve=default)
    assert rule_from_json(rule_to_json(kept)) == kept
    assert ("default_approve" in rule_to_json(kept)) is default
