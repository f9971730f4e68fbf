"""Features of OpenAI's protocol and of compatible servers."""

import asyncio
from dataclasses import replace

import httpx2
import pytest
from openai import AsyncOpenAI

from doubles.bench import LOOKUP, Bench, collect, request
from doubles.script import (
    Call,
    Fault,
    ModelCall,
    Reply,
    Responder,
    Step,
    call,
    cut,
    overflow,
    overloaded,
    rate_limited,
    say,
    server_error,
    unauthorized,
)
from strata.agent_loop.domain.model.chat import (
    ChatMessage,
    ModelReply,
    ReasoningDelta,
    ReasoningPart,
    TextDelta,
    TextPart,
    ToolCall,
)
from strata.agent_loop.domain.model.errors import ModelError, ModelErrorKind
from strata.agent_loop.models.factory import ModelFactory
from strata.agent_loop.models.openai_api.chat_completions import OpenAiChatModel
from strata.agent_loop.models.streaming import RetryPolicy


def unsupported(parameter: str) -> Fault:
    message = f"Unsupported value: '{parameter}' does not support that with this model."
    return Fault(400, message, "invalid_request_error", "unsupported_value", parameter)


@pytest.mark.parametrize("whole_calls", [True, False])
async def test_calls_without_ids_get_unique_ids(openai_bench: Bench, whole_calls: bool) -> None:
    calls = (Call("lookup", {"query": "a"}), Call("lookup", {"query": "b"}))
    openai_bench.server.script(Reply(calls=calls, call_ids=False, whole_calls=whole_calls))
    _, reply = await openai_bench.ask()
    assert [one.arguments for one in reply.tool_calls] == [one.raw for one in calls]
    assert len({one.id for one in reply.tool_calls}) == 2
    assert all(one.id for one in reply.tool_calls)


async def test_reasoning_and_text_in_lists_of_parts_are_read(openai_bench: Bench) -> None:
    openai_bench.server.script(
        Reply(reasoning="Ann lives in Lisbon.", text="In Lisbon.", content_parts=True)
    )
    events, reply = await openai_bench.ask()
    assert reply.content == (ReasoningPart("Ann lives in Lisbon."), TextPart("In Lisbon."))
    assert (
        "".join(e.text for e in events if isinstance(e, ReasoningDelta)) == "Ann lives in Lisbon."
    )
    assert "".join(e.text for e in events if isinstance(e, TextDelta)) == "In Lisbon."


async def test_a_reused_id_is_made_unique(openai_bench: Bench) -> None:
    calls = (Call("lookup", {"query": "a"}, id="call_0"), Call("lookup", {}, id="call_0"))
    openai_bench.server.script(Reply(calls=calls))
    _, reply = await openai_bench.ask()
    assert len({one.id for one in reply.tool_calls}) == 2


async def test_long_ids_are_cut_on_the_wire_only(openai_bench: Bench) -> None:
    long = "call_" + "a" * 50
    openai_bench.server.script(say("ok"))
    messages = [
        ChatMessage.user("hi"),
        ChatMessage.assistant("", [ToolCall(long, "lookup", '{"query":"x"}')]),
        ChatMessage.tool(long, "found"),
    ]
    await collect(openai_bench.model(), replace(request(), messages=messages))
    _, sent, answered = openai_bench.server.requests[0].body["messages"]
    assert sent["tool_calls"][0]["id"] == answered["tool_call_id"] == long[:29]
    assert sent["tool_calls"][0]["function"]["arguments"] == '{"query":"x"}'


async def test_a_refused_parameter_is_omitted_from_then_on(openai_bench: Bench) -> None:
    openai_bench.server.script(unsupported("temperature"), say("ok"), say("ok"))
    await openai_bench.ask()
    await openai_bench.ask()
    sent = ["temperature" in one.body for one in openai_bench.server.requests]
    assert sent == [True, False, False]


