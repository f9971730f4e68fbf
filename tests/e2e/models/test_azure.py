"""Azure OpenAI, from settings to replies, with a server that has its addresses and keys."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from doubles.bench import LOOKUP, collect, request
from doubles.model_server import ModelServer
from doubles.script import Fault, call, say
from strata.agent_loop.domain.agent.agents import ModelConfig
from strata.agent_loop.domain.model.chat import ChatMessage, ModelRequest
from strata.agent_loop.domain.model.errors import ModelError, ModelErrorKind
from strata.agent_loop.models.factory import ModelFactory
from strata.agent_loop.models.provider import ModelProvider
from strata.agent_loop.models.registry import EndpointKey, ModelRegistry
from strata.agent_loop.models.streaming import RetryPolicy
from strata.agent_loop.settings import AgentLoopSettings, EndpointSettings

VARIABLES = ("AZURE_OPENAI_ENDPOINT", "AZURE_OPENAI_BASE_URL", "OPENAI_API_VERSION")


@pytest.fixture
async def azure() -> AsyncIterator[ModelServer]:
    async with ModelServer(
        service="azure", models=["chat-of-ours"], api_keys=["secret-key", "other-key"]
    ) as server:
        yield server


@pytest.fixture(autouse=True)
def _variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    # The organization at OpenAI must not be sent to Azure.
    monkeypatch.setenv("OPENAI_ORG_ID", "org-of-ours")


def registry_of(server: ModelServer, path: str, monkeypatch: pytest.MonkeyPatch) -> ModelRegistry:
    """Returns the registry for the variables that users of Azure set."""
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "secret-key")
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", server.anthropic_url + path)
    return AgentLoopSettings().registry()


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("", "/openai/deployments/chat-of-ours/chat/completions"),
        ("/?api-version=2025-01-01-preview", "/openai/deployments/chat-of-ours/chat/completions"),
        ("/openai/v1/", "/openai/v1/chat/completions"),
        (
            "/openai/deployments/chat-of-ours/chat/completions?api-version=2024-10-21",
            "/openai/deployments/chat-of-ours/chat/completions",
        ),
    ],
)
async def test_a_turn_with_a_call_succeeds_with_every_form_of_address(
    path: str,
    asked: str,
    azure: ModelServer,
    factory: ModelFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = registry_of(azure, path, monkeypatch).resolve("azure/chat-of-ours", max_tokens=90)
    model = factory.model(settings)
    azure.script(call("lookup", {"query": "x"}), say("Done."))
    messages = [ChatMessage.system("You are a test."), ChatMessage.user("Look.")]
    _, first = await collect(model, ModelRequest(messages, [LOOKUP]))
    messages += [first.to_message(), ChatMessage.tool(first.tool_calls[0].id, "found")]
    _, second = await collect(model, ModelRequest(messages, [LOOKUP]))
    assert second.text == "Done."
    assert (azure.violations, azure.refusals) == ([], [])
    assert azure.requests[0].body["max_completion_tokens"] == 90
    assert "org-of-ours" not in str(azure.requests[0].headers)
    assert asked in azure.targets[0]


async def test_the_api_version_is_read_from_its_variable(
    azure: ModelServer, factory: ModelFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_VERSION", "2025-04-01-preview")
    settings = registry_of(azure, "", monkeypatch).resolve("azure/chat-of-ours")
    azure.script(say("ok"))
    await collect(factory.model(settings), request())
    assert azure.targets == [
        "/openai/deployments/chat-of-ours/chat/completions?api-version=2025-04-01-preview"
    ]


async def test_a_key_without_an_address_configures_no_endpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "secret-key")
    assert AgentLoopSettings().registry().endpoint_of("azure/") is None


def test_an_endpoint_without_an_address_is_refused_with_an_example() -> None:
    with pytest.raises(ValueError, match=r"'mine'.*https://RESOURCE.openai.azure.com"):
        EndpointSettings(name="mine", preset="azure").endpoint()


async def test_a_key_of_a_project_replaces_that_of_the_settings(
    azure: ModelServer, factory: ModelFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = registry_of(azure, "", monkeypatch)
    registry = registry.with_keys({"azure": EndpointKey("other-key", "the project's key")})
    azure.script(say("ok"))
    await collect(factory.model(registry.resolve("azure/chat-of-ours")), request())
    assert azure.requests[0].headers["api-key"] == "other-key"


async def test_a_wrong_key_is_reported_when_models_are_listed(azure: ModelServer) -> None:
    url = azure.anthropic_url
    right = EndpointSettings(name="a", preset="azure", base_url=url, api_key="secret-key")
    wrong = EndpointSettings(name="b", preset="azure", base_url=url, api_key="wrong")
    async with ModelFactory() as factory:
        listed = await factory.list_models([right.endpoint(), wrong.endpoint()])
    assert [one.models for one in listed] == [(), ()]
    assert listed[0].error is None
    assert listed[1].error is not None
    assert listed[1].error.kind is ModelErrorKind.AUTHENTICATION


async def test_an_unlisted_deployment_can_be_used(azure: ModelServer) -> None:
    endpoint = EndpointSettings(name="a", preset="azure", base_url=azure.anthropic_url, api_key="k")
    async with ModelFactory() as factory:
        provider = ModelProvider(ModelRegistry([endpoint.endpoint()]), factory)
        await provider.check_listed("a/chat-of-ours")
        bound = await provider.bind(ModelConfig("a/chat-of-ours"))
    assert bound.settings.model == "chat-of-ours"


async def test_an_unknown_deployment_and_the_content_filter_are_distinguished(
    azure: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = registry_of(azure, "", monkeypatch)
    filtered = {
        "message": "The response was filtered due to the prompt triggering the content policy.",
        "code": "content_filter",
        "innererror": {"code": "ResponsibleAIPolicyViolation"},
    }
    azure.script(Fault(400, "filtered", body={"error": filtered}))
    kinds = []
    async with ModelFactory(RetryPolicy(1)) as factory:
        for name in ("not-there", "chat-of-ours"):
            with pytest.raises(ModelError) as caught:
                await collect(factory.model(registry.resolve(f"azure/{name}")), request())
            kinds.append(caught.value.kind)
    assert kinds == [ModelErrorKind.BAD_REQUEST, ModelErrorKind.REFUSED]
    assert "DeploymentNotFound" in azure.refusals[0]
