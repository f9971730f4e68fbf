"""``/v1/responses`` with OpenAI's SDK for Python: a model is an agent, a response is a run."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import openai
import pytest
import pytest_asyncio
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFailedEvent,
    ResponseFunctionToolCall,
    ResponseStreamEvent,
)
from pydantic import BaseModel, TypeAdapter

from chat_messages import roles, text_of, user_message
from doubles.script import Call, Fault, Reply, call, cut, say
from gated_inserts import GATE, INSERT
from hostile_json import HOSTILE_ARGUMENTS
from image_samples import png
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.common.v1 import tool_pb2
from strata.api.gateway.v1 import admin_service_pb2 as admin_pb
from strata.api.gateway.v1 import run_service_pb2 as run_pb
from strata.api.tool_execution.v1 import tool_service_pb2 as tool_api
from strata.gateway.auth.bootstrap import ensure_organization_key
from strata.shared.ids import new_id
from whole_system import System, SystemClient

pytestmark = pytest.mark.asyncio(loop_scope="session")

PATHS = ("/v1/responses", "/v1/chat/completions")
SHOW_MAP = "show_map"
REFUSED = Fault(400, "It is too rude.", "invalid_request_error")
ROME = Call(SHOW_MAP, {"place": "Rome"})
_EVENT: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)
_MESSAGE_EVENTS = (
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
)
_CALL_EVENTS = (
    "response.output_item.added",
    "response.function_call_arguments.delta",
    "response.function_call_arguments.done",
    "response.output_item.done",
)
_BEGIN_EVENTS = ("response.created", "response.in_progress")


def sdk(system: System, key: str = "") -> openai.AsyncOpenAI:
    """A client without retries."""
    return openai.AsyncOpenAI(
        base_url=f"{system.http_url}/v1", api_key=key or system.key, max_retries=0
    )


@pytest_asyncio.fixture(loop_scope="session")
async def client(system: System) -> AsyncIterator[openai.AsyncOpenAI]:
    async with sdk(system) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="session")
async def http(system: System) -> AsyncIterator[httpx2.AsyncClient]:
    headers = {"authorization": f"Bearer {system.key}"}
    async with httpx2.AsyncClient(base_url=system.http_url, headers=headers) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="session")
async def ann(system: System) -> agent_pb.Agent:
    """A new agent."""
    return await system.make_agent()


@pytest_asyncio.fixture(loop_scope="session")
async def guide(system: System) -> agent_pb.Agent:
    """A new agent with a tool that the client runs."""
    schema = {"type": "object", "properties": {"place": {"type": "string"}}}
    request = tool_api.UpsertToolRequest(
        type=tool_pb2.TOOL_TYPE_CLIENT,
        name=SHOW_MAP,
        description="Shows a place on the user's map.",
        parameters_json=json.dumps(schema),
    )
    await system.tools.UpsertTool(request)
    return await system.make_agent(tools=[SHOW_MAP])


@pytest_asyncio.fixture(loop_scope="session")
async def stranger(system: System) -> AsyncIterator[SystemClient]:
    """A client of another project of the same organization."""
    organization = system.client((await ensure_organization_key(system.gateway_settings)).secret)
    created = await organization.admin.CreateProject(
        admin_pb.CreateProjectRequest(name=new_id("project"))
    )
    key = await organization.admin.CreateApiKey(
        admin_pb.CreateApiKeyRequest(project_id=created.project.id, name="stranger")
    )
    await organization.channel.close()
    other = system.client(key.secret)
    yield other
    await other.channel.close()


def calls_of(response: Response) -> list[ResponseFunctionToolCall]:
    return [item for item in response.output if item.type == "function_call"]


def output_of(tool_call: ResponseFunctionToolCall, text: str) -> Any:
    return {"type": "function_call_output", "call_id": tool_call.call_id, "output": text}


async def streamed(stream: Any) -> list[ResponseStreamEvent]:
    """Reads a stream; every event must be valid."""
    events = [_EVENT.validate_python(event.model_dump(by_alias=True)) async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    return events


def kinds(events: list[ResponseStreamEvent]) -> tuple[str, ...]:
    """The types of events; consecutive deltas count once."""
    folded: list[str] = []
    for event in events:
        if not (folded and folded[-1] == event.type):
            folded.append(event.type)
    return tuple(folded)


async def test_a_response_is_the_reply_of_the_agent(
    system: System, client: openai.AsyncOpenAI, ann: agent_pb.Agent
) -> None:
    system.model.script(say("Hello.", usage=(100, 7)))
    response = await client.responses.create(
        model=ann.name,
        input="Hi there.",
        temperature=0.3,
        store=False,
        metadata={"a": "b"},
        reasoning={"effort": "low"},
        max_output_tokens=50,
        parallel_tool_calls=False,
    )
    Response.model_validate(response.model_dump(by_alias=True), strict=True)
    assert (response.output_text, response.status) == ("Hello.", "completed")
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens) == (100, 7)
    assert response.conversation is not None
    assert response.conversation.id == ann.default_conversation_id
    assert system.model.requests[-1].last_text.endswith("Hi there.")

    stored = await client.responses.retrieve(response.id)
    differing = {"text", "created_at", "completed_at", "ignored_parameters"}
    assert stored.model_dump(exclude=differing) == response.model_dump(exclude=differing)
    assert stored.completed_at


async def test_the_events_of_a_stream_are_in_order(
    system: System, client: openai.AsyncOpenAI, ann: agent_pb.Agent
) -> None:
    text = "A reply of several pieces."
    # Pieces that arrive together are sent as one.
    system.model.script(say(text, pause=0.02))
    events = await streamed(
        await client.responses.create(model=ann.id, input="Tell me.", stream=True)
    )
    assert kinds(events) == (*_BEGIN_EVENTS, *_MESSAGE_EVENTS, "response.completed")
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert len(deltas) > 1
    assert "".join(deltas) == text
    first, last = events[0], events[-1]
    assert first.type == "response.created"
    assert (first.response.status, first.response.output) == ("in_progress", [])
    assert isinstance(last, ResponseCompletedEvent)
    assert last.response.output_text == text
    assert last.response.usage is not None
    stored = await client.responses.retrieve(last.response.id)
    assert stored.output == last.response.output


async def test_the_stream_helper_of_the_sdk_accumulates_the_response(
    system: System, client: openai.AsyncOpenAI, guide: agent_pb.Agent
) -> None:
    system.model.script(Reply(text="Let me look.", calls=(ROME,)))
    async with client.responses.stream(model=guide.name, input="Show me Rome.") as stream:
        final = await stream.get_final_response()
    assert final.output_text == "Let me look."
    assert [json.loads(one.arguments) for one in calls_of(final)] == [{"place": "Rome"}]


class Town(BaseModel):
    name: str
    people: int


async def test_a_reply_has_the_requested_structure(
    system: System, client: openai.AsyncOpenAI, ann: agent_pb.Agent
) -> None:
    system.model.script(say('{"name": "Oslo", "people": 700000}'))
    parsed = await client.responses.parse(model=ann.name, input="A town?", text_format=Town)
    assert parsed.output_parsed == Town(name="Oslo", people=700_000)
    asked = system.model.requests[-1].body["response_format"]
    assert asked["type"] == "json_schema"
    assert set(asked["json_schema"]["schema"]["properties"]) == {"name", "people"}

    system.model.script(say("{}"))
    free = await client.responses.create(
        model=ann.name, input="JSON?", text={"format": {"type": "json_object"}}
    )
    assert free.output_text == "{}"
    assert system.model.requests[-1].body["response_format"] == {"type": "json_object"}


@pytest.mark.parametrize("as_stream", [False, True])
async def test_a_tool_of_the_client_is_called_and_answered(
    system: System, client: openai.AsyncOpenAI, guide: agent_pb.Agent, as_stream: bool
) -> None:
    async def respond(**fields: Any) -> tuple[Response, tuple[str, ...]]:
        reply = await client.responses.create(
            model=guide.name,
            tools=[
                {"type": "function", "name": SHOW_MAP, "parameters": {}, "strict": True},
            ],
            stream=as_stream,
            **fields,
        )
        if isinstance(reply, Response):
            return reply, ()
        events = await streamed(reply)
        assert isinstance(events[-1], ResponseCompletedEvent)
        return events[-1].response, kinds(events)

    system.model.script(Reply(text="Let me look.", calls=(ROME,)), say("There it is."))
    asked, events = await respond(input="Show me Rome.")
    if as_stream:
        begin = (*_BEGIN_EVENTS, *_MESSAGE_EVENTS)
        assert events == (*begin, *_CALL_EVENTS, "response.completed")
    [shows] = calls_of(asked)
    assert (shows.name, json.loads(shows.arguments)) == (SHOW_MAP, {"place": "Rome"})
    assert asked.output_text == "Let me look."
    assert (await client.responses.retrieve(asked.id)).output == asked.output

    answer = output_of(shows, "Shown.")
    shown, events = await respond(input=[answer], previous_response_id=asked.id)
    if as_stream:
        assert events == (*_BEGIN_EVENTS, *_MESSAGE_EVENTS, "response.completed")
    # The text beside the call belongs to the previous response.
    assert shown.output_text == "There it is."
    assert shown.previous_response_id == asked.id
    assert json.loads(system.model.requests[-1].answered[0])["message"] == "Shown."
    assert (await client.responses.retrieve(shown.id)).output == shown.output


async def test_of_a_whole_conversation_only_new_items_reach_the_agent(
    system: System, client: openai.AsyncOpenAI, guide: agent_pb.Agent
) -> None:
    system.model.script(Reply(calls=(ROME,)), say("There."), say("You are welcome."))
    sent: list[Any] = [{"role": "user", "content": "Show me Rome."}]
    asked = await client.responses.create(model=guide.name, input=sent)
    sent += [item.model_dump(exclude_none=True) for item in asked.output]
    sent.append(output_of(calls_of(asked)[0], "Shown."))
    shown = await client.responses.create(model=guide.name, input=sent)
    assert shown.output_text == "There."
    sent += [item.model_dump(exclude_none=True) for item in shown.output]
    parts = [{"type": "input_text", "text": "Thank"}, {"type": "input_text", "text": " you."}]
    sent.append({"type": "message", "role": "user", "content": parts})
    thanked = await client.responses.create(model=guide.name, input=sent)
    assert thanked.output_text == "You are welcome."
    log = await system.log(guide)
    texts = [text_of(message) for message in log[1:]]
    assert [text for text in texts if "Rome" in text] == ["Show me Rome."]
    assert roles(log)[-2:] == ["user", "assistant"]
    assert text_of(log[-2]) == "Thank you."


async def test_history_may_contain_items_that_agents_cannot_receive(
    system: System, http: httpx2.AsyncClient, ann: agent_pb.Agent
) -> None:
    system.model.script(say("Hello."))
    history = [
        {"role": "user", "content": [{"type": "input_file", "file_id": "file-1"}]},
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"role": "assistant", "content": "It is a map."},
        {"role": "user", "content": "Hi."},
    ]
    answered = await http.post("/v1/responses", json={"model": ann.name, "input": history})
    assert answered.status_code == 200, answered.text
    assert [text_of(message) for message in await system.log(ann)][-2:] == ["Hi.", "Hello."]


@pytest.mark.parametrize("wrong", ["unknown", "missing", "mixed", "image"])
async def test_results_without_a_matching_open_call_are_refused(
    system: System, client: openai.AsyncOpenAI, guide: agent_pb.Agent, wrong: str
) -> None:
    calls = (ROME, Call(SHOW_MAP, {"place": "Oslo"}))
    system.model.script(Reply(calls=calls), say("Both."))
    asked = await client.responses.create(model=guide.name, input="Show me both.")
    outputs = [output_of(one, "Shown.") for one in calls_of(asked)]
    items: Any = {
        "unknown": [{**outputs[0], "call_id": "call_of_another"}],
        "missing": outputs[:1],
        "mixed": [*outputs, {"role": "user", "content": "And?"}],
        "image": [{**outputs[0], "output": [{"type": "input_image", "image_url": "https://a/b"}]}],
    }[wrong]
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.create(model=guide.name, input=items)
    assert refused.value.param == "input"
    both = await client.responses.create(model=guide.name, input=outputs)
    assert both.output_text == "Both."


async def test_an_image_reaches_the_model(
    system: System, client: openai.AsyncOpenAI, ann: agent_pb.Agent
) -> None:
    system.model.script(say("Grey."))
    url = "data:image/png;base64," + base64.b64encode(png(3, 2)).decode()
    content: Any = [
        {"type": "input_text", "text": "What is it?"},
        {"type": "input_image", "image_url": url, "detail": "low"},
    ]
    await client.responses.create(model=ann.name, input=[{"role": "user", "content": content}])
    assert system.model.requests[-1].images == [("image/png", png(3, 2))]


async def test_the_previous_response_names_the_conversation(
    system: System, client: openai.AsyncOpenAI, ann: agent_pb.Agent
) -> None:
    made = await system.agents.CreateConversation(
        agent_pb.CreateConversationRequest(agent_id=ann.id, title="of the test")
    )
    system.model.respond(lambda _: say("Yes."))
    conversations: list[Any] = [made.conversation.id, {"id": made.conversation.id}]
    for conversation in conversations:
        first = await client.responses.create(
            model=ann.name, input="I am Ann.", conversation=conversation
        )
    second = await client.responses.create(
        model=ann.name, input="Who am I?", previous_response_id=first.id
    )
    assert second.conversation == first.conversation
    assert second.conversation is not None
    assert second.conversation.id == made.conversation.id
    texts = [text_of(message) for message in await system.log(ann, made.conversation.id)]
    assert texts[1:] == ["I am Ann.", "Yes.", "I am Ann.", "Yes.", "Who am I?", "Yes."]
    assert roles(await system.log(ann)) == ["system"]


async def test_a_user_has_a_conversation(
    system: System, client: openai.AsyncOpenAI, ann: agent_pb.Agent
) -> None:
    system.model.respond(lambda _: say("Yes."))
    first = await client.responses.create(model=ann.name, input="Hi.", user="ann")
    again = await client.responses.create(model=ann.name, input="Hi again.", user="ann")
    other = await client.responses.create(model=ann.name, input="Hi.", user="bob")
    assert first.conversation == again.conversation != other.conversation


async def test_nothing_of_other_agents_and_projects_is_found(
    system: System, client: openai.AsyncOpenAI, ann: agent_pb.Agent, stranger: SystemClient
) -> None:
    secret = "Only Bob knows the secret."
    bob = await system.make_agent()
    foreign = await stranger.make_agent()
    system.model.respond(lambda _: say(secret))
    of_bob = await client.responses.create(model=bob.name, input="Hi.")
    foreign_run = (await stranger.send(foreign, "Hi.")).run_id
    of_stranger = foreign_run.replace("run-", "resp_")
    unknown = new_id("run").replace("run-", "resp_")

    system.model.requests.clear()
    refusals = {}
    for response_id in (of_bob.id, of_stranger, unknown, "resp_1", foreign_run):
        with pytest.raises(openai.NotFoundError) as refused:
            await client.responses.create(
                model=ann.name, input="Who knows?", previous_response_id=response_id
            )
        assert refused.value.param == "previous_response_id"
        refusals[response_id] = refused.value.message.replace(response_id, "")
    for conversation_id in (
        bob.default_conversation_id,
        foreign.default_conversation_id,
        new_id("conversation"),
        "conv_1",
    ):
        with pytest.raises(openai.NotFoundError) as refused:
            await client.responses.create(
                model=ann.name, input="Who knows?", conversation=conversation_id
            )
        assert refused.value.param == "conversation"
        refusals[conversation_id] = refused.value.message.replace(conversation_id, "")
    # The answers do not show whether the conversation exists elsewhere.
    assert len(set(refusals.values())) == 2
    for response_id in (of_stranger, unknown, "resp_1", foreign_run, of_bob.id[5:]):
        for ask in (client.responses.retrieve, client.responses.cancel):
            with pytest.raises(openai.NotFoundError) as refused:
                await ask(response_id)
            assert refused.value.code == "response_not_found"
    assert system.model.requests == []
    assert len(await system.log(bob)) == 3


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"instructions": "Be brief."}, "instructions"),
        ({"background": True}, "background"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": SHOW_MAP}}, "tool_choice"),
        ({"max_tool_calls": 3}, "max_tool_calls"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"context_management": [{"type": "compaction"}]}, "context_management"),
        ({"moderation": {"model": "m"}}, "moderation"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"conversation": "a", "previous_response_id": "b"}, "previous_response_id"),
        ({"conversation": 5}, "conversation"),
        ({"conversation": {"name": "a"}}, "conversation.id"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": [5]}, "input[0]"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0]"),
        ({"input": [{"role": "nobody", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0]"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
            "input[0].content[0].image_url",
        ),
        (
            {
                "input": [
                    {
                        "role": "user",
                        "content": [{"type": "input_image", "image_url": "data:image/png,x"}],
                    }
                ]
            },
            "input",
        ),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"input": [{"role": "user", "content": "a"}, {"role": "assistant"}]}, "input"),
        ({"input": " "}, "input"),
        ({"input": [{"role": "user", "content": ""}]}, "input[0].content"),
        (
            {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "y"}}}},
            "text.format.schema",
        ),
        ({"model": None}, "model"),
        ({"stream": "maybe"}, "stream"),
    ],
)
async def test_unsupported_parameters_are_refused(
    system: System,
    http: httpx2.AsyncClient,
    ann: agent_pb.Agent,
    fields: dict[str, Any],
    param: str,
) -> None:
    body = {"model": ann.name, "input": "Hi.", **fields}
    answered = await http.post("/v1/responses", json=body)
    error = answered.json()["error"]
    assert (answered.status_code, error["param"]) == (400, param), error
    assert error["type"] == "invalid_request_error"
    assert system.model.requests == []
    assert roles(await system.log(ann)) == ["system"]


async def test_parameters_without_effect_are_named(
    system: System, http: httpx2.AsyncClient, ann: agent_pb.Agent
) -> None:
    system.model.respond(lambda _: say("Hello."))
    request = {"model": ann.name, "input": "Hello.", "instructions": None}
    tuned = {"temperature": 0.1, "max_output_tokens": 5, "reasoning": {"effort": "low"}}
    plain, named = [
        (await http.post("/v1/responses", json=body)).json()
        for body in (request, {**request, **tuned})
    ]
    assert "ignored_parameters" not in plain
    assert named["ignored_parameters"] == list(tuned)


async def test_explicit_default_values_are_accepted(
    system: System, http: httpx2.AsyncClient, ann: agent_pb.Agent
) -> None:
    system.model.script(say("Hello."))
    defaults = {
        "instructions": None,
        "background": False,
        "tool_choice": "auto",
        "tools": [],
        "include": ["reasoning.encrypted_content"],
        "text": {"format": {"type": "text"}, "verbosity": "low"},
        "truncation": "auto",
        "stream": None,
        "conversation": None,
        "previous_response_id": None,
        "safety_identifier": "x",
    }
    answered = await http.post(
        "/v1/responses", json={"model": ann.name, "input": "Hi.", **defaults}
    )
    assert answered.status_code == 200, answered.text
    assert answered.json()["output"][0]["content"][0]["text"] == "Hello."


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("hostile", HOSTILE_ARGUMENTS)
async def test_hostile_json_is_refused(
    system: System, http: httpx2.AsyncClient, ann: agent_pb.Agent, path: str, hostile: str
) -> None:
    text = HOSTILE_ARGUMENTS[hostile]
    valid = {
        "model": ann.name,
        "input": "Hi.",
        "messages": [{"role": "user", "content": "Hi."}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": "@"}},
        "text": {"format": {"type": "json_schema", "name": "x", "schema": "@"}},
    }
    for body in (text, f"[{text}]", json.dumps(valid).replace('"@"', text)):
        answered = await http.post(path, content=body.encode("utf-8", "surrogatepass"))
        assert answered.status_code == 400, answered.text
        assert answered.json()["error"]["type"] == "invalid_request_error"
    assert system.model.requests == []


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "body",
    [b"", b"null", b"5", b"[]", b'"x"', b"{", b"\xff\xfe", b"\x00", b"{}", b'{"model": {}}'],
)
async def test_an_invalid_body_is_refused(http: httpx2.AsyncClient, path: str, body: bytes) -> None:
    answered = await http.post(path, content=body)
    assert answered.status_code == 400, answered.text
    assert answered.json()["error"]["message"]


@pytest.mark.parametrize("path", PATHS)
async def test_a_lone_surrogate_in_any_text_is_refused(
    http: httpx2.AsyncClient, ann: agent_pb.Agent, path: str
) -> None:
    half = "\ud83d"
    for fields in (
        {"model": half},
        {"input": half, "messages": [{"role": "user", "content": half}]},
        {"user": half},
    ):
        body = {
            "model": ann.name,
            "input": "Hi.",
            "messages": [{"role": "user", "content": "Hi."}],
            **fields,
        }
        answered = await http.post(path, content=json.dumps(body).encode())
        assert answered.status_code == 400, answered.text


@pytest.mark.parametrize("path", PATHS)
async def test_a_huge_body_is_refused(
    system: System, http: httpx2.AsyncClient, ann: agent_pb.Agent, path: str
) -> None:
    text = "x" * system.gateway_settings.limits.max_message_bytes
    body = {"model": ann.name, "input": text, "messages": [{"role": "user", "content": text}]}
    answered = await http.post(path, json=body)
    assert answered.status_code == 413, answered.text[:200]
    assert answered.json()["error"]["message"]


async def test_a_key_that_is_not_valid_is_refused(system: System, ann: agent_pb.Agent) -> None:
    async with sdk(system, "wrong") as client:
        with pytest.raises(openai.AuthenticationError) as refused:
            await client.responses.create(model=ann.name, input="Hi.")
        assert refused.value.param is None
        with pytest.raises(openai.AuthenticationError):
            await client.responses.retrieve(new_id("run").replace("run-", "resp_"))


async def test_an_agent_whose_name_begins_like_an_id_is_found_by_name(
    system: System, client: openai.AsyncOpenAI
) -> None:
    await system.make_agent(name="agent-smith")
    system.model.script(say("Mister Anderson."))
    response = await client.responses.create(model="agent-smith", input="Hi.")
    assert response.output_text == "Mister Anderson."
    with pytest.raises(openai.NotFoundError) as refused:
        await client.responses.create(model="agent-jones", input="Hi.")
    assert (refused.value.param, refused.value.code) == ("model", "model_not_found")


async def test_a_failed_model_fails_the_response(
    system: System, client: openai.AsyncOpenAI, ann: agent_pb.Agent
) -> None:
    system.model.respond(lambda _: REFUSED)
    events = await streamed(await client.responses.create(model=ann.id, input="Hi.", stream=True))
    assert kinds(events) == (*_BEGIN_EVENTS, "response.failed")
    failed = events[-1]
    assert isinstance(failed, ResponseFailedEvent)
    assert failed.response.status == "failed"
    error = failed.response.error
    assert error is not None
    assert (error.code, error.type) == ("invalid_prompt", "model_request_refused")
    assert error.message
    stored = await client.responses.retrieve(failed.response.id)
    assert (stored.status, stored.error, stored.output) == ("failed", error, [])


@pytest.mark.parametrize("api", ["responses", "chat"])
async def test_a_failed_run_is_not_repeated_by_the_sdk(
    system: System, ann: agent_pb.Agent, api: str
) -> None:
    system.model.respond(lambda _: REFUSED)
    async with sdk(system).with_options(max_retries=2) as client:
        asking = (
            client.responses.create(model=ann.name, input="Hi.")
            if api == "responses"
            else client.chat.completions.create(
                model=ann.name, messages=[{"role": "user", "content": "Hi."}]
            )
        )
        with pytest.raises(openai.InternalServerError) as raised:
            await asking
    assert raised.value.code == "model_request_refused"
    # A repeated request would add a second message to the conversation.
    assert roles(await system.log(ann)).count("user") == 1


async def test_a_truncated_reply_is_incomplete(
    system: System, client: openai.AsyncOpenAI, ann: agent_pb.Agent
) -> None:
    system.model.script(say("A reply that", finish="length"))
    events = await streamed(await client.responses.create(model=ann.id, input="Hi.", stream=True))
    last = events[-1]
    assert last.type == "response.incomplete"
    assert last.response.status == "incomplete"
    assert last.response.incomplete_details is not None
    assert last.response.incomplete_details.reason == "max_output_tokens"
    assert last.response.output_text == "A reply that"
    assert last.response.output[0].type == "message"
    assert last.response.output[0].status == "incomplete"
    assert (await client.responses.retrieve(last.response.id)).status == "incomplete"


async def test_a_call_that_needs_approval_fails_the_response_with_an_explanation(
    system: System, client: openai.AsyncOpenAI
) -> None:
    gated = await system.make_agent(tool_rules=[GATE])
    system.model.respond(lambda _: call("memory_insert", INSERT))
    events = await streamed(
        await client.responses.create(model=gated.name, input="I row.", stream=True)
    )
    failed = events[-1]
    assert isinstance(failed, ResponseFailedEvent)
    error = failed.response.error
    assert error is not None
    assert error.type == "approval_required"
    assert "memory_insert" in error.message
    assert "RespondToApproval" in error.message
    assert (await client.responses.retrieve(failed.response.id)).error == error
    # A client cannot answer what waits for a person.
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.create(model=gated.name, input="Well?")
    assert refused.value.code == "approval_pending"

    other = await system.make_agent(tool_rules=[GATE])
    with pytest.raises(openai.ConflictError) as waits:
        await client.responses.create(model=other.name, input="I row.")
    assert waits.value.code == "approval_required"


async def test_a_repeated_request_gets_the_first_response(
    system: System, client: openai.AsyncOpenAI, guide: agent_pb.Agent
) -> None:
    system.model.script(Reply(text="Let me look.", calls=(ROME,)), say("There it is."))

    async def twice(**fields: Any) -> Response:
        key = {"Idempotency-Key": new_id("request")}
        responses: list[Response] = [
            await client.responses.create(model=guide.name, extra_headers=key, **fields)
            for _ in range(2)
        ]
        first, again = responses
        assert again.id == first.id
        assert again.output == first.output
        return again

    asked = await twice(input="Rome?")
    answer = output_of(calls_of(asked)[0], "Shown.")
    assert (await twice(input=[answer])).output_text == "There it is."
    assert len(system.model.requests) == 2
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.create(
            model=guide.name,
            input=[answer],
            extra_headers={"Idempotency-Key": new_id("request")},
        )
    assert refused.value.code == "approval_decided"


async def test_a_restarted_reply_is_continued_if_equal_and_otherwise_ends_the_stream(
    system: System, client: openai.AsyncOpenAI, ann: agent_pb.Agent
) -> None:
    text = "This answer is long enough to be cut."
    system.model.script(cut(3, text), say(text))
    events = await streamed(await client.responses.create(model=ann.id, input="Hi.", stream=True))
    assert isinstance(events[-1], ResponseCompletedEvent)
    assert events[-1].response.output_text == text

    system.model.script(cut(3, text), say("Something else."))
    events = await streamed(await client.responses.create(model=ann.id, input="Hi.", stream=True))
    # The run has not failed: its response has the other reply.
    last = events[-1]
    assert last.type == "error"
    assert last.code == "reply_restarted"
    created = events[0]
    assert created.type == "response.created"
    await system.follow(created.response.id.replace("resp_", "run-"))
    stored = await client.responses.retrieve(created.response.id)
    assert (stored.status, stored.output_text) == ("completed", "Something else.")


async def test_an_active_response_can_be_read_and_cancelled(
    system: System, client: openai.AsyncOpenAI, ann: agent_pb.Agent
) -> None:
    held = asyncio.Event()
    system.model.script(say("A long reply. " * 50, held=held))
    stream = await client.responses.create(model=ann.id, input="Tell me.", stream=True)
    created = await anext(stream)
    assert created.type == "response.created"
    under_way = await client.responses.retrieve(created.response.id)
    assert (under_way.status, under_way.output) == ("in_progress", [])
    waiting = await system.runs.StartRun(
        run_pb.StartRunRequest(agent_id=ann.id, messages=[user_message("And then?")])
    )
    queued = await client.responses.retrieve(waiting.run.id.replace("run-", "resp_"))
    assert (queued.status, queued.model) == ("queued", ann.name)
    await system.cancel(waiting.run.id)
    cancelled = await client.responses.cancel(created.response.id)
    assert cancelled.status in {"in_progress", "cancelled"}
    rest = [event async for event in stream]
    held.set()
    last = rest[-1]
    assert last.type == "response.failed"
    assert last.response.status == "cancelled"
    stored = await client.responses.retrieve(created.response.id)
    assert stored.status == "cancelled"
    # A response that has ended does not change.
    assert (await client.responses.cancel(created.response.id)).status == "cancelled"


async def test_a_stored_response_is_not_streamed(
    system: System, client: openai.AsyncOpenAI, ann: agent_pb.Agent
) -> None:
    system.model.script(say("Hello."))
    response = await client.responses.create(model=ann.name, input="Hi.")
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.retrieve(response.id, stream=True)
    assert refused.value.param == "stream"


async def test_the_response_of_a_deleted_agent_names_the_agent_by_its_id(
    system: System, client: openai.AsyncOpenAI
) -> None:
    gone = await system.make_agent()
    system.model.script(say("Hello."))
    response = await client.responses.create(model=gone.name, input="Hi.")
    await system.agents.DeleteAgent(agent_pb.DeleteAgentRequest(agent_id=gone.id))
    stored = await client.responses.retrieve(response.id)
    assert (stored.model, stored.output_text) == (gone.id, "Hello.")
