"""Approvals by default at a deadline, through the whole system."""

from __future__ import annotations

import asyncio

import pytest

from chat_messages import roles
from doubles.script import call, say
from gated_inserts import GATE, INSERT
from strata.api.common.v1 import tool_pb2
from strata.api.gateway.v1 import run_service_pb2 as run_pb
from strata.protocol.errors import InvalidArgumentError
from whole_system import System

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_an_undecided_call_runs_at_its_deadline(system: System) -> None:
    rule = tool_pb2.ToolRule(
        type=GATE.type,
        tool_name=GATE.tool_name,
        timeout_s=1,
        default_decision=tool_pb2.DEFAULT_DECISION_APPROVE,
    )
    agent = await system.make_agent(tool_rules=[rule])
    assert agent.tool_rules == [rule]
    system.model.script(call("memory_insert", INSERT), say("Noted."))
    asked = (await system.send(agent, "I like rowing.")).approval
    assert asked.default_decision == tool_pb2.DEFAULT_DECISION_APPROVE
    wanted = run_pb.GetApprovalRequest(approval_id=asked.approval_id)
    async with asyncio.timeout(60):
        while not (approval := (await system.runs.GetApproval(wanted)).approval).answer_run_id:
            await asyncio.sleep(0.05)
    assert approval.request == asked
    ran = await system.follow(approval.answer_run_id)
    assert ran.text == "Noted."
    assert (await system.block(agent, "human")).value.count("Likes rowing.") == 1
    log = await system.log(agent)
    assert roles(log)[1:] == ["user", "approval", "approval", "assistant", "tool", "assistant"]
    assert log[3].parts[0].approval_response.by_default


async def test_a_default_approval_is_refused_for_a_taint_rule(system: System) -> None:
    rule = tool_pb2.ToolRule(
        type=GATE.type,
        tool_name=GATE.tool_name,
        when_tainted=True,
        default_decision=tool_pb2.DEFAULT_DECISION_APPROVE,
    )
    with pytest.raises(InvalidArgumentError) as raised:
        await system.make_agent(tool_rules=[rule])
    [violation] = raised.value.violations
    assert violation.field == "tool_rules[0].default_decision"
