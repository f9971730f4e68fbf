"""Response formats on the real services: what is stored, and what both providers are asked."""

from __future__ import annotations

import json
from typing import Any

import pytest

from chat_messages import roles
from doubles.script import Call, Fault, ModelCall, Reply, say
from inner_services import InnerServices
from run_events import RunEvents
from strata.api.agent_loop.v1 import agent_service_pb2 as pb
from strata.api.common.v1 import response_format_pb2 as format_pb
from strata.api.common.v1 import run_event_pb2
from strata.protocol.errors import InvalidArgumentError

pytestmark = pytest.mark.asyncio(loop_scope="session")

STOP = run_event_pb2.StopReason
TEXT = format_pb.ResponseFormat(text=format_pb.TextFormat())
OBJECT = format_pb.ResponseFormat(json_object=format_pb.JsonObjectFormat())
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "degrees": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = format_pb.ResponseFormat(
    json_schema=format_pb.JsonSchemaFormat(
        name="weather", description="The weather.", schema_json=json.dumps(SCHEMA)
    )
)
FORMATS = {"text": TEXT, "json_object": OBJECT, "json_schema": WEATHER}
HANDLES = {"openai": "test/test-model", "anthropic": "claude/claude-sonnet-5"}
RULE = "Your answer must be one JSON object, and nothing else: no text around it."
BESIDE = " Tools are called as usual; the answer is what you write without a call."
ANSWER = {"city": "Rome"}
WRITTEN = json.dumps(ANSWER)


async def make(services: InnerServices, dialect: str, loop: str, **fields: Any) -> pb.Agent:
    v2 = loop == "v2"
    return await services.make_agent(
        type=pb.AGENT_TYPE_MEMGPT_V2 if v2 else pb.AGENT_TYPE_LETTA_V1,
        include_base_tools=False,
        include_base_tool_rules=False,
        without_initial_messages=True,
        tools=["send_message", "conversation_search"] if v2 else ["conversation_search"],
        model=pb.ModelConfig(handle=HANDLES[dialect]),
        system="Be brief.",
        **fields,
    )


def replies(loop: str) -> Reply:
    if loop == "v3":
        return say(WRITTEN)
    return Reply(calls=(Call("send_message", {"message": ANSWER}),))


def system_rest(asked: ModelCall) -> str:
    """Returns the text after the metadata of the system message."""
    return asked.system.rpartition("</memory_metadata>")[2].strip()


def message_schema(asked: ModelCall) -> Any:
    tools = asked.body["tools"]
    if asked.dialect == "openai":
        [send] = [t["function"] for t in tools if t["function"]["name"] == "send_message"]
        return send["parameters"]["properties"]["message"]
    [send] = [tool for tool in tools if tool["name"] == "send_message"]
    return send["input_schema"]["properties"]["message"]


def expected_format(dialect: str, kind: str) -> dict[str, Any]:
    """Returns the part of a request of the V3 loop that requests the format."""
    schema = {"name": "weather", "description": "The weather.", "schema": SCHEMA}
    match dialect, kind:
        case "openai", "json_object":
            return {"response_format": {"type": "json_object"}}
        case "openai", "json_schema":
            return {"response_format": {"type": "json_schema", "json_schema": schema}}
        case "anthropic", "json_schema":
            form = {"type": "json_schema", "schema": SCHEMA}
            return {"output_config": {"format": form}}
        case _:
            return {}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("kind", list(FORMATS))
