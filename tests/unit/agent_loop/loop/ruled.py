"""Helpers for turns of agents with tool rules."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from strata.agent_loop.domain.agent.tool_rules import ToolRule
from strata.agent_loop.domain.conversation.messages import Message
from strata.agent_loop.domain.model.chat import ModelReply, ToolChoice
from strata.shared.tool_rules import ToolRuleType
from unit.agent_loop.loop.in_memory_ports import Agents, Sink
from unit.agent_loop.loop.journals import Died
from unit.agent_loop.loop.loop_harness import LoopHarness

AUTO = ToolChoice()
REASON = (
    "[This is an automated system message hidden from the user] "
    "ToolRuleViolated: You must call {} at least once to exit the loop."
)


def first(name: str, **more: Any) -> ToolRule:
    return ToolRule(ToolRuleType.RUN_FIRST, name, **more)


def child(name: str, *children: str, **more: Any) -> ToolRule:
    return ToolRule(ToolRuleType.CONSTRAIN_CHILD_TOOLS, name, children, **more)


def parent(name: str, *children: str) -> ToolRule:
    return ToolRule(ToolRuleType.PARENT_LAST_TOOL, name, children)


def most(name: str, count: int) -> ToolRule:
    return ToolRule(ToolRuleType.MAX_COUNT_PER_STEP, name, max_count=count)


def leaves(name: str) -> ToolRule:
    return ToolRule(ToolRuleType.EXIT_LOOP, name)


def required(name: str) -> ToolRule:
    return ToolRule(ToolRuleType.REQUIRED_BEFORE_EXIT, name)


def conditional(name: str, mapping: dict[str, str], **more: Any) -> ToolRule:
    return ToolRule(ToolRuleType.CONDITIONAL, name, child_output_mapping=mapping, **more)


def harness_with(
    *rules: ToolRule, tools: Sequence[str] = ("keyed", "reads", "acts")
) -> LoopHarness:
    harness = LoopHarness()
    rule(harness, *rules, tools=tools)
    return harness


def rule(harness: LoopHarness, *rules: ToolRule, tools: Sequence[str]) -> None:
    harness.agent = replace(harness.agent, tools=tuple(tools), tool_rules=rules)
    harness.ports = replace(harness.ports, agents=Agents(harness.agent))


def offered(harness: LoopHarness) -> list[tuple[list[str], ToolChoice]]:
    requests = harness.model.requests
    return [([tool.name for tool in asked.tools], asked.tool_choice) for asked in requests]


def return_messages(harness: LoopHarness) -> list[str]:
    """Returns the messages of all tool returns in the window."""
    returns = [part for message in harness.recall.messages for part in message.tool_returns]
    return [str(json.loads(part.content)["message"]) for part in returns]


def ran(harness: LoopHarness) -> list[list[str]]:
    return [[call.name for call in batch.calls] for batch in harness.tools.batches]


def heartbeats(harness: LoopHarness) -> list[Message]:
    return [message for message in harness.recall.messages if message.hidden]


async def until_done(
    harness: LoopHarness, replies: Sequence[ModelReply], deaths: Sequence[int]
) -> Sink:
    """Dispatches a run until it ends; its process can die in between."""
    request = harness.request("Say this once.", max_steps=len(replies))
    for attempt in range(1, len(deaths) + 2):
        resumed = harness.journal.rows.get(request.run_id, (0, None))[1]
        done = len(harness.recall.commits)
        journalled = resumed is not None and resumed.step == done + 1
        harness.model.replies = list(replies[done + journalled :])
        last = deaths[attempt - 1] if attempt <= len(deaths) else None
        harness.fate.last = None if last is None else harness.fate.calls + last
        try:
            return await harness.run(replace(request, attempt=attempt))
        except Died:
            continue
    raise AssertionError("the last attempt does not die")
