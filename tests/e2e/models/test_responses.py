"""OpenAI's Responses where they differ from other dialects: reasoning, refusals, endings."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from doubles.bench import LOOKUP, Bench, collect, request
from doubles.model_server import ModelServer
from doubles.script import Call, Fault, ModelCall, Reply, call, say
from strata.agent_loop.convert.messages import part_from_proto, part_to_proto
from strata.agent_loop.domain.model.chat import (
    ChatMessage,
    FinishReason,
    JsonReply,
    ModelRequest,
    ReasoningPart,
)
from strata.agent_loop.domain.model.errors import ModelError, ModelErrorKind
from strata.agent_loop.domain.run.journal import reply_from_json, reply_to_json
from strata.agent_loop.domain.tools import PromptSnapshot
from strata.agent_loop.models.factory import ModelFactory
from strata.agent_loop.models.streaming import RetryPolicy
from strata.agent_loop.settings import AgentLoopSettings

THOUGHTFUL = Reply(
    reasoning="Two things to look up.",
    text="Let me see.",
    calls=(Call("lookup", {"query": "a"}), Call("lookup", {"query": "b"})),
)


async def thoughtful(bench: Bench) -> list[ChatMessage]:
    """Returns a conversation with reasoning and two answered calls."""
    bench.server.script(THOUGHTFUL)
    _, reply = await bench.ask("Look.", parallel_tool_calls=True, reasoning_effort="low")
    returns = [ChatMessage.tool(one.id, "found") for one in reply.tool_calls]
    return [*request("Look.").messages, reply.to_message(), *returns]


async def test_reasoning_is_sent_back_encrypted_before_its_calls(
    responses_bench: Bench,
) -> None:
    messages = await thoughtful(responses_bench)
    responses_bench.server.script(say("Both are there."))
    await collect(responses_bench.model(), ModelRequest(messages, [LOOKUP]))
    assert (responses_bench.server.violations, responses_bench.server.refusals) == ([], [])
    first, second = (one.body for one in responses_bench.server.requests)
    assert first["reasoning"] == {"effort": "low", "summary": "auto"}
    assert (first["store"], first["include"]) == (False, ["reasoning.encrypted_content"])
    assert [item.get("type") or item["role"] for item in second["input"]] == [
        *("user", "reasoning", "assistant", "function_call", "function_call"),
        *("function_call_output", "function_call_output"),
    ]
    assert second["input"][1]["summary"][0]["text"] == "Two things to look up."
    assert not any("id" in item for item in second["input"])


async def test_reasoning_between_calls_keeps_its_place(responses_bench: Bench) -> None:
    messages = await thoughtful(responses_bench)
    reply = messages[2]
    [thought] = [part for part in reply.content if isinstance(part, ReasoningPart)]
    later = replace(thought, signature=thought.signature.replace(":0", ":1"))
    messages[2] = replace(reply, content=(thought, later))
    responses_bench.server.script(say("ok"))
    await collect(responses_bench.model(), ModelRequest(messages, [LOOKUP]))
    sent = responses_bench.server.requests[-1].body["input"]
    assert [item.get("type") for item in sent[1:5]] == ["reasoning", "function_call"] * 2


async def test_the_history_of_any_dialect_is_accepted_by_any_other(
    server: ModelServer, factory: ModelFactory
) -> None:
    for writer in ("openai", "anthropic", "openai_responses"):
        messages = await thoughtful(Bench(server, factory, writer))
        for reader in ("openai", "anthropic", "openai_responses"):
            server.script(say("ok"))
            await collect(
                Bench(server, factory, reader).model(max_reasoning_tokens=2000),
                ModelRequest(messages, [LOOKUP]),
            )
            assert (server.violations, server.refusals) == ([], []), (writer, reader)


async def test_reasoning_of_another_account_is_omitted_after_its_refusal(
    responses_bench: Bench,
) -> None:
    messages = await thoughtful(responses_bench)
    server = responses_bench.server
    server.script(say("Fresh."), say("Again."))
    for _ in range(2):
        await collect(
            responses_bench.model(api_key="of another account"), ModelRequest(messages, [LOOKUP])
        )
    kinds = [{item.get("type") for item in one.body["input"]} for one in server.requests]
    assert ["reasoning" in kind for kind in kinds] == [False, True, False, False]
    assert len(server.violations) == 1


async def test_parameters_that_a_model_refuses_are_omitted_from_then_on(
    responses_bench: Bench,
) -> None:
    server = responses_bench.server

    def plain(asked: ModelCall) -> Fault | None:
        if "include" in asked.body:
            text = "Encrypted content is not supported with this model."
            return Fault(400, text, "invalid_request_error", None, "include")
        if "temperature" in asked.body:
            text = "Unsupported parameter: 'temperature' is not supported with this model."
            code = "unsupported_parameter"
            return Fault(400, text, "invalid_request_error", code, "temperature")
        if "summary" in asked.body.get("reasoning", {}):
            text = "Your organization must be verified to generate reasoning summaries."
            code = "unsupported_value"
            return Fault(400, text, "invalid_request_error", code, "reasoning.summary")
        return None

    server.refuses = plain
    server.script(say("ok"), say("ok"))
    for _ in range(2):
        await responses_bench.ask(reasoning_effort="low")
    assert len(server.requests) == 5
    assert server.requests[-1].body["reasoning"] == {"effort": "low"}


async def test_a_needed_parameter_that_is_refused_is_an_error(responses_bench: Bench) -> None:
    code = "unsupported_parameter"
    fault = Fault(400, "Unsupported: 'tools'", "invalid_request_error", code, "tools")
    responses_bench.server.script(fault)
    with pytest.raises(ModelError) as caught:
        await responses_bench.ask()
    assert caught.value.kind is ModelErrorKind.BAD_REQUEST
    assert len(responses_bench.server.requests) == 1


@pytest.mark.parametrize(
    ("finish", "kind"),
    [("content_filter", ModelErrorKind.REFUSED), ("steered", ModelErrorKind.CUT_OFF)],
)
async def test_an_incomplete_reply_has_a_reason(
    server: ModelServer, finish: str, kind: ModelErrorKind
) -> None:
    server.respond(lambda _: say("half", finish=finish))
    async with ModelFactory(RetryPolicy(1)) as factory:
        with pytest.raises(ModelError) as caught:
            await Bench(server, factory, "openai_responses").ask()
    assert caught.value.kind is kind


async def test_a_limit_below_the_least_is_raised_to_it(responses_bench: Bench) -> None:
    responses_bench.server.script(call("lookup", {"query": "x"}))
    _, reply = await responses_bench.ask(max_tokens=3)
    assert reply.finish_reason is FinishReason.TOOL_CALLS
    assert responses_bench.server.requests[0].body["max_output_tokens"] == 16


async def test_usage_has_cached_and_reasoning_tokens(responses_bench: Bench) -> None:
    responses_bench.server.script(
        Reply(reasoning="thought " * 4, text="ok", usage=(100, 20), cached=64)
    )
    _, reply = await responses_bench.ask()
    counted = reply.usage
    assert (counted.prompt_tokens, counted.completion_tokens) == (100, 20)
    assert (counted.cached_input_tokens, counted.reasoning_tokens) == (64, 8)


async def test_the_schema_of_the_reply_is_sent_as_text_format(responses_bench: Bench) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    responses_bench.server.script(say('{"a": "b"}'))
    asked = replace(request(tools=()), response_format=JsonReply(schema, strict=False))
    await collect(responses_bench.model(), asked)
    form = responses_bench.server.requests[0].body["text"]["format"]
    assert (form["type"], form["name"], form["schema"]) == ("json_schema", "reply", schema)


async def test_reasoning_is_unchanged_after_conversion_to_proto_and_journal(
    responses_bench: Bench,
) -> None:
    responses_bench.server.script(THOUGHTFUL)
    _, whole = await responses_bench.ask("Look.", parallel_tool_calls=True)
    kept = [part_from_proto(part_to_proto(part)) for part in (*whole.content, *whole.tool_calls)]
    assert kept == [*whole.content, *whole.tool_calls]
    stored = reply_to_json(whole, PromptSnapshot())
    assert reply_from_json(json.loads(json.dumps(stored))) == whole


def test_the_service_is_configured_by_its_own_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_RESPONSES_API_KEY", "secret-key")
    settings = AgentLoopSettings().registry().resolve("openai_responses/gpt-5")
    assert (settings.endpoint_type, settings.api_key) == ("openai_responses", "secret-key")