@pytest.mark.parametrize("loop", ["v3", "v2"])
@pytest.mark.parametrize("dialect", list(HANDLES))
async def test_the_first_request_has_the_format_of_the_agent(
    services: InnerServices, dialect: str, loop: str, kind: str, stream: bool
) -> None:
    agent = await make(services, dialect, loop, response_format=FORMATS[kind])
    services.model.script(replies(loop) if kind != "text" or loop == "v3" else _sends("Hello."))
    ran = await services.run(agent, "Rome?", stream_tokens=stream)
    assert ran.finished.stop_reason == STOP.STOP_REASON_END_TURN

    [asked] = services.model.requests
    body = asked.body
    form = expected_format(dialect, kind) if loop == "v3" else {}
    assert {name: body[name] for name in ("response_format", "output_config") if name in body} == (
        form
    )
    in_prompt = loop == "v3" and kind == "json_object"
    assert system_rest(asked) == (RULE + BESIDE if in_prompt else "")
    [sent] = [m for m in asked.messages if m["role"] != "system"]
    assert "Rome?" in str(sent["content"])
    if dialect == "openai":
        assert body["tool_choice"] == ("required" if loop == "v2" else "auto")
    else:
        assert body["tool_choice"]["type"] == ("any" if loop == "v2" else "auto")
    if loop == "v2":
        described = {**SCHEMA, "description": "The weather."}
        plain = {"type": "string", "description": "The text of the message."}
        schemas = {"text": plain, "json_object": {"type": "object"}, "json_schema": described}
        assert message_schema(asked) == schemas[kind]
    if kind != "text":
        assert _reply_of(ran, loop) == WRITTEN
        if stream:
            assert _streamed(ran, loop) in (WRITTEN, json.dumps({"message": WRITTEN}))


def _sends(text: str) -> Reply:
    return Reply(calls=(Call("send_message", {"message": text}),))


def _reply_of(ran: RunEvents, loop: str) -> str:
    if loop == "v3":
        return ran.text
    [call] = [p.tool_call for m in ran.messages for p in m.parts if p.HasField("tool_call")]
    message: str = json.loads(call.arguments)["message"]
    return message


def _streamed(ran: RunEvents, loop: str) -> str:
    if loop == "v3":
        return "".join(event.text_delta.text for event in ran.events)
    return "".join(event.tool_call_delta.arguments for event in ran.events)


@pytest.mark.parametrize("loop", ["v3", "v2"])
@pytest.mark.parametrize("dialect", list(HANDLES))
async def test_invalid_reply_is_corrected_in_the_same_step(
    services: InnerServices, dialect: str, loop: str
) -> None:
    agent = await make(services, dialect, loop, response_format=WEATHER)
    wrong = {"town": "Rome"}
    bad = (
        say(json.dumps(wrong))
        if loop == "v3"
        else Reply(calls=(Call("send_message", {"message": wrong}),))
    )
    services.model.script(bad, replies(loop))
    ran = await services.run(agent, "Rome?", stream_tokens=True)
    assert ran.finished.stop_reason == STOP.STOP_REASON_END_TURN
    assert ran.finished.step_count == 1
    assert _reply_of(ran, loop) == WRITTEN
    assert "town" not in str([e for e in ran.events if not e.HasField("step_restarted")])
    assert "unknown 'town'" in str(services.model.requests[1].messages)
    window = await services.window(agent)
    assert "town" not in str(window)


async def test_reply_that_stays_invalid_ends_the_run_and_the_next_one_works(
    services: InnerServices,
) -> None:
    agent = await make(services, "openai", "v3", response_format=WEATHER)
    services.model.script(say("It is warm."), say('{"city": 3}'), say(WRITTEN))
    ran = await services.run(agent, "Rome?")
    assert ran.finished.stop_reason == STOP.STOP_REASON_INVALID_LLM_RESPONSE
    assert ran.finished.error.reason == "MODEL_REPLY_INVALID"
    assert "'city' is wrong: 3 is not of type 'string'" in ran.finished.error.message
    assert not ran.messages
    assert (await services.run(agent, "Again?")).text == WRITTEN
    assert roles((await services.window(agent)).messages) == ["system", "user", "user", "assistant"]


async def test_run_overrides_the_format_of_its_agent(services: InnerServices) -> None:
    agent = await make(services, "openai", "v3")
    services.model.script(say(WRITTEN), say("It is warm."))
    ran = await services.run(agent, "Rome?", response_format=WEATHER)
    assert ran.text == WRITTEN
    assert (await services.run(agent, "Rome?")).text == "It is warm."
    first, second = services.model.requests
    assert first.body["response_format"]["json_schema"]["name"] == "weather"
    assert "response_format" not in second.body


