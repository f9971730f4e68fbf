"""The V2 loop on the real services: what both providers are asked, what is stored and streamed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

import pytest

from chat_messages import roles
from doubles.script import Call, ModelCall, Reply, say
from inner_services import InnerServices
from run_events import RunEvents
from strata.agent_loop.agents.first_messages import BOOT_MESSAGE
from strata.api.agent_loop.v1 import agent_service_pb2 as pb
from strata.api.common.v1 import message_pb2, run_event_pb2
from strata.api.common.v1 import tool_pb2 as tool
from wire_tool_rules import rule

pytestmark = pytest.mark.asyncio(loop_scope="session")

PREFIX = "[This is an automated system message hidden from the user] "
REQUESTED = PREFIX + "Function called using request_heartbeat=true, returning control"
FAILED = PREFIX + "Function call failed, returning control"
TYPES = {
    "memgpt_v2_agent": pb.AGENT_TYPE_MEMGPT_V2,
    "memgpt_agent": pb.AGENT_TYPE_MEMGPT,
    "react_agent": pb.AGENT_TYPE_REACT,
    "workflow_agent": pb.AGENT_TYPE_WORKFLOW,
    "voice_convo_agent": pb.AGENT_TYPE_VOICE_CONVO,
}
TOOLS = ["send_message", "conversation_search", "memory_replace"]
SEND = Call("send_message", {"message": "Done."})
STOP = run_event_pb2.StopReason


async def make(
    services: InnerServices,
    dialect: str = "openai",
    kind: pb.AgentType.ValueType = pb.AGENT_TYPE_MEMGPT_V2,
    *,
    thoughts: bool = False,
    **fields: Any,
) -> pb.Agent:
    handle = "test/test-model" if dialect == "openai" else "claude/test-model"
    fields.setdefault("tools", TOOLS)
    fields.setdefault("include_base_tool_rules", False)
    fields.setdefault("enable_sleeptime", kind == pb.AGENT_TYPE_VOICE_CONVO)
    return await services.make_agent(
        type=kind,
        include_base_tools=False,
        model=pb.ModelConfig(handle=handle, put_inner_thoughts_in_kwargs=thoughts),
        **fields,
    )


def search(query: str, **more: Any) -> Call:
    return Call("conversation_search", {"query": query, **more})


def schemas(asked: ModelCall) -> dict[str, dict[str, Any]]:
    if asked.dialect == "openai":
        functions = [tool["function"] for tool in asked.body["tools"]]
        return {function["name"]: function["parameters"] for function in functions}
    return {tool["name"]: tool["input_schema"] for tool in asked.body["tools"]}


def choice(asked: ModelCall) -> Any:
    value = asked.body["tool_choice"]
    return value if isinstance(value, str) else {"any": "required"}.get(value["type"], value)


def flat(asked: ModelCall, after: str) -> list[tuple[str, Any]]:
    """Returns the messages after a message of the user, in one form for both dialects."""
    seen: list[tuple[str, Any]] = []
    for message in asked.body["messages"]:
        content = message.get("content")
        if message["role"] == "tool":
            seen.append(("return", json.loads(content)["status"]))
        elif isinstance(content, str) and content:
            seen.append((message["role"], content))
        else:
            seen += [_block(message["role"], block) for block in content or ()]
        seen += [
            ("call", (tool_call["function"]["name"], tool_call["function"]["arguments"]))
            for tool_call in message.get("tool_calls", ())
        ]
    return seen[seen.index(("user", after)) + 1 :]


def _block(role: str, block: dict[str, Any]) -> tuple[str, Any]:
    match block["type"]:
        case "tool_use":
            return "call", (block["name"], json.dumps(block["input"], indent=2))
        case "tool_result":
            content = block["content"]
            text = content if isinstance(content, str) else content[0]["text"]
            return "return", json.loads(text)["status"]
        case _:
            return role, block["text"]


def shown(name: str, arguments: dict[str, Any]) -> tuple[str, tuple[str, str]]:
    return "call", (name, json.dumps(arguments, indent=2))


def reasons(seen: Sequence[tuple[str, Any]]) -> list[str]:
    """The reasons of the heartbeats; each is JSON with type, reason and time, indented by 2."""
    bodies = [(text, json.loads(text)) for kind, text in seen if kind == "user"]
    assert all(json.dumps(body, indent=2) == text for text, body in bodies)
    assert all(list(body) == ["type", "reason", "time"] for _, body in bodies)
    assert all(body["type"] == "heartbeat" for _, body in bodies)
    return [body["reason"] for _, body in bodies]


def without_users(seen: Sequence[tuple[str, Any]]) -> list[tuple[str, Any]]:
    return [entry for entry in seen if entry[0] != "user"]


def calls(ran: RunEvents) -> list[message_pb2.ToolCallPart]:
    return [p.tool_call for m in ran.messages for p in m.parts if p.HasField("tool_call")]


def deltas(ran: RunEvents, kind: Literal["reasoning_delta", "tool_call_delta"]) -> str:
    field = "arguments" if kind == "tool_call_delta" else "text"
    pieces = (getattr(event, kind) for event in ran.events if event.HasField(kind))
    return "".join(getattr(piece, field) for piece in pieces)


async def test_a_search_shows_what_the_agent_sent(services: InnerServices) -> None:
    agent = await make(services)
    sent = Call("send_message", {"message": "I would plant heliotropes."})
    services.model.script(
        Reply(calls=(search("balconies", request_heartbeat=True),)), Reply(calls=(sent,))
    )
    await services.run(agent, "What grows on a balcony?")
    services.model.script(
        Reply(calls=(search("heliotropes", request_heartbeat=True),)), Reply(calls=(SEND,))
    )
    ran = await services.run(agent, "What did you say?")
    (returned,) = [p.tool_return for p in ran.messages[1].parts if p.HasField("tool_return")]
    (result,) = json.loads(returned.content)["message"]["results"]
    assert result["content"] == "I would plant heliotropes."
    # Neither the heartbeat nor the call of the search. Once the index has the question, it is a
    # result too, with the message before it.
    before = [item["content"] for item in result["before"]]
    assert before in (["What grows on a balcony?"], [BOOT_MESSAGE, "What grows on a balcony?"])


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
@pytest.mark.parametrize("kind", list(TYPES))
async def test_heartbeats_continue_the_turn_and_send_message_ends_it(
    services: InnerServices, kind: str, dialect: str, stream: bool
) -> None:
    agent = await make(services, dialect, TYPES[kind])
    services.model.script(
        *(Reply(calls=(search(q, request_heartbeat=True),)) for q in "abc"),
        Reply(calls=(SEND,)),
    )
    ran = await services.run(agent, "Look it up.", stream_tokens=stream)

    assert ran.finished.stop_reason == STOP.STOP_REASON_END_TURN
    first = services.model.requests[0]
    assert flat(first, "Look it up.") == []
    assert choice(first) == "required"
    offered = schemas(first)
    assert list(offered) == TOOLS
    for name, schema in offered.items():
        injected = list(schema["properties"])[-1] == "request_heartbeat"
        assert injected is ("request_heartbeat" in schema["required"])
        assert injected is (name != "send_message")
        assert "thinking" not in schema["properties"]
    last = flat(services.model.requests[3], "Look it up.")
    assert without_users(last) == [
        entry
        for q in "abc"
        for entry in (
            shown("conversation_search", {"query": q, "request_heartbeat": True}),
            ("return", "OK"),
        )
    ]
    assert reasons(last) == [REQUESTED] * 3
    assert roles(ran.messages) == ["assistant", "tool"] * 4
    assert [json.loads(call.arguments) for call in calls(ran)] == [
        *({"query": q} for q in "abc"),
        {"message": "Done."},
    ]
    asked = [call.request_heartbeat for call in calls(ran)]
    assert asked == [True, True, True, False]
    assert not calls(ran)[3].HasField("request_heartbeat")
    body = json.loads(ran.messages[-1].parts[0].tool_return.content)
    assert (body["status"], body["message"]) == ("OK", "Sent message successfully.")


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
async def test_failed_call_continues_without_a_heartbeat_request(
    services: InnerServices, dialect: str
) -> None:
    agent = await make(services, dialect)
    broken = {"label": "gone", "old_str": "a", "new_str": "b"}
    call = Call("memory_replace", {**broken, "request_heartbeat": False})
    services.model.script(Reply(calls=(call,)), Reply(calls=(SEND,)))
    ran = await services.run(agent, "Change it.")
    seen = flat(services.model.requests[1], "Change it.")
    assert without_users(seen) == [
        shown("memory_replace", {**broken, "request_heartbeat": False}),
        ("return", "Failed"),
    ]
    assert reasons(seen) == [FAILED]
    assert ran.finished.stop_reason == STOP.STOP_REASON_END_TURN


async def test_failed_send_message_does_not_end_the_turn(services: InnerServices) -> None:
    agent = await make(services)
    services.model.script(Reply(calls=(Call("send_message", {"text": 1}),)), Reply(calls=(SEND,)))
    ran = await services.run(agent, "Hello.")
    assert reasons(flat(services.model.requests[1], "Hello.")) == [FAILED]
    assert ran.finished.stop_reason == STOP.STOP_REASON_END_TURN


async def test_call_without_heartbeat_ends_the_turn_without_a_continue_rule(
    services: InnerServices,
) -> None:
    agent = await make(services)
    services.model.script(Reply(calls=(search("a", request_heartbeat=False),)))
    ran = await services.run(agent, "Hello.")
    assert ran.finished.stop_reason == STOP.STOP_REASON_END_TURN
    assert roles(ran.messages) == ["assistant", "tool"]
    assert calls(ran)[0].HasField("request_heartbeat")


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        ([rule("continue_loop", "conversation_search")], "Continuing: continue tool rule."),
        (
            [rule("constrain_child_tools", "conversation_search", children=["send_message"])],
            "Continuing: child tool rule.",
        ),
        (
            [rule("required_before_exit", "send_message")],
            "Continuing, user expects these tools: [send_message] to be called still.",
        ),
    ],
    ids=["continue", "child", "required"],
)
async def test_rules_continue_with_a_heartbeat_that_names_them(
    services: InnerServices, rules: list[tool.ToolRule], reason: str
) -> None:
    agent = await make(services, tool_rules=rules)
    services.model.script(
        Reply(calls=(search("a", request_heartbeat=False),)), Reply(calls=(SEND,))
    )
    ran = await services.run(agent, "Hello.")
    assert reasons(flat(services.model.requests[1], "Hello.")) == [PREFIX + reason]
    assert ran.finished.stop_reason == STOP.STOP_REASON_END_TURN


async def test_forbidden_call_continues_with_the_reason(services: InnerServices) -> None:
    agent = await make(services)
    services.model.script(
        Reply(calls=(Call("memory_insert", {"request_heartbeat": False}),)), Reply(calls=(SEND,))
    )
    await services.run(agent, "Hello.")
    seen = reasons(flat(services.model.requests[1], "Hello."))
    assert seen == [PREFIX + "Continuing: tool rule violation."]


async def test_an_exit_rule_ends_the_turn_and_is_the_stop_reason_after_a_heartbeat_request(
    services: InnerServices,
) -> None:
    agent = await make(services, tool_rules=[rule("exit_loop", "conversation_search")])
    services.model.script(
        Reply(calls=(search("a"),)), Reply(calls=(search("b", request_heartbeat=True),))
    )
    ran = await services.run(agent, "Hello.")
    offered = schemas(services.model.requests[0])["conversation_search"]
    assert "request_heartbeat" not in offered["properties"]
    assert ran.finished.stop_reason == STOP.STOP_REASON_END_TURN
    ran = await services.run(agent, "Again.")
    assert ran.finished.stop_reason == STOP.STOP_REASON_TOOL_RULE


async def test_reply_without_a_call_ends_the_run_and_loses_nothing(services: InnerServices) -> None:
    agent = await make(services)
    services.model.script(say("I will not."), Reply(calls=(SEND,)))
    ran = await services.run(agent, "Hello.")
    assert ran.finished.stop_reason == STOP.STOP_REASON_NO_TOOL_CALL
    assert ran.finished.error.message.startswith(
        "No tool calls found in response, model must make a tool call"
    )
    assert ran.text == "I will not."
    ran = await services.run(agent, "Once more.")
    assert ran.finished.stop_reason == STOP.STOP_REASON_END_TURN
    assert ("assistant", "I will not.") in flat(services.model.requests[1], "Hello.")


async def test_agent_without_tools_answers_in_text(services: InnerServices) -> None:
    """The V2 loop requires a call in each step only if the agent has tools."""
    agent = await make(services, kind=pb.AGENT_TYPE_REACT, tools=[])
    services.model.script(say("Hi."))
    ran = await services.run(agent, "Hello.")
    assert ran.finished.stop_reason == STOP.STOP_REASON_END_TURN
    assert "tool_choice" not in services.model.requests[0].body


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
async def test_inner_thoughts_are_reasoning_and_are_shown_in_the_calls(
    services: InnerServices, dialect: str
) -> None:
    agent = await make(services, dialect, thoughts=True)
    thought = 'I "must" look\n'
    looked = {"thinking": thought, "query": "a}", "request_heartbeat": True}
    answered = {"thinking": "Tell.", "message": "Hé {"}
    services.model.script(
        Reply(calls=(Call("conversation_search", looked),), piece=3),
        Reply(calls=(Call("send_message", answered),), piece=3),
    )
    ran = await services.run(agent, "Look it up.", stream_tokens=True)

    for schema in schemas(services.model.requests[0]).values():
        assert next(iter(schema["properties"])) == schema["required"][0] == "thinking"
        description = schema["properties"]["thinking"]["description"]
        assert description == "Deep inner monologue private to you only."
    seen = flat(services.model.requests[1], "Look it up.")
    assert seen[0] == shown("conversation_search", looked)
    assert [json.loads(call.arguments) for call in calls(ran)] == [
        {"query": "a}"},
        {"message": "Hé {"},
    ]
    thoughts = [p.reasoning.text for m in ran.messages for p in m.parts if p.HasField("reasoning")]
    assert thoughts == [thought, "Tell."]
    assert deltas(ran, "reasoning_delta") == thought + "Tell."
    assert deltas(ran, "tool_call_delta") == '{"query": "a}"}{"message": "Hé {"}'


async def test_the_last_step_of_a_run_stores_no_heartbeat(services: InnerServices) -> None:
    agent = await make(services)
    before = len((await services.window(agent)).messages)
    services.model.script(Reply(calls=(search("a", request_heartbeat=True),)), Reply(calls=(SEND,)))
    ran = await services.run(agent, "Look.", max_steps=1)
    assert ran.finished.stop_reason == STOP.STOP_REASON_MAX_STEPS
    assert roles((await services.window(agent)).messages[before:]) == ["user", "assistant", "tool"]
    ran = await services.run(agent, "Go on.")
    assert ran.finished.stop_reason == STOP.STOP_REASON_END_TURN


async def test_several_calls_of_one_reply_are_all_run_and_one_heartbeat_follows(
    services: InnerServices,
) -> None:
    agent = await make(services)
    both = (search("a", request_heartbeat=True), search("b", request_heartbeat=False))
    services.model.script(Reply(calls=both), Reply(calls=(SEND,)))
    ran = await services.run(agent, "Look.")
    assert services.model.requests[0].body["parallel_tool_calls"] is False
    assert reasons(flat(services.model.requests[1], "Look.")) == [REQUESTED]
    assert roles(ran.messages) == ["assistant", "tool"] * 2
    assert ran.finished.stop_reason == STOP.STOP_REASON_END_TURN


async def test_approved_call_continues_by_the_heartbeat_of_its_request(
    services: InnerServices,
) -> None:
    agent = await make(services, tool_rules=[rule("requires_approval", "conversation_search")])
    services.model.script(Reply(calls=(search("a", request_heartbeat=True),)), Reply(calls=(SEND,)))
    ran = await services.run(agent, "Look.")
    assert ran.finished.stop_reason == STOP.STOP_REASON_REQUIRES_APPROVAL
    (asked,) = [e.approval_requested for e in ran.events if e.HasField("approval_requested")]
    answer = message_pb2.ApprovalResponsePart(
        approval_id=asked.approval.approval_id,
        decisions=[
            message_pb2.ApprovalDecision(
                tool_call_id=asked.approval.tool_calls[0].tool_call_id, approve=True
            )
        ],
    )
    ran = await services.run(agent, approval=answer)
    assert reasons(flat(services.model.requests[1], "Look.")) == [REQUESTED]
    assert ran.finished.stop_reason == STOP.STOP_REASON_END_TURN


async def test_structured_tool_mode_writes_the_added_arguments_into_its_actions(
    services: InnerServices,
) -> None:
    agent = await make(services, thoughts=True)
    structured = pb.ModelConfig(
        handle="test/test-model", structured_tools=True, put_inner_thoughts_in_kwargs=True
    )
    await services.agents.UpdateAgent(pb.UpdateAgentRequest(agent_id=agent.id, model=structured))
    looked = {"thinking": "Look.", "query": "a", "request_heartbeat": True}
    services.model.script(
        say(json.dumps({"tool": "conversation_search", "arguments": looked})),
        say(json.dumps({"tool": "send_message", "arguments": {"thinking": "", "message": "Hi."}})),
    )
    ran = await services.run(agent, "Look it up.")
    assert ran.finished.stop_reason == STOP.STOP_REASON_END_TURN
    assert [json.loads(call.arguments) for call in calls(ran)] == [
        {"query": "a"},
        {"message": "Hi."},
    ]
    schema = services.model.requests[0].body["response_format"]["json_schema"]["schema"]
    options = {option["properties"]["tool"]["const"]: option for option in schema["anyOf"]}
    assert list(options) == TOOLS
    arguments = options["conversation_search"]["properties"]["arguments"]
    assert list(arguments["properties"]) == ["thinking", "query", "request_heartbeat"]
