"""The official OpenAI SDK in front of agents."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import httpx2
import openai
import pytest
import pytest_asyncio

from chat_messages import text_of
from doubles.script import Call, Fault, Reply, call, say
from image_samples import png
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.common.v1 import message_pb2, tool_pb2
from strata.api.tool_execution.v1 import tool_service_pb2 as tool_api
from strata.gateway.http import calls, server_sent_events
from strata.gateway.http.openai_api import run_calls
from whole_system import System

pytestmark = pytest.mark.asyncio(loop_scope="session")

HELLO: Any = [{"role": "user", "content": "Hello."}]
"""Messages of a request."""
SEND_MESSAGE = "/strata.api.gateway.v1.RunService/SendMessage"
NUL: Any = {"role": "user", "content": "\0"}


@pytest_asyncio.fixture(loop_scope="session")
async def sdk(system: System) -> AsyncIterator[openai.AsyncOpenAI]:
    """The SDK, with the base URL and the key changed."""
    async with openai.AsyncOpenAI(
        base_url=f"{system.http_url}/v1", api_key=system.key, max_retries=0
    ) as client:
        yield client


async def spoken(
    system: System, agent: agent_pb.Agent, conversation_id: str = ""
) -> list[tuple[int, str]]:
    """Returns roles and texts of a conversation, without the system message."""
    log = await system.log(agent, conversation_id)
    return [
        (message.role, text_of(message))
        for message in log
        if message.role in (message_pb2.ROLE_USER, message_pb2.ROLE_ASSISTANT)
    ]


async def client_tool(system: System, name: str) -> None:
    await system.tools.UpsertTool(
        tool_api.UpsertToolRequest(
            type=tool_pb2.TOOL_TYPE_CLIENT,
            name=name,
            description="Shows a place.",
            parameters_json=json.dumps(
                {"type": "object", "properties": {"place": {"type": "string"}}}
            ),
        )
    )


async def test_models_are_the_agents(system: System, sdk: openai.AsyncOpenAI) -> None:
    agent = await system.make_agent(description="Keeps the till.")
    models = {model.id: model async for model in sdk.models.list()}
    assert models[agent.name] == await sdk.models.retrieve(agent.name)
    assert models[agent.name].created == agent.create_time.seconds
    assert models[agent.name].model_dump()["description"] == "Keeps the till."


async def test_memory_agents_are_not_listed_as_models(
    system: System, sdk: openai.AsyncOpenAI
) -> None:
    agent = await system.make_agent(enable_sleeptime=True)
    models = [model.id async for model in sdk.models.list()]
    assert agent.name in models
    assert f"{agent.name}-sleeptime" not in models


@pytest.mark.parametrize("by", ["name", "id"])
async def test_the_completion_contains_the_reply(
    system: System, sdk: openai.AsyncOpenAI, by: str
) -> None:
    system.model.script(say("Good morning."))
    agent = await system.make_agent()
    completion = await sdk.chat.completions.create(model=getattr(agent, by), messages=HELLO)
    [choice] = completion.choices
    assert (choice.message.content, choice.finish_reason) == ("Good morning.", "stop")
    assert completion.usage is not None
    assert completion.usage.total_tokens > 0
    run = await system.run(completion.id.replace("chatcmpl-", "run-"))
    assert run.agent_id == agent.id


@pytest.mark.parametrize("stream", [False, True])
async def test_thoughts_beside_calls_of_the_v2_loop_are_no_part_of_the_reply(
    system: System, sdk: openai.AsyncOpenAI, stream: bool
) -> None:
    agent = await system.make_agent(
        type=agent_pb.AGENT_TYPE_MEMGPT_V2, tools=["archival_memory_search"]
    )
    search = {"query": "harbour", "request_heartbeat": True}
    system.model.script(
        Reply(text="I should look.", calls=(Call("archival_memory_search", search),)),
        Reply(text="She waits.", calls=(Call("send_message", {"message": "Nothing."}),)),
    )
    if stream:
        chunks = [
            chunk
            async for chunk in await sdk.chat.completions.create(
                model=agent.name, messages=HELLO, stream=True
            )
        ]
        reply = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    else:
        completion = await sdk.chat.completions.create(model=agent.name, messages=HELLO)
        reply = completion.choices[0].message.content or ""
    assert reply == "Nothing."


async def test_the_stream_contains_the_text_in_pieces(
    system: System, sdk: openai.AsyncOpenAI
) -> None:
    # Pieces that arrive together are sent as one.
    system.model.script(say("A reply of several pieces.", pause=0.02))
    agent = await system.make_agent()
    stream = await sdk.chat.completions.create(
        model=agent.name, messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(texts) == "A reply of several pieces."
    assert len([text for text in texts if text]) > 1
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].usage is not None
    assert len({chunk.id for chunk in chunks if chunk.choices}) <= 2


async def test_stream_begins_before_the_model_replies_and_is_kept_alive(
    system: System, http: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_sent_events, "_KEEP_ALIVE_S", 0.02)
    release = asyncio.Event()
    system.model.script(Reply(text="At last.", held=release, held_after=0))
    agent = await system.make_agent()
    body = {"model": agent.name, "messages": HELLO, "stream": True}
    async with http.stream("POST", "/v1/chat/completions", json=body) as response:
        lines = (line async for line in response.aiter_lines() if line)
        first = json.loads((await anext(lines)).removeprefix("data: "))
        assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert (await anext(lines)).startswith(": ")
        release.set()
        rest = [line async for line in lines if not line.startswith(":")]
    assert rest[-1] == "data: [DONE]"
    assert "At last." in "".join(
        json.loads(line.removeprefix("data: "))["choices"][0]["delta"].get("content", "")
        for line in rest[:-1]
    )


async def test_the_stream_of_a_queued_run_starts_at_once(
    system: System, http: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_calls, "_BEGIN_S", 0.05)
    release = asyncio.Event()
    system.model.script(Reply(text="First.", held=release, held_after=0), say("Second."))
    agent = await system.make_agent()
    body = {"model": agent.name, "messages": HELLO, "stream": True}
    async with (
        http.stream("POST", "/v1/chat/completions", json=body) as first,
        http.stream("POST", "/v1/chat/completions", json=body) as second,
    ):
        release.set()
        texts = [(await response.aread()).decode() for response in (first, second)]
    assert ["[DONE]" in text for text in texts] == [True, True]


async def test_texts_of_several_steps_are_joined(system: System, sdk: openai.AsyncOpenAI) -> None:
    for stream in (False, True):
        system.model.script(
            Reply(text="Let me look.", calls=(Call("conversation_search", {"query": "x"}),)),
            say("There is nothing."),
        )
        agent = await system.make_agent()
        reply: Any = await sdk.chat.completions.create(
            model=agent.name, messages=HELLO, stream=stream
        )
        if stream:
            pieces = [chunk.choices[0].delta.content or "" async for chunk in reply]
            text = "".join(pieces)
        else:
            text = reply.choices[0].message.content
        assert text == "Let me look.\n\nThere is nothing."


async def test_optional_fields_may_be_null(system: System, http: httpx2.AsyncClient) -> None:
    system.model.script(say("Fine."))
    agent = await system.make_agent()
    message = {"role": "user", "content": "Hello.", "name": None, "tool_call_id": None}
    body = {"model": agent.name, "messages": [message], "user": None, "tools": None, "n": None}
    response = await http.post("/v1/chat/completions", json=body)
    assert response.json()["choices"][0]["message"]["content"] == "Fine."


async def test_only_new_messages_reach_the_agent(system: System, sdk: openai.AsyncOpenAI) -> None:
    system.model.script(say("One."), say("Two."))
    agent = await system.make_agent()
    messages: Any = [{"role": "user", "content": "first"}]
    await sdk.chat.completions.create(model=agent.name, messages=messages)
    messages += [{"role": "assistant", "content": "One."}, {"role": "user", "content": "second"}]
    await sdk.chat.completions.create(model=agent.name, messages=messages)
    texts = await spoken(system, agent)
    assert [text for _, text in texts if text in ("first", "One.", "second", "Two.")] == [
        "first",
        "One.",
        "second",
        "Two.",
    ]


async def test_each_value_of_user_has_its_own_conversation(
    system: System, sdk: openai.AsyncOpenAI
) -> None:
    system.model.respond(lambda request: say(f"{request.last_text.strip()} too"))
    agent = await system.make_agent()

    async def say_as(user: str, text: str) -> str:
        completion = await sdk.chat.completions.create(
            model=agent.name, messages=[{"role": "user", "content": text}], user=user
        )
        return str(completion.model_extra["conversation_id"]) if completion.model_extra else ""

    ann, again, bea = await asyncio.gather(
        say_as("ann", "one"), say_as("ann", "two"), say_as("bea", "three")
    )
    assert ann == again != bea
    assert agent.default_conversation_id not in (ann, bea)
    assert sorted(text for _, text in await spoken(system, agent, ann)) == [
        "one",
        "one too",
        "two",
        "two too",
    ]
    listed = await system.agents.ListConversations(
        agent_pb.ListConversationsRequest(agent_id=agent.id)
    )
    assert sorted(c.external_id for c in listed.conversations) == ["", "ann", "bea"]


@pytest.mark.parametrize("user", ["crm/4711", "a\\b", " ann ", "u" * 200, "..", "\u200b"])
async def test_a_value_of_user_that_cannot_be_a_title_has_a_conversation(
    system: System, sdk: openai.AsyncOpenAI, user: str
) -> None:
    system.model.respond(lambda request: say(f"{len(request.messages)}"))
    agent = await system.make_agent()
    replies = [
        await sdk.chat.completions.create(model=agent.name, messages=HELLO, user=user)
        for _ in range(2)
    ]
    stored = await system.agents.GetConversation(
        agent_pb.GetConversationRequest(agent_id=agent.id, external_id=user)
    )
    assert [reply.choices[0].message.content for reply in replies] == ["2", "4"]
    assert {(reply.model_extra or {})["conversation_id"] for reply in replies} == {
        stored.conversation.id
    }


async def test_a_conversation_with_the_user_as_title_is_continued(
    system: System, sdk: openai.AsyncOpenAI
) -> None:
    system.model.script(say("Welcome back."))
    agent = await system.make_agent()
    titled = await system.agents.CreateConversation(
        agent_pb.CreateConversationRequest(agent_id=agent.id, title="ann")
    )
    completion = await sdk.chat.completions.create(model=agent.name, messages=HELLO, user="ann")
    assert completion.model_extra is not None
    assert completion.model_extra["conversation_id"] == titled.conversation.id


async def test_a_repeated_idempotency_key_starts_no_second_run(
    system: System, sdk: openai.AsyncOpenAI
) -> None:
    system.model.script(say("Once."), say("Twice."))
    agent = await system.make_agent()
    replies = [
        await sdk.chat.completions.create(
            model=agent.name, messages=HELLO, extra_headers={"idempotency-key": f"k-{agent.id}"}
        )
        for _ in range(2)
    ]
    assert [reply.choices[0].message.content for reply in replies] == ["Once.", "Once."]
    assert replies[0].id == replies[1].id


@pytest.mark.parametrize("stream", [False, True])
async def test_client_runs_its_tool_and_the_agent_continues(
    system: System, sdk: openai.AsyncOpenAI, stream: bool
) -> None:
    name = f"show_place_{stream}".lower()
    await client_tool(system, name)
    agent = await system.make_agent(tools=[name])
    system.model.script(
        Reply(calls=(Call(name, {"place": "Rome"}), Call(name, {"place": "Oslo"}))),
        say("There they are."),
    )
    tools: Any = [{"type": "function", "function": {"name": name, "parameters": {}}}]
    messages: Any = list(HELLO)
    if stream:
        chunks = [
            chunk
            async for chunk in await sdk.chat.completions.create(
                model=agent.name, messages=messages, tools=tools, stream=True
            )
        ]
        calls: Any = [c for chunk in chunks for c in chunk.choices[0].delta.tool_calls or []]
        assert [c.index for c in calls] == [0, 1]
        assert chunks[-1].choices[0].finish_reason == "tool_calls"
    else:
        first = await sdk.chat.completions.create(model=agent.name, messages=messages, tools=tools)
        assert first.choices[0].finish_reason == "tool_calls"
        calls = first.choices[0].message.tool_calls or []
    assert [json.loads(c.function.arguments)["place"] for c in calls] == ["Rome", "Oslo"]
    messages.append(
        {
            "role": "assistant",
            "tool_calls": [
                {"id": c.id, "type": "function", "function": c.function.model_dump()} for c in calls
            ],
        }
    )
    with pytest.raises(openai.BadRequestError, match="Send a result for each of the calls"):
        await sdk.chat.completions.create(
            model=agent.name,
            messages=[*messages, {"role": "tool", "tool_call_id": calls[0].id, "content": "ok"}],
        )
    messages += [
        {"role": "tool", "tool_call_id": c.id, "content": f"{number} is shown"}
        for number, c in enumerate(calls)
    ]
    last = await sdk.chat.completions.create(model=agent.name, messages=messages)
    assert last.choices[0].message.content == "There they are."
    returns = [
        part.tool_return.content
        for message in await system.log(agent)
        for part in message.parts
        if part.HasField("tool_return")
    ]
    assert [json.loads(content)["message"] for content in returns] == [
        "0 is shown",
        "1 is shown",
    ]


async def test_results_of_a_tool_are_matched_without_reading_requests_of_other_users(
    system: System, sdk: openai.AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "_APPROVALS_PAGE", 1)
    await client_tool(system, "show_place")
    agent = await system.make_agent(tools=["show_place"])
    system.model.respond(lambda _: call("show_place", {"place": "Lisbon"}))
    for user in ("ann", "bob", "cem"):
        asked = await sdk.chat.completions.create(model=agent.name, messages=HELLO, user=user)
    made = (asked.choices[0].message.tool_calls or [])[0]
    system.model.respond(lambda _: say("There it is."))
    result: Any = {"role": "tool", "tool_call_id": made.id, "content": "shown"}
    assert system.meter is not None
    async with system.meter.measure() as cost:
        reply = await sdk.chat.completions.create(model=agent.name, messages=[result], user="cem")
    assert reply.choices[0].message.content == "There it is."
    assert cost.rpcs["ListApprovals"] == 1


async def test_call_that_a_person_approves_is_refused_clearly(
    system: System, sdk: openai.AsyncOpenAI
) -> None:
    name = "send_letter"
    await system.tools.UpsertTool(
        tool_api.UpsertToolRequest(
            source_code=f"def {name}(to: str) -> str:\n"
            '    """Sends a letter.\n\n    Args:\n        to: Who gets it.\n    """\n'
            "    return to\n",
            default_requires_approval=True,
        )
    )
    agent = await system.make_agent(tools=[name])
    system.model.script(call(name, {"to": "Ada"}))
    with pytest.raises(openai.ConflictError, match="a person approves calls of send_letter"):
        await sdk.chat.completions.create(model=agent.name, messages=HELLO)
    with pytest.raises(openai.APIStatusError) as raised:
        await sdk.chat.completions.create(model=agent.name, messages=HELLO)
    assert raised.value.code == "approval_pending"
    assert "RunService.RespondToApproval" in raised.value.message
    assert "on_approval" not in raised.value.message


async def test_reply_in_json_fits_the_schema(system: System, sdk: openai.AsyncOpenAI) -> None:
    system.model.script(say('{"city": "Oslo"}'))
    agent = await system.make_agent()
    completion = await sdk.chat.completions.create(
        model=agent.name,
        messages=HELLO,
        response_format={
            "type": "json_schema",
            "json_schema": {
                "name": "place",
                "schema": {"type": "object", "properties": {"city": {"type": "string"}}},
            },
        },
    )
    assert json.loads(completion.choices[0].message.content or "") == {"city": "Oslo"}


async def test_history_may_contain_items_that_agents_cannot_receive(
    system: System, sdk: openai.AsyncOpenAI
) -> None:
    system.model.script(say("Hello."))
    agent = await system.make_agent()
    audio = {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}
    history: Any = [
        {"role": "user", "content": [audio]},
        {"role": "function", "name": "f", "content": "x"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        *HELLO,
    ]
    completion = await sdk.chat.completions.create(model=agent.name, messages=history)
    assert completion.choices[0].message.content == "Hello."
    assert [text for _, text in await spoken(system, agent)][-2:] == ["Hello.", "Hello."]


@pytest.mark.parametrize("head", ["DATA:image/png;base64,", "data:image/png;name=a.png;base64,\n"])
async def test_data_url_may_have_every_form(
    system: System, sdk: openai.AsyncOpenAI, head: str
) -> None:
    system.model.script(say("A picture."))
    agent = await system.make_agent()
    data = quote(base64.b64encode(png(8, 8)).decode())
    content = [{"type": "image_url", "image_url": {"url": head + data}}]
    messages: Any = [{"role": "user", "content": content}]
    completion = await sdk.chat.completions.create(model=agent.name, messages=messages)
    assert completion.choices[0].message.content == "A picture."


async def test_image_reaches_the_model(system: System, sdk: openai.AsyncOpenAI) -> None:
    system.model.script(say("A small picture."))
    agent = await system.make_agent()
    data = base64.b64encode(png(4, 4)).decode()
    content: Any = [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}},
    ]
    await sdk.chat.completions.create(
        model=agent.name, messages=[{"role": "user", "content": content}]
    )
    [message] = [m for m in await system.log(agent) if m.role == message_pb2.ROLE_USER][-1:]
    assert [part.WhichOneof("content") for part in message.parts] == ["text", "image"]


async def test_failed_model_is_a_failed_request(system: System, sdk: openai.AsyncOpenAI) -> None:
    agent = await system.make_agent()
    system.model.script(Fault(400, "no such thing", type="invalid_request_error"))
    with pytest.raises(openai.InternalServerError) as raised:
        await sdk.chat.completions.create(model=agent.name, messages=HELLO)
    assert raised.value.status_code == 502
    system.model.reset()
    system.model.script(
        Reply(text="A beginning", error_after=(1, Fault(400, "gone", type="invalid_request_error")))
    )
    stream = await sdk.chat.completions.create(model=agent.name, messages=HELLO, stream=True)
    with pytest.raises(openai.APIError):
        _ = [chunk async for chunk in stream]


@pytest.mark.parametrize("second", ["A reply that breaks off here.", "Another one."])
async def test_a_restarted_reply_is_not_sent_twice(
    system: System, sdk: openai.AsyncOpenAI, second: str
) -> None:
    system.model.script(
        Reply(text="A reply that breaks off here.", piece=4, cut_after=5), say(second)
    )
    agent = await system.make_agent()
    stream = await sdk.chat.completions.create(model=agent.name, messages=HELLO, stream=True)
    text = ""
    try:
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
    except openai.APIError as error:
        assert second == "Another one."
        assert "gave another reply" in str(error)
    else:
        assert text == second == "A reply that breaks off here."
    # After the stream has ended with the error, the run continues until its reply is stored.
    async with asyncio.timeout(30):
        while (await spoken(system, agent))[-1][1] != second:
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"stop": ["."]}, "stop"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"logit_bias": {"1": 2}}, "logit_bias"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "assistant", "content": "I said."}]}, "messages"),
        ({"messages": [{"role": "nobody", "content": "x"}]}, "messages[0].role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]},
            "messages[0].content[0]",
        ),
        ({"messages": [{"role": "tool", "tool_call_id": "x", "content": "y"}]}, "messages"),
        (
            {"messages": [*HELLO, {"role": "tool", "tool_call_id": "x", "content": "y"}]},
            "messages",
        ),
        ({"messages": [{"role": "user", "content": ""}]}, "messages[0].content"),
        (
            {"messages": [*HELLO, {"role": "assistant", "content": "Hi."}, *HELLO, NUL]},
            "messages[3].content[0]",
        ),
        ({"messages": [{"role": "user", "content": "x", "name": "a\nb"}]}, "messages[0].name"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"type": "text"}},
                }
            },
            "response_format.json_schema.schema",
        ),
        ({"user": "a\nb"}, "user"),
        ({"model": 7}, "model"),
        ({"stream": "perhaps"}, "stream"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ],
)
async def test_unsupported_fields_are_refused(
    system: System, http: httpx2.AsyncClient, fields: dict[str, Any], param: str
) -> None:
    agent = await system.make_agent()
    body = {"model": agent.name, "messages": HELLO, **fields}
    response = await http.post("/v1/chat/completions", json=body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert len(await spoken(system, agent)) == len(await spoken(system, await system.make_agent()))


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"7", b"\xff", b"[" * 100_000, b'{"model": "x"}']
)
async def test_an_invalid_body_is_refused(http: httpx2.AsyncClient, body: bytes) -> None:
    response = await http.post("/v1/chat/completions", content=body)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v1/embeddings", 404),
        ("GET", "/v1/responses/resp_1/input_items", 404),
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/v1/responses/resp_1", 405),
    ],
)
async def test_an_unknown_path_is_an_error_in_the_format_of_openai(
    http: httpx2.AsyncClient, method: str, path: str, status: int
) -> None:
    response = await http.request(method, path)
    assert response.status_code == status
    error = response.json()["error"]
    assert path in error["message"]
    assert error["type"] == ("not_found_error" if status == 404 else "invalid_request_error")


async def test_compressed_body_is_refused(http: httpx2.AsyncClient) -> None:
    response = await http.post(
        "/v1/chat/completions", content=b"\x1f\x8b", headers={"content-encoding": "gzip"}
    )
    assert response.status_code == 415
    assert "content-encoding 'gzip'" in response.json()["error"]["message"]


async def test_a_client_that_disconnects_during_its_request_is_not_an_error(
    system: System, http: httpx2.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    url = httpx2.URL(system.http_url)
    for path in ("/v1/chat/completions", "/a2a/assistant", SEND_MESSAGE):
        reader, writer = await asyncio.open_connection(url.host, url.port)
        head = f"POST {path} HTTP/1.1\r\nhost: strata\r\ncontent-length: 9\r\n\r\n"
        writer.write(head.encode() + b"{")
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()
    assert (await http.get("/healthz")).status_code == 200
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


async def test_body_that_is_too_large_is_refused(http: httpx2.AsyncClient) -> None:
    response = await http.post("/v1/chat/completions", content=b" " * 5_000_000)
    assert response.status_code == 413
    message = response.json()["error"]["message"]
    assert message.startswith("The body is larger than the 4194304 bytes allowed.")
    assert "STRATA_GATEWAY_LIMITS__MAX_MESSAGE_BYTES" in message
    assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("stream", [False, True])
async def test_parameters_without_effect_are_named(
    system: System, http: httpx2.AsyncClient, stream: bool
) -> None:
    system.model.respond(lambda _: say("Hello."))
    agent = await system.make_agent()
    request = {"model": agent.name, "messages": HELLO, "stream": stream, "n": 1, "stop": None}
    tuned = {"temperature": 0.1, "max_tokens": 5, "seed": 7, "top_p": None}
    heads = []
    for body in (request, {**request, **tuned}):
        response = await http.post("/v1/chat/completions", json=body)
        heads.append(json.loads(response.text.partition("\n")[0].removeprefix("data: ")))
    assert "ignored_parameters" not in heads[0]
    assert heads[1]["ignored_parameters"] == ["temperature", "max_tokens", "seed"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/models", None),
        ("/v1/models/nobody", None),
        ("/v1/nothing", None),
        ("/v1/chat/completions", {"model": "nobody", "messages": HELLO}),
        (SEND_MESSAGE, {"agent_id": "agent-x"}),
        ("/console/sign-in", None),
    ],
)
async def test_responses_have_the_id_of_their_request(
    http: httpx2.AsyncClient, path: str, body: Any
) -> None:
    method = "GET" if body is None else "POST"
    for sent, expected in (("support-4711", "support-4711"), ("not an id", "req-"), (None, "req-")):
        headers = {} if sent is None else {"x-request-id": sent}
        response = await http.request(method, path, json=body, headers=headers)
        assert response.headers["x-request-id"].startswith(expected)


async def test_a_blank_model_is_refused_as_such(http: httpx2.AsyncClient) -> None:
    response = await http.post("/v1/chat/completions", json={"model": "", "messages": HELLO})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "model")
    assert error["message"] == "The model must be an agent, by name or id."


async def test_unknown_agent_is_not_found(sdk: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as raised:
        await sdk.chat.completions.create(model="nobody", messages=HELLO)
    assert (raised.value.code, raised.value.param) == ("model_not_found", "model")


async def test_wrong_key_is_refused(system: System) -> None:
    async with openai.AsyncOpenAI(base_url=f"{system.http_url}/v1", api_key="wrong") as client:
        with pytest.raises(openai.AuthenticationError):
            await client.models.list()


async def test_agent_of_another_project_is_not_found(
    system: System, other_project_key: str
) -> None:
    agent = await system.make_agent()
    async with openai.AsyncOpenAI(
        base_url=f"{system.http_url}/v1", api_key=other_project_key, max_retries=0
    ) as client:
        assert [model.id async for model in client.models.list()] == []
        for model in (agent.name, agent.id):
            with pytest.raises(openai.NotFoundError):
                await client.chat.completions.create(model=model, messages=HELLO, user="ann")