async def test_a_format_that_the_model_refuses_is_requested_in_a_weaker_form(
    services: InnerServices,
) -> None:
    agent = await make(services, "openai", "v3", response_format=WEATHER)
    refused = "'response_format' of type 'json_schema' is not supported with this model."
    fault = Fault(400, refused, "invalid_request_error", None, "response_format")
    services.model.script(fault, say(WRITTEN), say(WRITTEN))
    assert (await services.run(agent, "Rome?")).text == WRITTEN
    assert (await services.run(agent, "Rome?")).text == WRITTEN
    forms = [call.body["response_format"]["type"] for call in services.model.requests]
    assert forms == ["json_schema", "json_object", "json_object"]
    assert '"city"' in services.model.requests[1].system


async def test_structured_tool_mode_writes_the_object_into_its_action(
    services: InnerServices,
) -> None:
    agent = await make(services, "openai", "v3", response_format=WEATHER)
    structured = pb.ModelConfig(handle="test/test-model", structured_tools=True)
    await services.agents.UpdateAgent(pb.UpdateAgentRequest(agent_id=agent.id, model=structured))
    services.model.script(say(json.dumps({"tool": "say", "arguments": {"message": ANSWER}})))
    ran = await services.run(agent, "Rome?", stream_tokens=True)
    assert ran.text == _streamed(ran, "v3") == WRITTEN
    form = services.model.requests[0].body["response_format"]["json_schema"]["schema"]
    say_action = form["anyOf"][0]["properties"]
    assert say_action["tool"] == {"const": "say"}
    assert say_action["arguments"]["properties"]["message"] == SCHEMA


async def test_agents_keep_their_format(services: InnerServices) -> None:
    agent = await services.make_agent(response_format=WEATHER)
    assert agent.response_format.json_schema.schema_json == json.dumps(SCHEMA)
    assert agent.response_format.json_schema.strict
    stored = (await services.agents.GetAgent(pb.GetAgentRequest(agent_id=agent.id))).agent
    assert stored.response_format == agent.response_format
    renamed = pb.UpdateAgentRequest(agent_id=agent.id, description="x")
    kept = (await services.agents.UpdateAgent(renamed)).agent
    assert kept.response_format == agent.response_format
    changed = pb.UpdateAgentRequest(agent_id=agent.id, response_format=OBJECT)
    assert (await services.agents.UpdateAgent(changed)).agent.response_format == OBJECT
    changed = pb.UpdateAgentRequest(agent_id=agent.id, response_format=TEXT)
    assert (await services.agents.UpdateAgent(changed)).agent.response_format == TEXT
    assert (await services.make_agent()).response_format == TEXT


async def test_hostile_schemas_are_refused_in_every_request(services: InnerServices) -> None:
    agent = await services.make_agent()
    pattern = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(a+)+$"}}}
    hostile = format_pb.ResponseFormat(
        json_schema=format_pb.JsonSchemaFormat(name="a b", schema_json=json.dumps(pattern))
    )
    fields = ["response_format.json_schema.name", "response_format.json_schema.schema_json"]
    with pytest.raises(InvalidArgumentError) as refused:
        await services.make_agent(response_format=hostile)
    assert [violation.field for violation in refused.value.violations] == fields
    request = pb.UpdateAgentRequest(agent_id=agent.id, response_format=hostile)
    with pytest.raises(InvalidArgumentError) as refused:
        await services.agents.UpdateAgent(request)
    assert [violation.field for violation in refused.value.violations] == fields
    with pytest.raises(InvalidArgumentError) as refused:
        await services.run(agent, "Hi.", response_format=hostile)
    assert [violation.field for violation in refused.value.violations] == fields
    assert not services.model.requests
