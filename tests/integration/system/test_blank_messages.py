"""Blank messages, through the whole system."""

from __future__ import annotations

import json
from typing import Any

import pytest

from chat_messages import roles, user_message
from doubles.script import Call, Reply, say
from strata.api.common.v1 import message_pb2
from strata.api.common.v1 import run_event_pb2 as event_pb
from strata.api.gateway.v1 import run_service_pb2 as run_pb
from strata.protocol.errors import InvalidArgumentError
from whole_system import System

pytestmark = pytest.mark.asyncio(loop_scope="session")

BLANKS = [" ", "\n\t", "\u3000", "\u200b\u2060", "\ufeff \u00ad"]


@pytest.mark.parametrize("text", BLANKS)
async def test_blank_message_is_refused_and_not_stored(system: System, text: str) -> None:
    agent = await system.make_agent()
    messages = [user_message("Hello."), user_message(text)]
    with pytest.raises(InvalidArgumentError) as sent:
        await system.send(agent, "Hello.", text)
    with pytest.raises(InvalidArgumentError) as started:
        await system.runs.StartRun(run_pb.StartRunRequest(agent_id=agent.id, messages=messages))
    for error in (sent.value, started.value):
        assert [violation.field for violation in error.violations] == ["messages[1].parts"]
    assert roles(await system.log(agent)) == ["system"]
    assert system.model.requests == []


async def test_blank_part_beside_text_is_accepted(system: System) -> None:
    agent = await system.make_agent()
    message = user_message(" ")
    message.parts.append(message_pb2.Part(text=message_pb2.TextPart(text="Hello.")))
    system.model.script(say("Hi."))
    response = system.runs.SendMessage(
        run_pb.SendMessageRequest(agent_id=agent.id, messages=[message])
    )
    ends = [message.event async for message in response if message.event.HasField("run_finished")]
    assert ends[0].run_finished.stop_reason == event_pb.STOP_REASON_END_TURN
    assert "Hello." in system.model.requests[-1].last_text


async def test_blank_message_to_another_agent_is_a_tool_error(system: System) -> None:
    wait = "send_message_to_agent_and_wait_for_reply"
    other = await system.make_agent()
    agent = await system.make_agent(tools=[wait])
    arguments = {"message": "\u200b ", "other_agent_id": other.id}
    system.model.script(Reply(calls=(Call(wait, arguments),)), say("I wrote nothing."))
    ran = await system.send(agent, "Write to the other agent.")
    tool_return: Any = json.loads(ran.messages[1].parts[0].tool_return.content)
    assert tool_return["status"] == "Failed"
    assert "message must contain text" in tool_return["message"]
    assert roles(await system.log(other)) == ["system"]