async def test_a_needed_parameter_that_is_refused_is_an_error(openai_bench: Bench) -> None:
    openai_bench.server.script(unsupported("tools"))
    with pytest.raises(ModelError) as caught:
        await openai_bench.ask()
    assert caught.value.kind is ModelErrorKind.BAD_REQUEST


async def test_an_exhausted_quota_is_not_retried(openai_bench: Bench) -> None:
    message = "You exceeded your current quota."
    openai_bench.server.script(Fault(429, message, "insufficient_quota", "insufficient_quota"))
    with pytest.raises(ModelError) as caught:
        await openai_bench.ask()
    assert caught.value.kind is ModelErrorKind.RATE_LIMITED
    assert len(openai_bench.server.requests) == 1


async def test_compatible_servers_get_the_plain_schema(openai_bench: Bench) -> None:
    openai_bench.server.script(say("ok"))
    asked = request(tools=[replace(LOOKUP, strict=True)])
    await collect(openai_bench.model(max_tokens=50), asked)
    body = openai_bench.server.requests[0].body
    assert body["tools"][0]["function"]["parameters"] == LOOKUP.parameters
    assert "strict" not in body["tools"][0]["function"]
    assert body["max_tokens"] == 50


async def test_openai_itself_gets_strict_schemas_and_invented_nulls_are_removed(
    openai_bench: Bench,
) -> None:
    """Uses the official address; the transport is redirected to the local server."""
    server = openai_bench.server
    server.script(call("lookup", {"query": "x", "limit": None}))

    async def bend(outgoing: httpx2.Request) -> None:
        outgoing.url = httpx2.URL(f"{server.openai_url}/chat/completions")

    async with httpx2.AsyncClient(event_hooks={"request": [bend]}) as transport:
        client = AsyncOpenAI(
            api_key="k",
            base_url="https://api.openai.com/v1",
            http_client=transport,
            max_retries=0,
        )
        model = OpenAiChatModel(client, openai_bench.settings(max_tokens=9), RetryPolicy(1))
        events = model.stream(request(tools=[replace(LOOKUP, strict=True)]))
        reply = [event async for event in events][-1]
    assert isinstance(reply, ModelReply)
    assert reply.tool_calls[0].arguments == '{"query": "x"}'
    body = server.requests[0].body
    function = body["tools"][0]["function"]
    assert function["strict"] is True
    assert function["parameters"]["required"] == ["query", "limit"]
    assert function["parameters"]["properties"]["limit"]["type"] == ["integer", "null"]
    assert body["max_completion_tokens"] == 9
    assert server.violations == []


async def test_later_requests_have_the_address_and_the_headers_of_the_first(
    openai_bench: Bench,
) -> None:
    """The SDK builds the first request of a model; the others repeat what does not change."""
    server, model = openai_bench.server, openai_bench.model()
    server.script(say("1"), say("2"), say("3"))
    for text in ("short", "a longer question: \u4e2d\U0001f600", "short"):
        await collect(model, replace(request(), messages=[ChatMessage.user(text)]))
    first, second, third = server.requests
    assert first.path == second.path == third.path
    assert dict(first.headers) == dict(third.headers)
    changed = dict(set(second.headers.items()) ^ set(first.headers.items()))
    assert changed.keys() == {"content-length"}
    assert second.body["messages"][-1]["content"].endswith("\u4e2d\U0001f600")


@pytest.mark.parametrize(
    "fault",
    [
        unauthorized(),
        overloaded(),
        rate_limited(retry_after=9.0),
        server_error(),
        overflow("openai"),
        unsupported("seed"),
        Fault(404, "no such model", body={"detail": "gone"}),
        cut(2),
    ],
)
async def test_later_requests_fail_with_the_errors_of_the_first(
    openai_bench: Bench, fault: Step
) -> None:
    errors = []
    for earlier in (0, 1):
        openai_bench.server.script(*[say("ok")] * earlier, fault)
        async with ModelFactory(RetryPolicy(1)) as factory:
            model = factory.model(openai_bench.settings())
            for _ in range(earlier):
                await collect(model, request())
            with pytest.raises(ModelError) as raised:
                await collect(model, request())
        errors.append(raised.value)
    first, later = errors
    assert vars(first) == vars(later)
    assert str(first) == str(later)


