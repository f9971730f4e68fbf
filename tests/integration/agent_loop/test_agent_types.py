"""Agents of each type: what is stored at creation, and the first request that a model gets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from chat_messages import roles, user_message
from doubles.script import call, say
from inner_services import InnerServices
from strata.agent_loop.domain.agent.types import AGENT_TYPES, LoopKind
from strata.agent_loop.prompts.library import system_prompt
from strata.api.agent_loop.v1 import agent_service_pb2 as pb
from strata.api.common.v1 import message_pb2, run_event_pb2, tool_pb2
from strata.protocol.errors import InvalidArgumentError
from strata.shared.agent_types import AgentType

pytestmark = pytest.mark.asyncio(loop_scope="session")

PHASES = [
    ("store_memories", tool_pb2.TOOL_RULE_TYPE_RUN_FIRST),
    ("store_memories", tool_pb2.TOOL_RULE_TYPE_CONDITIONAL),
    ("rethink_user_memory", tool_pb2.TOOL_RULE_TYPE_CONSTRAIN_CHILD_TOOLS),
]
EXIT, CONTINUE = tool_pb2.TOOL_RULE_TYPE_EXIT_LOOP, tool_pb2.TOOL_RULE_TYPE_CONTINUE_LOOP
TOKYO = ZoneInfo("Asia/Tokyo")
ARCHIVAL = ["archival_memory_insert", "archival_memory_search", "expand_summary"]
V1_TOOLS = ["conversation_search", "memory_insert", "memory_replace", *ARCHIVAL]
MEMGPT_TOOLS = ["core_memory_append", "core_memory_replace", "memory", "memory_apply_patch"]
SLEEPTIME_TOOLS = ["memory_insert", "memory_replace", "memory_rethink", "memory_finish_edits"]
VOICE_MEMORY_TOOLS = ["store_memories", "rethink_user_memory", "finish_rethinking_memory"]
BOOTED = ["system", "assistant", "tool", "user"]

TYPES: list[tuple[AgentType, list[str], list[str]]] = [
    (AgentType.LETTA_V1, V1_TOOLS, ["system"]),
    (AgentType.MEMGPT_V2, ["send_message", *V1_TOOLS], BOOTED),
    (
        AgentType.MEMGPT,
        ["send_message", "conversation_search", *MEMGPT_TOOLS, *ARCHIVAL],
        BOOTED,
    ),
    (AgentType.SLEEPTIME, SLEEPTIME_TOOLS, ["system"]),
    (AgentType.REACT, [], ["system", "user"]),
    (AgentType.WORKFLOW, [], ["system", "user"]),
    (AgentType.VOICE_CONVO, ["send_message", "search_memory"], BOOTED),
    (AgentType.VOICE_SLEEPTIME, VOICE_MEMORY_TOOLS, ["system"]),
]
"""Type, tools by default, roles of the first messages."""

PARAMETERS = {
    "send_message": ["message"],
    "conversation_search": ["query", "roles", "limit", "start_date", "end_date"],
    "memory_insert": ["label", "new_str", "insert_line"],
    "memory_replace": ["label", "old_str", "new_str"],
    "memory_rethink": ["label", "new_memory"],
    "memory_finish_edits": [],
    "core_memory_append": ["label", "content"],
    "core_memory_replace": ["label", "old_content", "new_content"],
    "search_memory": ["convo_keyword_queries", "start_minutes_ago", "end_minutes_ago"],
    "store_memories": ["memories"],
    "rethink_user_memory": ["new_memory"],
    "finish_rethinking_memory": [],
}
"""Parameters of tools, without what the loop of a type adds to them."""
ADDED = {"request_heartbeat", "thinking"}


@pytest.fixture(params=["test/test-model", "claude/test-model"])
def handle(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def wire(agent_type: AgentType) -> Any:
    return pb.AgentType.Value(f"AGENT_TYPE_{agent_type.name}")


def first_words(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(block.get("text", "") for block in content)


def login_text(message: message_pb2.Message) -> str:
    """Checks the form of a login message; returns its text.

    It has the time at which it was made, shortly before it was stored.
    """
    text = message.parts[0].text.text
    begin, time = text.split('"time": "')
    assert begin == '{"type": "login", "last_login": "Never (first login)", '
    made = datetime.strptime(time, '%Y-%m-%d %I:%M:%S %p JST+0900"}').replace(tzinfo=TOKYO)
    stored = message.create_time.ToDatetime(tzinfo=UTC)
    assert timedelta(0) <= stored - made < timedelta(seconds=10)
    return text


@pytest.mark.parametrize(("agent_type", "tools", "first"), TYPES)
async def test_new_agent_has_the_tools_rules_prompt_and_messages_of_its_type(
    services: InnerServices, agent_type: AgentType, tools: list[str], first: list[str]
) -> None:
    traits = AGENT_TYPES[agent_type]
    agent = await services.make_agent(
        type=wire(agent_type), timezone="Asia/Tokyo", enable_sleeptime=traits.needs_sleeptime
    )
    assert agent.type == wire(agent_type)
    assert list(agent.tools) == tools
    assert agent.system == system_prompt(traits.prompt_key)
    ending = {"send_message", "memory_finish_edits", "finish_rethinking_memory"}
    rules = [(tool, EXIT if tool in ending else CONTINUE) for tool in tools]
    expected = rules if agent_type is not AgentType.LETTA_V1 else []
    if agent_type is AgentType.VOICE_SLEEPTIME:
        expected = [*PHASES, *rules]
    assert [(rule.tool_name, rule.type) for rule in agent.tool_rules] == expected
    assert agent.message_buffer_autoclear is (agent_type is AgentType.WORKFLOW)

    messages = (await services.window(agent)).messages
    assert roles(messages) == first
    assert all(list(m.provenance) == [message_pb2.PROVENANCE_SYSTEM] for m in messages)
    assert ("<memory_blocks>" in messages[0].parts[0].text.text) is traits.sees_blocks
    if "user" in first:
        assert login_text(messages[-1])
        assert len(messages[-1].parts) == 1
    if "assistant" in first:
        thought, called = messages[1].parts
        assert thought.reasoning.text == (
            "Bootup sequence complete. Persona activated. Testing messaging functionality."
        )
        assert (called.tool_call.name, called.tool_call.arguments) == (
            "send_message",
            '{"message": "More human than human is our motto."}',
        )
        returned = messages[2].parts[0].tool_return
        assert returned.tool_call_id == called.tool_call.tool_call_id
        time = json.loads(login_text(messages[-1]))["time"]
        assert returned.content == (
            '{\n  "status": "OK",\n  "message": null,\n  "time": "' + time + '"\n}'
        )


@pytest.mark.parametrize(("agent_type", "tools", "first"), TYPES)
async def test_first_request_of_a_type_shows_its_prompt_first_messages_and_tools(
    services: InnerServices, agent_type: AgentType, tools: list[str], first: list[str], handle: str
) -> None:
    # A type without tools of its own gets one, which ends the turn.
    fields: dict[str, Any] = {}
    if not tools:
        tools = ["conversation_search"]
        fields["tools"] = tools
        fields["tool_rules"] = [{"type": EXIT, "tool_name": tools[0]}]
    fields["enable_sleeptime"] = AGENT_TYPES[agent_type].needs_sleeptime
    agent = await services.make_agent(
        type=wire(agent_type), timezone="Asia/Tokyo", model={"handle": handle}, **fields
    )
    created = (await services.window(agent)).messages
    services.model.script(*_replies(agent_type, tools))
    ran = await services.run(agent, "Hello.")
    assert ran.finished.stop_reason in _ENDINGS
    request = services.model.requests[0]

    if agent_type is not AgentType.VOICE_SLEEPTIME:
        # The run has changed the block by now.
        assert request.system == (await services.window(agent)).messages[0].parts[0].text.text
    assert request.system.startswith(system_prompt(AGENT_TYPES[agent_type].prompt_key)[:200])
    offered = dict(_offered(request))
    # The first phase of a voice memory agent has one tool.
    assert list(offered) == (tools[:1] if agent_type is AgentType.VOICE_SLEEPTIME else tools)
    for name, parameters in offered.items():
        if name in PARAMETERS:
            assert [p for p in parameters if p not in ADDED] == PARAMETERS[name]
    spoken = _spoken(request)
    if "assistant" in first:
        booted = [entry for entry in spoken if entry[0] in ("call", "return")][:2]
        assert [kind for kind, _ in booted] == ["call", "return"]
        assert json.loads(booted[-1][1]) == json.loads(created[2].parts[0].tool_return.content)
        arguments = json.loads(booted[-2][1])
        arguments.pop("thinking", None)
        assert arguments == {"message": "More human than human is our motto."}
    user_texts = [text for kind, text in spoken if kind == "user"]
    logged_in = [login_text(created[-1])] if "user" in first else []
    assert user_texts[-len(logged_in) - 1 :] == [*logged_in, "Hello."]


async def test_the_first_messages_for_lmstudio_have_a_call_id_of_nine_characters(
    services: InnerServices,
) -> None:
    agent = await services.make_agent(
        type=pb.AGENT_TYPE_MEMGPT_V2, model={"handle": "studio/test-model"}
    )
    messages = (await services.window(agent)).messages
    assert roles(messages) == ["system", "user", "assistant", "tool"]
    call_id = messages[2].parts[1].tool_call.tool_call_id
    assert len(call_id) == 9
    assert messages[3].parts[0].tool_return.tool_call_id == call_id


async def test_an_agent_without_send_message_has_the_login_message_only(
    services: InnerServices,
) -> None:
    agent = await services.make_agent(type=pb.AGENT_TYPE_MEMGPT_V2, include_base_tools=False)
    assert list(agent.tools) == []
    assert roles((await services.window(agent)).messages) == ["system", "user"]


async def test_messages_of_the_request_replace_those_of_the_type(
    services: InnerServices,
) -> None:
    kind = pb.AGENT_TYPE_MEMGPT_V2
    agent = await services.make_agent(type=kind, initial_messages=[user_message("We met before.")])
    window = await services.window(agent)
    assert roles(window.messages) == ["system", "user"]
    assert window.messages[1].parts[0].text.text == "We met before."
    agent = await services.make_agent(type=kind, without_initial_messages=True)
    assert roles((await services.window(agent)).messages) == ["system"]
    with pytest.raises(InvalidArgumentError) as raised:
        await services.make_agent(
            type=kind, initial_messages=[user_message("Hi.")], without_initial_messages=True
        )
    assert [v.field for v in raised.value.violations] == ["without_initial_messages"]


async def test_rules_of_a_type_can_be_omitted_or_added(services: InnerServices) -> None:
    kind = pb.AGENT_TYPE_MEMGPT_V2
    assert not (await services.make_agent(type=kind, include_base_tool_rules=False)).tool_rules
    agent = await services.make_agent(include_base_tool_rules=True)
    assert [rule.tool_name for rule in agent.tool_rules] == list(agent.tools)


async def test_a_repeated_creation_returns_the_stored_agent_and_messages(
    services: InnerServices,
) -> None:
    fields: dict[str, Any] = {"type": pb.AGENT_TYPE_MEMGPT_V2, "request_id": "once", "name": "Bo"}
    agent = await services.make_agent(**fields)
    before = (await services.window(agent)).messages
    assert await services.make_agent(**fields) == agent
    assert (await services.window(agent)).messages == before


async def test_only_the_first_conversation_gets_the_initial_messages(
    services: InnerServices,
) -> None:
    agent = await services.make_agent(type=pb.AGENT_TYPE_MEMGPT_V2)
    started = await services.agents.CreateConversation(
        pb.CreateConversationRequest(agent_id=agent.id)
    )
    window = await services.window(agent, started.conversation.id)
    assert roles(window.messages) == ["system"]


_ENDINGS = (run_event_pb2.STOP_REASON_END_TURN, run_event_pb2.STOP_REASON_TOOL_RULE)


def _replies(agent_type: AgentType, tools: Sequence[str]) -> list[Any]:
    """Returns replies that end a turn of the type."""
    if AGENT_TYPES[agent_type].loop is LoopKind.V3:
        return [say("Hi.")]
    if "send_message" in tools:
        return [call("send_message", {"message": "Hi."})]
    if agent_type is AgentType.VOICE_SLEEPTIME:
        arguments: list[dict[str, Any]] = [{"memories": []}, {"new_memory": "Name: Ada"}, {}]
        return [call(name, values) for name, values in zip(tools, arguments, strict=True)]
    return [call(tools[0], {"query": "x"})]


def _offered(request: Any) -> list[tuple[str, list[str]]]:
    if request.dialect == "anthropic":
        return [
            (tool["name"], list(tool["input_schema"]["properties"]))
            for tool in request.body.get("tools", ())
        ]
    return [
        (tool["function"]["name"], list(tool["function"]["parameters"]["properties"]))
        for tool in request.body.get("tools", ())
    ]


def _spoken(request: Any) -> list[tuple[str, str]]:
    """Returns the messages of a request without the system message: kind and text or JSON."""
    spoken: list[tuple[str, str]] = []
    for message in request.body["messages"]:
        content = message["content"] or ""
        if message["role"] == "tool":
            spoken.append(("return", content))
        elif message["role"] == "assistant" and message.get("tool_calls"):
            spoken.append(("call", message["tool_calls"][0]["function"]["arguments"]))
        elif isinstance(content, str):
            if message["role"] != "system":
                spoken.append((message["role"], content))
        else:
            for block in content:
                if block["type"] == "tool_use":
                    spoken.append(("call", json.dumps(block["input"])))
                elif block["type"] == "tool_result":
                    spoken.append(("return", first_words(block["content"])))
                elif block["type"] == "text" and message["role"] != "system":
                    spoken.append((message["role"], block["text"]))
    return spoken
