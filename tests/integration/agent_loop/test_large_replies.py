"""Replies and returns have a largest size, and whatever is stored can be listed."""

from __future__ import annotations

import json

import pytest

from doubles.script import Call, Reply, say
from inner_services import InnerServices
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.common.v1 import message_pb2
from strata.api.common.v1 import run_event_pb2 as event_pb
from strata.api.recall.v1 import message_service_pb2 as message_pb
from strata.shared.settings import MIB

pytestmark = pytest.mark.asyncio(loop_scope="session")

# The default limit of a gRPC client.
LARGEST_RESPONSE = 4 * MIB


async def listed(services: InnerServices, agent: agent_pb.Agent) -> list[message_pb2.Message]:
    messages: list[message_pb2.Message] = []
    token = ""
    while True:
        page = await services.messages.ListMessages(
            message_pb.ListMessagesRequest(
                conversation_id=agent.default_conversation_id, page_size=500, page_token=token
            )
        )
        assert page.ByteSize() < LARGEST_RESPONSE
        messages += page.messages
        token = page.next_page_token
        if not token:
            return messages


async def test_a_huge_reply_is_truncated_and_can_be_listed(services: InnerServices) -> None:
    # A window that holds them all: none is compacted during the test.
    model = agent_pb.ModelConfig(handle="test/test-model", context_window=2_000_000)
    agent = await services.make_agent(model=model)
    for number in range(4):
        services.model.script(say(f"{number}" + "x" * 5_000_000, piece=200_000))
        ran = await services.run(agent, "Tell me everything.")
        assert ran.finished.stop_reason == event_pb.STOP_REASON_MAX_TOKENS_EXCEEDED
        assert all(event.ByteSize() < LARGEST_RESPONSE for event in ran.events)
        assert ran.text.startswith(f"{number}xxx")

    messages = await listed(services, agent)
    answers = [m for m in messages if m.role == message_pb2.ROLE_ASSISTANT]
    assert [m.parts[0].text.text[0] for m in answers] == list("0123")
    exported = [
        message.id
        async for response in services.messages.ExportMessages(
            message_pb.ExportMessagesRequest(conversation_id=agent.default_conversation_id)
        )
        for message in response.messages
    ]
    assert exported == [m.id for m in messages]
    matches = await services.messages.SearchMessages(
        message_pb.SearchMessagesRequest(agent_id=agent.id, query="everything", limit=50)
    )
    assert matches.ByteSize() < LARGEST_RESPONSE
    services.model.script(say("Short."))
    assert (await services.run(agent, "Go on.")).text == "Short."


async def test_call_cut_at_the_largest_size_is_not_run(services: InnerServices) -> None:
    agent = await services.make_agent()
    text = json.dumps({"label": "human", "new_str": "x" * 2_000_000})
    services.model.script(Reply(calls=[Call("memory_insert", text)], piece=200_000))

    ran = await services.run(agent, "Keep this.")

    assert ran.finished.stop_reason == event_pb.STOP_REASON_MAX_TOKENS_EXCEEDED
    [result] = [e.tool_finished for e in ran.events if e.HasField("tool_finished")]
    assert result.tool_return.status == message_pb2.TOOL_STATUS_FAILED
    assert "was not run" in result.tool_return.content
    assert await listed(services, agent)
