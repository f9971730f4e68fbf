"""Helpers for turns with approval requests and responses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from strata.agent_loop.context.requests import View
from strata.agent_loop.domain.conversation.approvals import (
    ApprovalRequest,
    ApprovalResponse,
    Decision,
)
from strata.agent_loop.domain.conversation.messages import ToolReturn
from strata.agent_loop.domain.model.chat import ChatRole
from strata.agent_loop.domain.run.runs import RunRequest
from strata.agent_loop.domain.tools import ToolSet
from strata.agent_loop.loop.approvals import open_requests
from unit.agent_loop.loop.in_memory_ports import Sink
from unit.agent_loop.loop.journals import Died
from unit.agent_loop.loop.loop_harness import LoopHarness


def gated_harness(*names: str, **fields: Any) -> LoopHarness:
    """Returns a harness in which calls of these tools need approval."""
    harness = LoopHarness(**fields)
    change_tools(harness, *names)
    return harness


def change_tools(harness: LoopHarness, *names: str, version: str = "1") -> None:
    """Sets which tools need approval, and the version of all tools."""
    harness.tools.toolset = ToolSet(
        tuple(
            replace(tool, requires_approval=tool.name in names, version=version)
            for tool in harness.tools.toolset.tools
        )
    )


def asked(harness: LoopHarness) -> ApprovalRequest:
    """Returns the one pending request."""
    [open_request] = open_requests(harness.recall.messages)
    return open_request.request


def yes(request: ApprovalRequest) -> ApprovalResponse:
    return answer(request, *(Decision(call.id, approve=True) for call in request.tool_calls))


def no(request: ApprovalRequest, reason: str = "") -> ApprovalResponse:
    return answer(request, *(Decision(call.id, reason=reason) for call in request.tool_calls))


def answer(request: ApprovalRequest, *decisions: Decision) -> ApprovalResponse:
    return ApprovalResponse(request.approval_id, decisions)


def with_answer(harness: LoopHarness, response: ApprovalResponse, **fields: Any) -> RunRequest:
    """Returns a run with an approval response."""
    return harness.request("", approval=response, **fields)


def returns(harness: LoopHarness) -> list[ToolReturn]:
    """Returns all tool returns in the window."""
    return [
        tool_return for message in harness.recall.messages for tool_return in message.tool_returns
    ]


def acts(harness: LoopHarness) -> Counter[str]:
    """Returns how often each call of `acts` had its effect, over all runs."""
    effects: Counter[str] = Counter()
    for key, times in harness.tools.acted.items():
        effects[key.rpartition("/")[2]] += times
    return effects


async def until_done(harness: LoopHarness, request: RunRequest, replies: Sequence[Any]) -> Sink:
    """Dispatches a run again until its process does not die."""
    attempt = request.attempt
    while True:
        try:
            return await harness.run(replace(request, attempt=attempt), *replies)
        except Died:
            harness.fate.last = None
            replies = ()
            attempt += 1


def assert_a_provider_takes_it(harness: LoopHarness) -> None:
    """Asserts that in the model request each call is directly followed by its return."""
    waiting: list[str] = []
    for chat in View(5000).chats(harness.recall.messages):
        if chat.role is ChatRole.TOOL:
            assert chat.tool_call_id in waiting
            waiting.remove(chat.tool_call_id)
            continue
        assert not waiting
        waiting = [call.id for call in chat.tool_calls]
    assert not waiting
