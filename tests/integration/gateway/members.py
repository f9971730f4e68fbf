"""Scripted agents of groups, and checks of the events of group runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from integration.gateway.scripted_runs import delta, event, finished, started, step, stored
from integration.gateway.scripted_services import Gateway, ScriptedServices, message
from polling import eventually
from run_events import collect, kinds
from strata.api.agent_loop.v1 import agent_service_pb2_grpc as agent_grpc
from strata.api.agent_loop.v1 import group_service_pb2 as group_pb
from strata.api.common.v1 import message_pb2, run_event_pb2
from strata.api.gateway.v1 import run_service_pb2 as run_pb
from strata.api.gateway.v1 import run_service_pb2_grpc as run_grpc
from strata.shared.context import current
from strata.shared.ids import new_id
from strata.shared.interceptors.client import ClientChannel
from strata.shared.tool_catalogue import ASK_MEMBERS, HAND_OVER
from strata.tool_execution.builtin.agents import AgentTools
from strata.tool_execution.domain.tools import (
    CallingAgent,
    CallingGroup,
    Output,
    ToolCall,
    ToolError,
)


@dataclass
class Members:
    """Scripted agents of a group; each replies with its name and the number of its turn.

    Attributes:
        spoken: Agents whose turns were ended, in order.
        held: Turns, by name and number, that wait until their event is set.
        says: Other replies, by name of the agent.
        gateway: The gateway that the tools of the agents call.
        asks: Questions of an agent to the members of its group, in order, by name.
        answers: Results of these calls.
        hands: Turns, by name and number, that hand the conversation over: the member, the message.
    """

    services: ScriptedServices
    names: dict[str, str] = field(default_factory=dict)
    spoken: list[str] = field(default_factory=list)
    held: dict[str, asyncio.Event] = field(default_factory=dict)
    begun: list[str] = field(default_factory=list)
    says: dict[str, Callable[[], str]] = field(default_factory=dict)
    reasons: dict[str, Any] = field(default_factory=dict)
    turns: dict[str, int] = field(default_factory=dict)
    gateway: Gateway | None = None
    asks: dict[str, list[str]] = field(default_factory=dict)
    answers: list[Any] = field(default_factory=list)
    hands: dict[str, tuple[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.services.turns.script = self._play

    def group(self, *names: str, manager: str = "", **config: Any) -> group_pb.Group:
        """Makes a group of new agents."""
        config.setdefault("type", group_pb.MANAGER_TYPE_ROUND_ROBIN)
        group = group_pb.Group(
            id=new_id("group"),
            members=[self._member(name) for name in names],
            manager=group_pb.ManagerConfig(**config),
        )
        if manager:
            group.manager_agent.CopyFrom(self._member(manager))
        self.services.groups.groups[group.id] = group
        return group

    def _member(self, name: str) -> group_pb.GroupMember:
        agent_id = self.services.new_agent()
        self.names[agent_id] = name
        return group_pb.GroupMember(agent_id=agent_id, name=name)

    def shown(self, name: str) -> list[list[tuple[str, str]]]:
        """Returns the messages, with names, that an agent was sent in each turn."""
        by_run = {
            request.run_id: [
                (message.name, "".join(part.text.text for part in message.parts))
                for message in request.messages
            ]
            for request in self.services.turns.requests
            if self.names[request.agent_id] == name
        }
        return list(by_run.values())

    async def _play(self, request: Any) -> AsyncIterator[run_event_pb2.RunEvent]:
        name = self.names[request.agent_id]
        yield started()
        if request.record_only:
            yield run_event_pb2.RunEvent(
                run_finished=run_event_pb2.RunFinished(
                    stop_reason=run_event_pb2.STOP_REASON_END_TURN
                )
            )
            return
        if request.attempt == 1:
            self.turns[name] = self.turns.get(name, 0) + 1
        key = f"{name} {self.turns[name]}"
        text = self.says.get(name, lambda: key)()
        self.begun.append(key)
        for number, question in enumerate(self.asks.get(name, []), start=1):
            yield step(number)
            async for happened in self._ask(request, number, question):
                yield happened
        yield step(len(self.asks.get(name, [])) + 1)
        yield delta(text[:2], f"message-{request.run_id}")
        if key in self.held:
            await self.held[key].wait()
        yield delta(text[2:], f"message-{request.run_id}")
        message = stored(text, f"message-{request.run_id}")
        message.message_stored.message.provenance.append(message_pb2.PROVENANCE_MCP)
        yield message
        if key in self.hands:
            for happened in self._hand_over(request, key):
                yield happened
        self.spoken.append(key)
        yield finished(self.reasons.get(key, run_event_pb2.STOP_REASON_END_TURN))

    async def _ask(
        self, request: Any, number: int, question: str
    ) -> AsyncIterator[run_event_pb2.RunEvent]:
        """Calls the tool as the services behind the gateway do, with the token of the run."""
        assert self.gateway is not None
        tool, caller = request.group_tool, current().caller
        assert tool.name == ASK_MEMBERS
        assert caller is not None
        call_id = f"call-{number}"
        begun = run_event_pb2.ToolStarted(tool_call_id=call_id, name=ASK_MEMBERS)
        yield event(tool_started=begun)
        channel = ClientChannel(self.gateway.channel)
        tools = AgentTools(
            run_grpc.RunServiceStub(channel), agent_grpc.AgentServiceStub(channel), wait_s=20
        )
        group = CallingGroup(
            request.group_id,
            tuple(member.agent_id for member in tool.members),
            tuple(member.name for member in tool.members),
        )
        on_behalf = CallingAgent(request.agent_id, "", request.run_id, "", "", "UTC", group=group)
        call = ToolCall(call_id, ASK_MEMBERS, "", f"{request.run_id}/{number}/{call_id}")
        try:
            output = await tools.run(call, {"message": question}, on_behalf)
        except ToolError as error:
            output = Output(error.value)
        self.answers.append(output.value)
        returned = message_pb2.ToolReturnPart(
            tool_call_id=call_id, name=ASK_MEMBERS, status=message_pb2.TOOL_STATUS_OK
        )
        yield event(tool_finished=run_event_pb2.ToolFinished(tool_return=returned))

    def _hand_over(self, request: Any, key: str) -> Sequence[run_event_pb2.RunEvent]:
        agent, text = self.hands[key]
        call = message_pb2.ToolCallPart(
            tool_call_id=f"call {key}",
            name=HAND_OVER,
            arguments=json.dumps({"agent": agent, "message": text}),
        )
        offered = request.group_tool.name == HAND_OVER
        status = message_pb2.TOOL_STATUS_OK if offered else message_pb2.TOOL_STATUS_FAILED
        returned = message_pb2.ToolReturnPart(
            tool_call_id=call.tool_call_id, name=HAND_OVER, status=status
        )
        messages = (
            message_pb2.Message(
                id=f"message-call-{request.run_id}",
                role=message_pb2.ROLE_ASSISTANT,
                parts=[message_pb2.Part(tool_call=call)],
            ),
            message_pb2.Message(
                id=f"message-return-{request.run_id}",
                role=message_pb2.ROLE_TOOL,
                parts=[message_pb2.Part(tool_return=returned)],
            ),
        )
        return [
            event(message_stored=run_event_pb2.MessageStored(message=message))
            for message in messages
        ]


def send(gateway: Gateway, group: group_pb.Group, text: str = "Hi", **fields: Any) -> Any:
    return gateway.runs.SendMessage(
        run_pb.SendMessageRequest(group_id=group.id, messages=[message(text)], **fields),
        metadata=gateway.metadata,
        timeout=60,
    )


def spoken_texts(events: Sequence[run_event_pb2.RunEvent]) -> list[tuple[str, str, int]]:
    """Returns name, text and turn of the messages in a stream."""
    return [
        (
            event.member.agent_name,
            event.message_stored.message.parts[0].text.text,
            event.member.turn,
        )
        for event in events
        if event.HasField("message_stored")
    ]


def check_log(events: Sequence[run_event_pb2.RunEvent], turns: int) -> None:
    """Asserts that the events have no gaps or repetitions and each turn starts and ends once."""
    stored_events = [event for event in events if event.sequence]
    assert [event.sequence for event in stored_events] == list(range(1, len(stored_events) + 1))
    copied = [
        (event.member.run_id, event.member.sequence)
        for event in stored_events
        if event.HasField("member")
    ]
    assert len(set(copied)) == len(copied)
    ended = [event.member.turn for event in events if event.HasField("turn_finished")]
    assert ended == list(range(1, turns + 1))
    assert kinds(list(events))[-1] == "run_finished"
    steps = [event.step_started.step for event in events if event.HasField("step_started")]
    # An interrupted step begins again with the same number.
    assert list(dict.fromkeys(steps)) == list(range(1, turns + 1))


async def events_after_takeover(
    services: ScriptedServices, members: Members, group: group_pb.Group, held: str
) -> list[run_event_pb2.RunEvent]:
    """Runs a group on a gateway that stops while a member is held; another one completes it."""
    members.held[held] = asyncio.Event()
    first = await services.gateway()
    request = run_pb.StartRunRequest(group_id=group.id, messages=[message("Hi")])
    run_id = (await first.runs.StartRun(request, metadata=first.metadata)).run.id
    await eventually(lambda: held in members.begun)
    await first.stop()
    second = await services.gateway()
    members.held[held].set()
    return await collect(second.stream(run_id))
