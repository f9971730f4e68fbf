"""Known services, from settings to replies, with a server that has their rules."""

from __future__ import annotations

import pytest

from doubles.bench import LOOKUP, collect, request
from doubles.model_server import ModelServer
from doubles.script import call, say
from strata.agent_loop.domain.model.chat import ChatMessage, ModelRequest, ModelSettings, ToolChoice
from strata.agent_loop.domain.model.errors import ModelError, ModelErrorKind
from strata.agent_loop.models.factory import ModelFactory
from strata.agent_loop.models.openai_api.chat_completions import open_client
from strata.agent_loop.models.presets.table import PRESETS
from strata.agent_loop.models.streaming import RetryPolicy
from strata.agent_loop.settings import AgentLoopSettings, EndpointSettings

SERVICES = [preset.name for preset in PRESETS.values() if preset.dialect == "openai"]


def settings_of(
    service: str, server: ModelServer, monkeypatch: pytest.MonkeyPatch, **more: object
) -> ModelSettings:
    """Returns the settings for the variables that users of the service set."""
    for preset in PRESETS.values():
        for name in ("API_KEY", "BASE_URL"):
            monkeypatch.delenv(f"{preset.variables}_{name}", raising=False)
    beginning = PRESETS[service].variables
    monkeypatch.setenv(f"{beginning}_API_KEY", "secret-key")
    monkeypatch.setenv(f"{beginning}_BASE_URL", server.openai_url)
    return AgentLoopSettings().registry().resolve(f"{service}/m", **more)


@pytest.mark.parametrize("service", SERVICES)
async def test_a_turn_with_a_forced_call_and_a_message_after_its_return_succeeds(
    service: str, factory: ModelFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ModelServer(service=service, api_keys=["secret-key"]) as server:
        model = factory.model(settings_of(service, server, monkeypatch, max_tokens=90))
        server.script(call("lookup", {"query": "x"}), say("Done."))
        messages = [ChatMessage.system("You are a test."), ChatMessage.user("Look.")]
        _, first = await collect(
            model, ModelRequest(messages, [LOOKUP], ToolChoice.named("lookup"))
        )
        messages += [
            first.to_message(),
            ChatMessage.tool(first.tool_calls[0].id, "found"),
            ChatMessage.user("Go on."),
            ChatMessage.system("It is late."),
        ]
        _, second = await collect(model, ModelRequest(messages, [LOOKUP]))
    assert [one.arguments for one in first.tool_calls] == ['{"query": "x"}']
    assert second.text == "Done."
    assert (server.violations, server.refusals) == ([], [])


async def test_parameters_that_a_model_of_xai_refuses_are_omitted_from_then_on(
    factory: ModelFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ModelServer(service="xai") as server:
        server.respond(lambda _: say("ok"))
        model = factory.model(settings_of("xai", server, monkeypatch, reasoning_effort="low"))
        for _ in range(2):
            await collect(model, request())
    assert ["reasoning_effort" in one.body for one in server.requests] == [True, False, False]


async def test_parameters_are_learnt_from_refusals_without_a_preset(factory: ModelFactory) -> None:
    async with ModelServer(service="mistral") as server:
        server.respond(lambda _: say("ok"))
        endpoint = EndpointSettings(name="e", base_url=server.openai_url, api_key="k").endpoint()
        settings = ModelSettings("e/gpt-5", endpoint.type, "gpt-5", endpoint.base_url, max_tokens=9)
        for _ in range(2):
            await collect(factory.model(settings), request())
    assert len(server.requests) == 4
    assert "stream_options" not in server.requests[-1].body
    assert server.requests[-1].body["max_tokens"] == 9


async def test_the_error_text_of_the_service_is_in_the_model_error() -> None:
    async with ModelServer(service="lmstudio") as server, ModelFactory(RetryPolicy(1)) as factory:
        settings = ModelSettings("e/m", "openai", "m", server.openai_url)
        asked = ModelRequest([ChatMessage.user("hi")], [LOOKUP], ToolChoice.named("lookup"))
        with pytest.raises(ModelError, match="Invalid tool_choice type") as caught:
            await collect(factory.model(settings), asked)
    assert caught.value.kind is ModelErrorKind.BAD_REQUEST


async def test_openai_account_names_are_sent_to_no_other_server(
    factory: ModelFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_ORG_ID", "org-of-ours")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "project-of-ours")
    async with ModelServer(service="groq") as server:
        server.respond(lambda _: say("ok"))
        await collect(factory.model(settings_of("groq", server, monkeypatch)), request())
    assert "of-ours" not in str(server.requests[0].headers)
    official = open_client("", "k").default_headers
    assert official["OpenAI-Organization"] == "org-of-ours"