OLD, NEW = "max_tokens", "max_completion_tokens"


def limits_sent(bench: Bench) -> list[str]:
    return [name for one in bench.server.requests for name in (OLD, NEW) if name in one.body]


def refuses(name: str, *, structured: bool = True) -> Responder:
    """Returns a server that accepts only the other name; its error has structured fields or not."""

    def respond(asked: ModelCall) -> Step:
        if name not in asked.body:
            return say("ok")
        message = f"Unsupported parameter: '{name}' is not supported with this model."
        if structured:
            return Fault(400, message, "invalid_request_error", "unsupported_parameter", name)
        return Fault(422, message)

    return respond


@pytest.mark.parametrize("structured", [True, False])
async def test_other_name_of_the_limit_is_sent_when_one_is_refused(
    openai_bench: Bench, structured: bool
) -> None:
    openai_bench.server.respond(refuses(OLD, structured=structured))
    await openai_bench.ask(max_tokens=50)
    # The result is cached for other settings of the same model, too.
    await openai_bench.ask(max_tokens=70, temperature=0.1)
    assert limits_sent(openai_bench) == [OLD, NEW, NEW]
    assert [one.body[NEW] for one in openai_bench.server.requests[1:]] == [50, 70]


@pytest.mark.parametrize("model", ["o1", "o3-mini", "openai/o4-mini", "gpt-5", "gpt-5-mini"])
async def test_reasoning_models_get_the_new_name_of_the_limit(
    openai_bench: Bench, model: str
) -> None:
    openai_bench.server.script(say("ok"))
    await openai_bench.ask(model=model, max_tokens=50)
    assert limits_sent(openai_bench) == [NEW]


@pytest.mark.parametrize("model", ["gpt-4o", "gpt-4.1", "o1-proxied-by-an-old-server", "llama-3"])
async def test_old_servers_get_the_old_name_of_the_limit(openai_bench: Bench, model: str) -> None:
    openai_bench.server.respond(refuses(NEW, structured=False))
    _, reply = await openai_bench.ask(model=model, max_tokens=50)
    assert reply.text == "ok"
    assert limits_sent(openai_bench)[-1] == OLD


async def test_limit_that_is_wrong_under_both_names_is_an_error_about_the_value(
    openai_bench: Bench,
) -> None:
    def respond(asked: ModelCall) -> Step:
        name = OLD if OLD in asked.body else NEW
        return Fault(400, f"{name} is too large: 5000000.", "invalid_request_error", None, name)

    openai_bench.server.respond(respond)
    for _ in range(2):
        with pytest.raises(ModelError) as caught:
            await openai_bench.ask(max_tokens=5_000_000)
        assert caught.value.message == "max_tokens is too large: 5000000."
    assert limits_sent(openai_bench) == [OLD, NEW] * 2


async def test_refusals_of_requests_at_once_lead_to_the_same_name(openai_bench: Bench) -> None:
    openai_bench.server.respond(refuses(OLD))
    await asyncio.gather(*(openai_bench.ask(max_tokens=50) for _ in range(5)))
    await openai_bench.ask(max_tokens=50)
    assert limits_sent(openai_bench)[-1] == NEW


async def test_huge_ids_of_calls_are_replaced(openai_bench: Bench) -> None:
    openai_bench.server.script(Reply(calls=[Call("lookup", {"query": "x"}, id="i" * 5_000)]))
    _, reply = await openai_bench.ask()
    assert len(reply.tool_calls[0].id) < 50
