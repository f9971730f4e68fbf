"""A test tool whose arguments name the tools that its code calls."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Any

from strata.agent_loop.context.packaging import package
from strata.agent_loop.domain.agent.tool_rules import ToolRule
from strata.agent_loop.domain.conversation.messages import NestedCall, ToolReturn
from strata.agent_loop.domain.model.chat import ModelReply, ToolCall, ToolSchema
from strata.agent_loop.domain.tools import (
    CallFinished,
    CallStarted,
    CodeAnswer,
    CodeCall,
    Tool,
    ToolBatch,
    ToolEvent,
    ToolResult,
    ToolSet,
)
from strata.shared.messages import ToolStatus
from strata.shared.tool_catalogue import CODE_TOOLS, ToolEffect
from unit.agent_loop.loop.in_memory_ports import Tools
from unit.agent_loop.loop.loop_harness import LoopHarness
from unit.agent_loop.loop.model_replies import reply
from unit.agent_loop.loop.ruled import rule

CODE = "run_code_with_tools"


class CodingTools(Tools):
    """The tools of the harness, and one whose code calls them in order.

    Attributes:
        answers: The results of the nested calls.
    """

    def __init__(self, inner: Tools, harness: LoopHarness) -> None:
        super().__init__(harness.fate, harness.clock)
        self.answers: list[CodeAnswer] = []
        schema = {"type": "object", "properties": {}}
        code = Tool(ToolSchema(CODE, "", schema), ToolEffect.SIDE_EFFECT)
        self.toolset = ToolSet((*inner.toolset.tools, code))

    async def execute(self, batch: ToolBatch) -> AsyncGenerator[ToolEvent, None]:
        """Runs calls; for a call of code, runs its nested calls."""
        for call in batch.calls:
            if call.name not in CODE_TOOLS:
                async for event in super().execute(replace(batch, calls=[call])):
                    yield event
                continue
            self._fate.step()
            yield CallStarted(call.id, call.name, call.arguments)
            assert batch.code_access is not None
            for name in json.loads(call.arguments)["calls"]:
                self.answers.append(await batch.code_access.answer(CodeCall(call.id, name, "{}")))
            self._fate.step()
            content = package(ToolStatus.OK, "ran", self._clock.now(), "UTC")
            tool_return = ToolReturn(call.id, call.name, ToolStatus.OK, content)
            yield CallFinished(ToolResult(tool_return, 1))


def coding_harness(
    *rules: ToolRule, tools: Sequence[str] = ("keyed", "reads", "acts")
) -> tuple[LoopHarness, CodingTools]:
    """Returns a harness whose agent has such a tool."""
    harness = LoopHarness()
    coding = CodingTools(harness.tools, harness)
    harness.tools = coding
    harness.ports = replace(harness.ports, tools=coding)
    rule(harness, *rules, tools=(*tools, CODE))
    return harness, coding


def coded(harness: LoopHarness, *calls: str | Sequence[str]) -> ModelReply:
    """Returns a reply: names are tool calls, lists are calls of code with these nested calls."""
    ids = [call.id for call in harness.calls(*["x"] * len(calls)).tool_calls]
    made = (
        ToolCall(call_id, call, "{}")
        if isinstance(call, str)
        else ToolCall(call_id, CODE, json.dumps({"calls": list(call)}))
        for call_id, call in zip(ids, calls, strict=True)
    )
    return reply("", *made)


def nested(harness: LoopHarness) -> list[NestedCall]:
    """Returns the nested calls in the window."""
    returns = (
        tool_return for message in harness.recall.messages for tool_return in message.tool_returns
    )
    return [call for tool_return in returns for call in tool_return.nested]


def errors(coding: CodingTools) -> list[Any]:
    """Returns the errors of the nested calls; None for successful ones."""
    return [answer.error for answer in coding.answers]
