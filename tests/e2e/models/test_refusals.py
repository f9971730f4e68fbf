"""A setting that a model refused is omitted for the project and key, for a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from doubles.bench import Bench, collect, request
from doubles.script import Fault, ModelCall, say
from strata.agent_loop.domain.model.chat import JsonReply, ModelSettings, ToolChoice
from strata.agent_loop.domain.model.errors import ModelError
from strata.agent_loop.models import refused_parameters
from strata.agent_loop.models.refused_parameters import RefusalMemory, Refusals
from strata.shared import context
from strata.shared.context import Caller, RequestContext


def of_project(name: str) -> RequestContext:
    return RequestContext(caller=Caller("org-1", name, "key-1"))


def effort_of(body: dict[str, Any]) -> str | None:
    """Returns the effort of a request in any of the three protocols."""
    for group in ("reasoning", "output_config"):
        if "effort" in body.get(group, {}):
            return str(body[group]["effort"])
    return body.get("reasoning_effort")


def refuses_effort(call: ModelCall) -> Fault | None:
    """Returns a model that refuses the effort "minimal" with the error of its provider."""
    effort = effort_of(call.body)
    if effort is None or (effort != "minimal" and call.dialect != "anthropic"):
        return None
    if call.dialect == "anthropic":
        text = "This model does not support the effort parameter."
        return Fault(400, text, "invalid_request_error")
    name = "reasoning_effort" if call.dialect == "openai" else "reasoning.effort"
    text = f"Unsupported value: '{name}' does not support 'minimal' with this model."
    return Fault(400, text, "invalid_request_error", "unsupported_value", name)


async def test_a_refused_effort_is_omitted_for_the_project_and_key_only(bench: Bench) -> None:
    bench.server.refuses = refuses_effort
    bench.server.respond(lambda _: say("ok"))
    with context.use(of_project("project-a")):
        for _ in range(2):
            await bench.ask(reasoning_effort="minimal")
        assert len(bench.server.requests) == 3
        await bench.ask(reasoning_effort="minimal", api_key="another key")
        assert len(bench.server.requests) == 5
    with context.use(of_project("project-b")):
        await bench.ask(reasoning_effort="minimal")
    assert len(bench.server.requests) == 7


@pytest.mark.parametrize("dialect", ["openai", "openai_responses"])
async def test_another_effort_is_sent_after_one_was_refused(bench: Bench) -> None:
    bench.server.refuses = refuses_effort
    bench.server.respond(lambda _: say("ok"))
    await bench.ask(reasoning_effort="minimal")
    await bench.ask(reasoning_effort="high")
    assert [effort_of(call.body) for call in bench.server.requests] == ["minimal", None, "high"]


async def test_refused_effort_is_sent_again_after_an_hour(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.server.refuses = refuses_effort
    bench.server.respond(lambda _: say("ok"))
    await bench.ask(reasoning_effort="minimal")
    memories = [
        value
        for connection in bench.factory._connections.values()
        for value in vars(connection).values()
        if isinstance(value, RefusalMemory)
    ]
    real = memories[0]._clock
    for memory in memories:
        monkeypatch.setattr(memory, "_clock", lambda: real() + refused_parameters.LIFETIME_S)
    await bench.ask(reasoning_effort="minimal")
    assert len(bench.server.requests) == 4


@pytest.mark.parametrize(
    ("message", "left_out"),
    [
        ("adaptive thinking is not supported on this model", "thinking"),
        ("thinking.type: Input tag 'adaptive' does not match any of the expected", "thinking"),
        ('"thinking.type.adaptive" is not supported; use "output_config.effort".', "thinking"),
        ("output_config.effort: Input should be 'low' or 'medium'", "output_config"),
        ("output_config: Extra inputs are not permitted", ""),
    ],
)
async def test_anthropic_names_the_setting_in_its_text(
    anthropic_bench: Bench, message: str, left_out: str
) -> None:
    bench = anthropic_bench
    bench.server.script(Fault(400, message, "invalid_request_error"), say("ok"))
    if not left_out:
        with pytest.raises(ModelError, match="not permitted"):
            await bench.ask(model="claude-opus-5-5", reasoning_effort="high")
        return
    await bench.ask(model="claude-opus-5-5", reasoning_effort="high")
    sent = {"thinking", "output_config"}
    first, second = (call.body for call in bench.server.requests)
    assert (sent & first.keys(), sent & second.keys()) == (sent, sent - {left_out})


async def test_thinking_refused_for_a_forced_call_is_sent_with_others(
    anthropic_bench: Bench,
) -> None:
    bench = anthropic_bench

    def forced(call: ModelCall) -> Fault | None:
        if "thinking" in call.body and call.body["tool_choice"]["type"] != "auto":
            text = "Thinking may not be enabled when tool_choice forces tool use."
            return Fault(400, text, "invalid_request_error")
        return None

    bench.server.refuses = forced
    bench.server.respond(lambda _: say("ok"))
    model = bench.model(model="claude-opus-5-5", reasoning_effort="high")
    for choice in (ToolChoice.required(), ToolChoice.required(), ToolChoice()):
        await collect(model, replace(request(), tool_choice=choice))
    assert ["thinking" in call.body for call in bench.server.requests] == [True, False, False, True]


@pytest.mark.parametrize(
    ("choice", "words"),
    [(ToolChoice.required(), "one of your tools"), (ToolChoice.named("lookup"), "`lookup`")],
)
async def test_a_model_that_refuses_forced_calls_gets_an_instruction_instead(
    anthropic_bench: Bench, choice: ToolChoice, words: str
) -> None:
    bench = anthropic_bench

    def unforced(call: ModelCall) -> Fault | None:
        if call.body["tool_choice"]["type"] in ("any", "tool"):
            text = 'tool_choice: type "tool" and "any" are not supported for this model.'
            return Fault(400, text, "invalid_request_error")
        return None

    bench.server.refuses = unforced
    bench.server.respond(lambda _: say("ok"))
    model = bench.model(model="claude-opus-5-5", reasoning_effort="high")
    for chosen in (choice, choice, ToolChoice()):
        await collect(model, replace(request(), tool_choice=chosen))
    refused, *taken = (call.body for call in bench.server.requests)
    assert refused["tool_choice"]["type"] != "auto"
    assert [body["tool_choice"]["type"] for body in taken] == ["auto"] * 3
    assert [words in body["system"][-1]["text"] for body in taken] == [True, True, False]
    assert all(body["system"][0] == refused["system"][0] for body in taken)
    assert all("thinking" in body for body in taken)


async def test_a_schema_that_anthropic_refused_is_sent_for_other_projects_and_again_after_an_hour(
    anthropic_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = anthropic_bench

    def too_complex(call: ModelCall) -> Fault | None:
        if "format" in call.body.get("output_config", {}):
            text = "The compiled grammar is too large: simplify output_config.format."
            return Fault(400, text, "invalid_request_error")
        return None

    bench.server.refuses = too_complex
    bench.server.respond(lambda _: say("{}"))
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    asked = replace(request(), tools=(), response_format=JsonReply(schema, "empty"))

    async def ask(project: str) -> int:
        """Returns the number of requests."""
        before = len(bench.server.requests)
        with context.use(of_project(project)):
            await collect(bench.model(model="claude-opus-5-5"), asked)
        return len(bench.server.requests) - before

    assert [await ask(name) for name in ("project-a", "project-a", "project-b")] == [2, 1, 2]
    monkeypatch.setattr(refused_parameters, "LIFETIME_S", 0.0)
    # From now on cache entries expire at once.
    assert [await ask("project-c"), await ask("project-c")] == [2, 2]


async def test_malformed_request_is_not_repeated(anthropic_bench: Bench) -> None:
    text = "messages.1: `tool_use` ids were found without `tool_result` blocks"
    anthropic_bench.server.script(Fault(400, text, "invalid_request_error"))
    with pytest.raises(ModelError, match="tool_result"):
        await anthropic_bench.ask(reasoning_effort="high")
    assert len(anthropic_bench.server.requests) == 1


def test_learnt_refusals_are_bounded_and_kept_per_project() -> None:
    memory: RefusalMemory[Refusals] = RefusalMemory(lambda: 0.0)

    def learnt(project: str, model: str) -> Refusals:
        with context.use(of_project(project)):
            return memory.learnt(ModelSettings(f"e/{model}", "openai", model), Refusals)

    quiet = learnt("quiet", "m")
    first = learnt("busy", "m-0")
    for number in range(1, refused_parameters.MAX_PER_PROJECT + 1):
        learnt("busy", f"m-{number}")
    assert learnt("quiet", "m") is quiet
    assert learnt("busy", "m-0") is not first
    for number in range(refused_parameters.MAX_PROJECTS):
        learnt(f"other-{number}", "m")
    assert learnt("quiet", "m") is not quiet


def test_values_of_a_parameter_are_bounded() -> None:
    known = Refusals()
    for number in range(1000):
        assert known.add("temperature", number, only_value=True)
    assert known.covers("temperature", 999)
    assert len(known.values) <= refused_parameters._MAX_VALUES
