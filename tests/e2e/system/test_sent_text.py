"""Text sent with send_message appears as the agent's text: in streams and lists of messages."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from doubles.script import Call, Reply
from run_events import RunEvents, RunStream
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.common.v1 import message_pb2
from strata.api.common.v1 import run_event_pb2 as event_pb
from strata.api.common.v1 import tool_pb2 as tool_pb
from strata.api.gateway.v1 import run_service_pb2 as run_pb
from strata.api.recall.v1 import message_service_pb2 as message_pb
from strata.shared.replies import words_of
from whole_system import System

pytestmark = pytest.mark.asyncio(loop_scope="session")

LONG = 'He said: "hello"\n\\ ü 😀 ' * 40


def sends(message: str, **more: Any) -> Reply:
    return Reply(calls=(Call("send_message", {"message": message}),), **more)


def streamed_thoughts(ran: RunEvents) -> str:
    """Returns the reasoning in the deltas of a run."""
    return "".join(event.reasoning_delta.text for event in ran.events)


async def v2_agent(system: System, **fields: Any) -> agent_pb.Agent:
    kind = agent_pb.AGENT_TYPE_MEMGPT_V2
    return await system.make_agent("openai/test-model", type=kind, **fields)


async def followed(system: System, run_id: str, after: int = 0, **fields: Any) -> RunEvents:
    request = run_pb.StreamRunRequest(run_id=run_id, after_sequence=after, **fields)
    return await RunStream(system.runs.StreamRun(request)).rest()


async def listed(system: System, agent: agent_pb.Agent, **fields: Any) -> list[message_pb2.Message]:
    request = message_pb.ListMessagesRequest(
        conversation_id=agent.default_conversation_id, page_size=500, **fields
    )
    return list((await system.messages.ListMessages(request)).messages)


def names_of(messages: list[message_pb2.Message]) -> set[str]:
    """Returns the names of the tools in the calls and returns of messages."""
    parts = [part for message in messages for part in message.parts]
    return {part.tool_call.name for part in parts if part.HasField("tool_call")} | {
        part.tool_return.name for part in parts if part.HasField("tool_return")
    }


async def test_sent_text_is_streamed_stored_and_listed_as_text(system: System) -> None:
    agent = await v2_agent(system)
    system.model.script(sends(LONG, text="She is back.", pause=0.005))
    ran = await system.send(agent, "Hello?")
    reply = ran.messages[-1]
    [text] = [part.text.text for part in reply.parts if part.HasField("text")]
    thoughts = [part.reasoning.text for part in reply.parts if part.HasField("reasoning")]
    assert (text, thoughts) == (LONG, ["She is back."])
    assert names_of(ran.messages) == set()
    assert not {"tool_started", "tool_finished", "tool_call_delta"} & set(ran.kinds)
    # A call is required, so the text beside it is known as a thought from its first piece.
    assert "text_snapshot" not in ran.kinds
    assert streamed_thoughts(ran) == "She is back."
    deltas = [event.text_delta.text for event in ran.events if event.HasField("text_delta")]
    assert "".join(deltas) == LONG
    assert len(deltas) > 2

    for after in range(ran.stored_events[-1].sequence):
        resumed = await followed(system, ran.run_id, after)
        assert resumed.events == [e for e in ran.stored_events if e.sequence > after]
    newest = await listed(system, agent)
    assert newest[-1] == reply
    assert names_of(newest) == set()


async def sent_and_joined(
    system: System, agent: agent_pb.Agent, reply: Reply
) -> tuple[RunEvents, event_pb.TextSnapshot, RunEvents]:
    """Sends a message whose first reply is held after three pieces, when a second client joins.

    Returns:
        The events of the first client, the snapshot and the later events of the second one.
    """
    gate = asyncio.Event()
    system.model.script(replace(reply, piece=5, held=gate, held_after=4), sends("Nothing."))
    first = system.begin(agent, "Hello?")
    await first.until("reasoning_delta")
    started = max(event.sequence for event in first.events)
    request = run_pb.StreamRunRequest(run_id=first.run_id, after_sequence=started)
    second = RunStream(system.runs.StreamRun(request))
    snapshot = (await second.until("text_snapshot")).text_snapshot
    gate.set()
    return await first.rest(), snapshot, await second.rest()


async def test_text_beside_another_call_is_streamed_and_stored_as_a_thought(
    system: System,
) -> None:
    agent = await v2_agent(system, tools=["archival_memory_search"])
    search = {"query": "harbour", "request_heartbeat": True}
    thinks = Reply(text="I should look.", calls=(Call("archival_memory_search", search),))
    ran, snapshot, late = await sent_and_joined(system, agent, thinks)
    assert snapshot.reasoning
    assert not snapshot.text
    assert streamed_thoughts(ran) == "I should look."
    assert snapshot.reasoning + streamed_thoughts(late) == "I should look."
    assert ran.streamed == late.streamed == "Nothing."
    [thought] = [m for m in ran.messages if any(p.HasField("reasoning") for p in m.parts)]
    assert [part.reasoning.text for part in thought.parts if part.HasField("reasoning")] == [
        "I should look."
    ]
    assert not any(part.HasField("text") for part in thought.parts)


@pytest.mark.parametrize(
    ("rule", "arguments"),
    [
        (tool_pb.TOOL_RULE_TYPE_EXIT_LOOP, '{"query": "harbour"}'),
        (tool_pb.TOOL_RULE_TYPE_REQUIRES_APPROVAL, '{"query": "harbour"}'),
        # Broken arguments.
        (tool_pb.TOOL_RULE_TYPE_CONTINUE_LOOP, '{"query": '),
    ],
)
async def test_text_beside_a_call_without_a_heartbeat_is_streamed_and_stored_as_a_thought(
    system: System, rule: tool_pb.ToolRuleType.ValueType, arguments: str
) -> None:
    agent = await v2_agent(
        system,
        tools=["archival_memory_search"],
        tool_rules=[tool_pb.ToolRule(type=rule, tool_name="archival_memory_search")],
    )
    thinks = Reply(text="I should look.", calls=(Call("archival_memory_search", arguments),))
    ran, snapshot, late = await sent_and_joined(system, agent, thinks)
    assert streamed_thoughts(ran) == "I should look."
    assert snapshot.reasoning + streamed_thoughts(late) == "I should look."
    [thought] = [m for m in ran.messages if "I should look." in str(m)]
    assert [part.reasoning.text for part in thought.parts if part.HasField("reasoning")] == [
        "I should look."
    ]
    assert not any(part.HasField("text") for part in thought.parts)
    assert (await followed(system, ran.run_id)).stored_events == ran.stored_events
    assert thought in await listed(system, agent)
    [written] = [
        m for m in await listed(system, agent, send_message_as_text=False) if m.id == thought.id
    ]
    assert [part.text.text for part in written.parts if part.HasField("text")] == ["I should look."]


async def test_reply_without_the_required_call_is_stored_as_text(system: System) -> None:
    agent = await v2_agent(system)
    system.model.respond(lambda _: Reply(text="Just text."))
    ran = await system.send(agent, "Hello?")
    [text] = [part.text.text for part in ran.messages[-1].parts]
    assert text == "Just text."
    again = await followed(system, ran.run_id)
    assert again.events == ran.stored_events


async def test_client_can_request_the_calls_unchanged(system: System) -> None:
    agent = await v2_agent(system)
    system.model.script(sends("Hello."))
    ran = await system.send(agent, "Hello?", send_message_as_text=False)
    assert {"tool_started", "tool_finished", "tool_call_delta"} <= set(ran.kinds)
    assert [e.sequence for e in ran.stored_events] == [*range(1, len(ran.stored_events) + 1)]
    again = await followed(system, ran.run_id, send_message_as_text=False)
    assert again.stored_events == ran.stored_events
    calls = await listed(system, agent, send_message_as_text=False)
    texts = await listed(system, agent)
    assert names_of(calls) == {"send_message"}
    assert calls[-1].role == message_pb2.ROLE_TOOL
    assert texts[-1].parts[-1].text.text == "Hello."
    # The call and the return in the agent's initial messages are shown as text as well.
    assert len(calls) == len(texts) + 2
    assert calls[-2].id == texts[-1].id


async def test_a_client_that_resumes_during_a_text_gets_the_text_so_far(system: System) -> None:
    agent = await v2_agent(system)
    gate = asyncio.Event()
    system.model.script(sends(LONG, held=gate, piece=100))
    first = system.begin(agent, "Hello?")
    await first.until("text_delta")
    started = max(event.sequence for event in first.events)
    request = run_pb.StreamRunRequest(run_id=first.run_id, after_sequence=started)
    second = RunStream(system.runs.StreamRun(request))
    snapshot = (await second.until("text_snapshot")).text_snapshot
    gate.set()
    ran, late = await first.rest(), await second.rest()
    assert snapshot.text
    assert snapshot.text + late.streamed == ran.streamed == LONG
    assert late.stored_events == [e for e in ran.stored_events if e.sequence > started]


async def test_call_that_fails_is_shown_with_its_error(system: System) -> None:
    agent = await v2_agent(system)
    bad = Reply(calls=(Call("send_message", {"text": "Hello."}),))
    system.model.script(bad, sends("Now."))
    ran = await system.send(agent, "Hello?")
    [failed] = [e.tool_finished.tool_return for e in ran.events if e.HasField("tool_finished")]
    assert (failed.name, failed.status) == ("send_message", message_pb2.TOOL_STATUS_FAILED)
    assert ran.messages[-1].parts[-1].text.text == "Now."


async def test_a_call_that_needed_approval_is_shown_as_text_after_it_ran(system: System) -> None:
    gate = tool_pb.ToolRule(type=tool_pb.TOOL_RULE_TYPE_REQUIRES_APPROVAL, tool_name="send_message")
    agent = await v2_agent(system, tool_rules=[gate])
    system.model.script(sends("Hello."))
    ran = await system.send(agent, "Hello?")
    assert names_of(ran.messages) == set()
    asked = ran.messages[-1].parts[-1].approval_request
    assert [call.name for call in asked.tool_calls] == ["send_message"]
    decision = message_pb2.ApprovalDecision(
        tool_call_id=asked.tool_calls[0].tool_call_id, approve=True
    )
    request = run_pb.RespondToApprovalRequest(approval_id=asked.approval_id, decisions=[decision])
    answered = await RunStream(system.runs.RespondToApproval(request)).rest()
    texts = [text for message in answered.messages for text in words_of(message)]
    assert texts == ["Hello."]
    assert not {"tool_started", "tool_finished"} & set(answered.kinds)
    assert [text for one in await listed(system, agent) for text in words_of(one)][-1] == "Hello."
