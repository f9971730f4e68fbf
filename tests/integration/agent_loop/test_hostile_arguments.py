"""Tool arguments that break parsers are tool errors, and never make a conversation unusable."""

from __future__ import annotations

import pytest

from doubles.script import Call, Reply, call, say
from hostile_json import HOSTILE_ARGUMENTS, nested
from inner_services import InnerServices
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.common.v1 import message_pb2
from strata.api.common.v1 import run_event_pb2 as event_pb
from strata.api.recall.v1 import message_service_pb2 as message_pb

pytestmark = pytest.mark.asyncio(loop_scope="session")

# The doubles send JSON in UTF-8, which cannot carry half of a surrogate pair unescaped.
SENDABLE = {name: text for name, text in HOSTILE_ARGUMENTS.items() if "\ud83d" not in text}


@pytest.mark.parametrize(
    ("tool", "handle"),
    [
        ("memory_insert", "test/test-model"),
        ("send_message", "claude/test-model"),
        ("no_such_tool", "test/test-model"),
        pytest.param("memory_insert", "claude/test-model", marks=pytest.mark.slow),
        pytest.param("send_message", "test/test-model", marks=pytest.mark.slow),
        pytest.param("no_such_tool", "claude/test-model", marks=pytest.mark.slow),
    ],
)
async def test_hostile_arguments_are_tool_errors_and_the_conversation_continues(
    services: InnerServices, handle: str, tool: str
) -> None:
    model = agent_pb.ModelConfig(handle=handle, context_window=200_000)
    agent = await services.make_agent(model=model)
    for name, text in SENDABLE.items():
        services.model.script(call(tool, text), say("Sorry."))
        ran = await services.run(agent, f"Do it: {name}")
        assert ran.finished.stop_reason == event_pb.STOP_REASON_END_TURN, name
        [result] = [e.tool_finished for e in ran.events if e.HasField("tool_finished")]
        assert result.tool_return.status == message_pb2.TOOL_STATUS_FAILED, name

    services.model.script(say("Still here."))
    assert (await services.run(agent, "Are you there?")).text == "Still here."
    listed = await services.messages.ListMessages(
        message_pb.ListMessagesRequest(conversation_id=agent.default_conversation_id, page_size=5)
    )
    assert len(listed.messages) == 5


async def test_error_of_deep_arguments_names_the_limit(services: InnerServices) -> None:
    agent = await services.make_agent()
    services.model.script(call("memory_insert", nested(101)), say("Sorry."))

    await services.run(agent, "Do it.")

    [answer] = services.model.requests[1].answered
    assert "The arguments are nested deeper than 100 levels" in answer


async def test_hostile_arguments_in_structured_mode_are_tool_errors(
    services: InnerServices,
) -> None:
    model = agent_pb.ModelConfig(
        handle="test/test-model", context_window=200_000, structured_tools=True
    )
    agent = await services.make_agent(model=model)
    for levels in (101, 700, 1_100, 50_000):
        action = f'{{"tool": "memory_insert", "arguments": {nested(levels)}}}'
        services.model.script(
            say(action), say('{"tool": "say", "arguments": {"message": "Sorry."}}')
        )
        ran = await services.run(agent, f"Do it: {levels}")
        assert ran.text == "Sorry.", levels
        [result] = [e.tool_finished for e in ran.events if e.HasField("tool_finished")]
        assert result.tool_return.status == message_pb2.TOOL_STATUS_FAILED, levels


async def test_only_the_call_with_deep_arguments_fails(services: InnerServices) -> None:
    agent = await services.make_agent(model=agent_pb.ModelConfig(parallel_tool_calls=True))
    good = Call("memory_insert", {"label": "human", "new_str": "Her name is Ada."})
    services.model.script(
        Reply(calls=[Call("memory_insert", nested(1_100)), good]), say("One of them.")
    )

    ran = await services.run(agent, "I am Ada.")

    statuses = [
        e.tool_finished.tool_return.status for e in ran.events if e.HasField("tool_finished")
    ]
    assert sorted(statuses) == [message_pb2.TOOL_STATUS_OK, message_pb2.TOOL_STATUS_FAILED]
    assert "Her name is Ada." in services.model.requests[1].system
