"""Gemini's compatible endpoint: signatures of calls, thoughts, schemas and errors."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from doubles.bench import LOOKUP, collect, request
from doubles.model_server import ModelServer
from doubles.script import Call, Fault, Reply, say
from strata.agent_loop.domain.model.chat import (
    ChatMessage,
    ChatModel,
    ModelRequest,
    ModelSettings,
    ToolCall,
    ToolSchema,
)
from strata.agent_loop.domain.model.errors import ModelError, ModelErrorKind
from strata.agent_loop.models.factory import ModelFactory
from strata.agent_loop.models.presets.table import quirks_of
from strata.agent_loop.models.streaming import RetryPolicy

TWO_CALLS = Reply(
    reasoning="Two things.",
    text="Let me see.",
    calls=(Call("lookup", {"query": "a"}), Call("lookup", {"query": "b"})),
)


@pytest.fixture
async def gemini() -> AsyncIterator[ModelServer]:
    async with ModelServer(service="gemini") as server:
        yield server


def model_at(
    server: ModelServer, factory: ModelFactory, model: str = "gemini-3-flash", **more: object
) -> ChatModel:
    settings = ModelSettings(
        f"gemini/{model}",
        "openai",
        model,
        server.openai_url,
        "secret-key",
        quirks=quirks_of("gemini", model),
        **more,  # type: ignore[arg-type]
    )
    return factory.model(settings)


@pytest.mark.parametrize("model", ["gemini-3-flash", "gemini-2.5-flash"])
async def test_calls_are_sent_back_with_their_signature(
    model: str, gemini: ModelServer, factory: ModelFactory
) -> None:
    asked = model_at(gemini, factory, model, parallel_tool_calls=True)
    gemini.script(TWO_CALLS, say("Done."))
    _, first = await collect(asked, request("Look."))
    assert (first.reasoning, first.text) == ("Two things.", "Let me see.")
    assert [one.arguments for one in first.tool_calls] == ['{"query": "a"}', '{"query": "b"}']
    returns = [ChatMessage.tool(one.id, "found") for one in first.tool_calls]
    messages = [*request("Look.").messages, first.to_message(), *returns]
    _, second = await collect(asked, ModelRequest(messages, [LOOKUP]))
    assert second.text == "Done."
    assert (gemini.violations, gemini.refusals) == ([], [])
    calls = gemini.requests[1].body["messages"][2]["tool_calls"]
    assert ["extra_content" in one for one in calls] == [True, False]


@pytest.mark.parametrize("model", ["gemini-3-flash", "gemini-2.5-flash"])
async def test_calls_written_by_other_models_are_accepted(
    model: str, gemini: ModelServer, factory: ModelFactory
) -> None:
    messages = [
        ChatMessage.system("You are a test."),
        ChatMessage.assistant("", [ToolCall("c1", "lookup", "{}")]),
        ChatMessage.tool("c1", "found"),
        ChatMessage.assistant("So."),
        ChatMessage.assistant("", [ToolCall("c2", "lookup", "{}")]),
        ChatMessage.tool("c2", "found"),
        ChatMessage.assistant("That is all."),
    ]
    gemini.script(say("ok"))
    await collect(model_at(gemini, factory, model), ModelRequest(messages, [LOOKUP]))
    assert (gemini.violations, gemini.refusals) == ([], [])
    assert "So." in str(gemini.requests[0].body)


async def test_the_history_of_gemini_is_accepted_by_other_dialects(
    gemini: ModelServer, server: ModelServer, factory: ModelFactory
) -> None:
    gemini.script(TWO_CALLS)
    _, first = await collect(model_at(gemini, factory, parallel_tool_calls=True), request("Look."))
    returns = [ChatMessage.tool(one.id, "found") for one in first.tool_calls]
    messages = [*request("Look.").messages, first.to_message(), *returns]
    for kind in ("openai", "anthropic", "openai_responses"):
        url = server.anthropic_url if kind == "anthropic" else server.openai_url
        server.script(say("ok"))
        settings = ModelSettings("t/m", kind, "m", url, "k", max_reasoning_tokens=2000)
        await collect(factory.model(settings), ModelRequest(messages, [LOOKUP]))
    assert server.violations == []
    assert "thought_signature" not in str([one.body for one in server.requests])


async def test_schemas_are_reduced_to_the_supported_subset(
    gemini: ModelServer, factory: ModelFactory
) -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "additionalProperties": False,
        "$defs": {"place": {"type": "object", "properties": {"city": {"const": "Rome"}}}},
        "properties": {
            "count": {"type": "integer", "exclusiveMinimum": 0, "multipleOf": 2},
            "where": {"$ref": "#/$defs/place"},
            "when": {"type": ["string", "null"], "format": "uri", "default": None},
            "level": {"type": "integer", "enum": [1, 2]},
            "which": {"oneOf": [{"type": "string"}, {"type": "null"}]},
            "tags": {"type": "array", "uniqueItems": True},
            "free": {"type": "object", "patternProperties": {"^x": {}}},
        },
        "required": ["count", "gone"],
    }
    tools = [ToolSchema("a", "A.", schema), ToolSchema("b", "B.", {"type": "object"})]
    gemini.script(say("ok"))
    await collect(model_at(gemini, factory), request(tools=tools))
    assert (gemini.violations, gemini.refusals) == ([], [])
    first, second = (one["function"] for one in gemini.requests[0].body["tools"])
    sent = first["parameters"]["properties"]
    assert sent["count"] == {"type": "integer", "minimum": 1}
    assert sent["where"]["properties"]["city"] == {"type": "string", "enum": ["Rome"]}
    assert sent["when"] == {"type": "string", "nullable": True}
    assert sent["which"] == {"type": "string", "nullable": True}
    assert sent["level"]["description"] == "One of: 1, 2."
    assert first["parameters"]["required"] == ["count"]
    assert "parameters" not in second


async def test_a_thinking_budget_is_sent_and_an_unknown_effort_becomes_high(
    gemini: ModelServer, factory: ModelFactory
) -> None:
    gemini.respond(lambda _: say("ok"))
    await collect(model_at(gemini, factory, max_reasoning_tokens=512), request())
    await collect(
        model_at(gemini, factory, max_reasoning_tokens=512, reasoning_effort="max"), request()
    )
    first, second = (one.body for one in gemini.requests)
    config = {"include_thoughts": True, "thinking_budget": 512}
    assert first["extra_body"] == {"google": {"thinking_config": config}}
    assert (second["reasoning_effort"], "extra_body" in second) == ("high", False)
    assert gemini.refusals == []


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("API key not valid. Please pass a valid API key.", ModelErrorKind.AUTHENTICATION),
        (
            "The input token count (1200000) exceeds the maximum number of tokens (1048576).",
            ModelErrorKind.CONTEXT_OVERFLOW,
        ),
        ("Request contains an invalid argument.", ModelErrorKind.BAD_REQUEST),
    ],
)
async def test_errors_in_a_list_are_read(
    message: str, kind: ModelErrorKind, gemini: ModelServer
) -> None:
    error = {"code": 400, "message": message, "status": "INVALID_ARGUMENT"}
    gemini.script(Fault(400, message, body=[{"error": error}]))
    async with ModelFactory(RetryPolicy(1)) as factory:
        with pytest.raises(ModelError) as caught:
            await collect(model_at(gemini, factory), request())
    assert (caught.value.kind, caught.value.message) == (kind, message)
