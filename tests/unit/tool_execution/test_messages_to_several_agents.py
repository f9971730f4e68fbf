"""Messages to all agents with certain tags, with scripted services."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.common.v1 import message_pb2, run_event_pb2
from strata.api.gateway.v1 import run_service_pb2 as run_pb
from strata.protocol.errors import ResourceExhaustedError
from strata.shared.space_shares import share_of_each
from strata.shared.tool_returns import FUNCTION_RETURN_CHAR_LIMIT
from strata.tool_execution.builtin.agents import (
    MAX_RECIPIENTS,
    SEND_TO_TAGGED,
    AgentTools,
    shortened_replies,
)
from strata.tool_execution.domain.tools import CallingAgent, Output, ToolCall, ToolError

CALLER = CallingAgent("agent-0", "", "run-1", "step-1", "", "UTC")


class _Stream:
    def __init__(self, events: Sequence[run_event_pb2.RunEvent]) -> None:
        self._events = events

    async def __aiter__(self) -> AsyncIterator[run_pb.SendMessageResponse]:
        for event in self._events:
            yield run_pb.SendMessageResponse(event=event)

    def done(self) -> bool:
        return True

    def cancel(self) -> None:
        pass


class _Services:
    """Agents with the requested tags, listed a few at a time; each has a reply of some length."""

    def __init__(self, count: int, length: int = 10) -> None:
        self.ids = [f"agent-{number}" for number in range(count)]
        self.length = length
        self.asked: list[str] = []
        self.refused: set[str] = set()

    async def ListAgents(self, request: agent_pb.ListAgentsRequest) -> agent_pb.ListAgentsResponse:
        assert request.names_only
        first = int(request.page_token or 0)
        page = self.ids[first : first + min(request.page_size, 7)]
        after = first + len(page)
        return agent_pb.ListAgentsResponse(
            agents=[agent_pb.Agent(id=agent_id, name=f"Agent {agent_id}") for agent_id in page],
            next_page_token=str(after) if after < len(self.ids) else "",
        )

    async def GetAgent(self, request: agent_pb.GetAgentRequest) -> agent_pb.GetAgentResponse:
        return agent_pb.GetAgentResponse(agent=agent_pb.Agent(id=request.agent_id, name="Ida"))

    def SendMessage(self, request: run_pb.SendMessageRequest) -> _Stream:
        self.asked.append(request.agent_id)
        if request.agent_id in self.refused:
            raise ResourceExhaustedError("Too many runs.")
        part = message_pb2.Part(text=message_pb2.TextPart(text="x" * self.length))
        message = message_pb2.Message(role=message_pb2.ROLE_ASSISTANT, parts=[part])
        stored = run_event_pb2.MessageStored(message=message)
        end = run_event_pb2.RunFinished(stop_reason=run_event_pb2.STOP_REASON_END_TURN)
        return _Stream(
            [
                run_event_pb2.RunEvent(message_stored=stored),
                run_event_pb2.RunEvent(run_finished=end),
            ]
        )


async def ask(services: Any) -> Output:
    tools = AgentTools(services, services, wait_s=5)
    arguments = {"message": "Who?", "match_all": ["a"], "match_some": []}
    return await tools.run(ToolCall("call", SEND_TO_TAGGED.name, "", "key"), arguments, CALLER)


async def test_agents_on_all_pages_are_asked_and_answer_in_order() -> None:
    services = _Services(MAX_RECIPIENTS + 1)
    services.refused = {"agent-9", "agent-40"}
    output = await ask(services)
    others = services.ids[1:]
    assert sorted(services.asked) == sorted(others)
    assert [result["agent_id"] for result in output.value] == others
    statuses = {result["agent_id"]: result["status"] for result in output.value}
    failed = {agent_id for agent_id, status in statuses.items() if status == "failed"}
    assert failed == services.refused


@pytest.mark.parametrize("count", [MAX_RECIPIENTS + 2, 500])
async def test_nothing_is_sent_to_more_agents_than_may_be_asked_at_once(count: int) -> None:
    services = _Services(count)
    with pytest.raises(ToolError, match=f"More than {MAX_RECIPIENTS} agents"):
        await ask(services)
    assert services.asked == []


async def test_long_replies_are_shortened_and_no_agent_is_left_out() -> None:
    services = _Services(MAX_RECIPIENTS + 1, 5_000)
    output = await ask(services)
    assert len(json.dumps(output.value)) <= FUNCTION_RETURN_CHAR_LIMIT
    assert [result["agent_id"] for result in output.value] == services.ids[1:]
    for result in output.value:
        assert result["reply"].startswith("x" * 700)
        assert "... [truncated 4" in result["reply"]


@given(st.lists(st.text(max_size=300), max_size=20), st.integers(2_000, 8_000))
def test_only_replies_above_their_share_are_shortened(replies: list[str], limit: int) -> None:
    results = [
        {"agent_id": "a", "status": "answered", "reply": reply}
        if number % 5
        else {"agent_id": "a", "status": "failed", "note": "It failed."}
        for number, reply in enumerate(replies)
    ]
    shown = shortened_replies(results, limit)
    whole = len(json.dumps(results, ensure_ascii=False)) <= limit
    assert len(json.dumps(shown, ensure_ascii=False)) <= limit
    assert (shown == results) is whole


@given(st.lists(st.integers(0, 1000)), st.integers(0, 20_000))
def test_a_share_uses_the_space(sizes: list[int], space: int) -> None:
    share = share_of_each(sizes, space)
    used = sum(min(size, share) for size in sizes)
    if sum(sizes) <= space:
        assert used == sum(sizes)
    else:
        assert space - len(sizes) < used <= space
