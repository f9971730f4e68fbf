"""Which models the settings give, and what is said when there is none."""

from __future__ import annotations

import pytest

from strata.agent_loop.domain.agents import ModelConfig
from strata.agent_loop.models.domain import EndpointType
from strata.agent_loop.models.errors import ModelError, ModelErrorKind
from strata.agent_loop.models.factory import ModelFactory
from strata.agent_loop.models.registry import ModelEndpoint, ModelRegistry
from strata.agent_loop.providers import ModelProvider
from strata.agent_loop.settings import AgentLoopSettings
from strata.shared.errors import InvalidArgumentError

KEYS = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL")


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(f"STRATA_AGENT_LOOP_{name}", raising=False)
    return monkeypatch


def test_without_any_setting_there_is_no_model() -> None:
    registry = AgentLoopSettings().registry()
    assert list(registry.endpoints) == []
    assert registry.default_handle == ""


def test_keys_of_the_providers_are_enough(bare: pytest.MonkeyPatch) -> None:
    bare.setenv("ANTHROPIC_API_KEY", "key-a")
    registry = AgentLoopSettings().registry()
    assert [e.type for e in registry.endpoints] == [EndpointType.ANTHROPIC]
    assert registry.default_handle.startswith("anthropic/")

    bare.setenv("OPENAI_API_KEY", "key-o")
    registry = AgentLoopSettings().registry()
    assert [e.name for e in registry.endpoints] == ["openai", "anthropic"]
    assert registry.default_handle.startswith("openai/")
    assert "key-o" not in repr(AgentLoopSettings())


def test_own_variables_win_over_the_providers(bare: pytest.MonkeyPatch) -> None:
    bare.setenv("OPENAI_API_KEY", "theirs")
    bare.setenv("STRATA_AGENT_LOOP_OPENAI_API_KEY", "ours")
    bare.setenv("STRATA_AGENT_LOOP_OPENAI_BASE_URL", "http://127.0.0.1:11434/v1")
    (endpoint,) = AgentLoopSettings().registry().endpoints
    assert (endpoint.api_key, endpoint.base_url) == ("ours", "http://127.0.0.1:11434/v1")


def test_endpoints_are_read_as_a_list(bare: pytest.MonkeyPatch) -> None:
    bare.setenv("OPENAI_API_KEY", "key")
    bare.setenv(
        "STRATA_AGENT_LOOP_MODEL_ENDPOINTS",
        '[{"name": "local", "base_url": "http://x/v1", "models": ["m"], "structured_tools": true}]',
    )
    registry = AgentLoopSettings().registry()
    assert [e.name for e in registry.endpoints] == ["local", "openai"]
    assert registry.default_handle == "local/m"
    assert registry.resolve("local/m").structured_tools
    bare.setenv("STRATA_AGENT_LOOP_DEFAULT_MODEL", "openai/gpt-x")
    assert AgentLoopSettings().registry().default_handle == "openai/gpt-x"


async def test_without_a_model_the_person_is_told_what_to_do() -> None:
    async with ModelFactory() as factory:
        provider = ModelProvider(ModelRegistry([]), factory)
        with pytest.raises(ModelError) as raised:
            await provider.bind(ModelConfig())
        assert raised.value.kind is ModelErrorKind.NOT_CONFIGURED
        assert "OPENAI_API_KEY" in raised.value.message
        provider.check("anything/goes")


async def test_settings_of_an_agent_override_those_of_the_endpoint() -> None:
    endpoint = ModelEndpoint(
        "e", EndpointType.OPENAI, "http://x/v1", models=("m",), context_window=128_000
    )
    async with ModelFactory() as factory:
        provider = ModelProvider(ModelRegistry([endpoint]), factory)
        plain = (await provider.bind(ModelConfig())).settings
        assert (plain.context_window, plain.temperature, plain.max_tokens) == (32_000, 0.7, None)
        config = ModelConfig("e/m", 64_000, 100, 0.0, True, "low", 5, False)
        given = (await provider.bind(config)).settings
        assert (given.context_window, given.max_tokens, given.temperature) == (64_000, 100, 0.0)
        assert given.parallel_tool_calls
        with pytest.raises(InvalidArgumentError, match="e/m"):
            provider.check("e/other")
