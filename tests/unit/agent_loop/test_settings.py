"""The models that settings configure, and the error without any."""

from __future__ import annotations

import pytest

from strata.agent_loop.domain.agent.agents import ModelConfig
from strata.agent_loop.domain.model.errors import ModelError, ModelErrorKind
from strata.agent_loop.domain.model.quirks import NO_QUIRKS
from strata.agent_loop.models.factory import ModelFactory
from strata.agent_loop.models.presets.base import Preset
from strata.agent_loop.models.presets.table import PRESETS
from strata.agent_loop.models.provider import ModelProvider
from strata.agent_loop.models.registry import ModelEndpoint, ModelRegistry
from strata.agent_loop.settings import AgentLoopSettings
from strata.protocol.errors import InvalidArgumentError

KEYS = tuple(
    f"{preset.variables}_{name}" for preset in PRESETS.values() for name in ("API_KEY", "BASE_URL")
)


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)
    for preset in PRESETS.values():
        for field in (preset.key_field, preset.base_url_field):
            monkeypatch.delenv(f"STRATA_AGENT_LOOP_{field.upper()}", raising=False)
    return monkeypatch


def test_without_settings_there_is_no_model() -> None:
    registry = AgentLoopSettings().registry()
    assert list(registry.endpoints) == []
    assert registry.default_handle == ""


def test_the_key_variables_of_the_providers_suffice(bare: pytest.MonkeyPatch) -> None:
    bare.setenv("ANTHROPIC_API_KEY", "key-a")
    registry = AgentLoopSettings().registry()
    assert [e.type for e in registry.endpoints] == ["anthropic"]
    assert registry.default_handle.startswith("anthropic/")

    bare.setenv("OPENAI_API_KEY", "key-o")
    registry = AgentLoopSettings().registry()
    assert [e.name for e in registry.endpoints] == ["openai", "anthropic"]
    assert registry.default_handle.startswith("openai/")
    assert "key-o" not in repr(AgentLoopSettings())


def test_variables_of_strata_override_those_of_the_providers(bare: pytest.MonkeyPatch) -> None:
    bare.setenv("OPENAI_API_KEY", "theirs")
    bare.setenv("STRATA_AGENT_LOOP_OPENAI_API_KEY", "ours")
    bare.setenv("STRATA_AGENT_LOOP_OPENAI_BASE_URL", "http://127.0.0.1:11434/v1")
    (endpoint,) = AgentLoopSettings().registry().endpoints
    assert (endpoint.api_key, endpoint.base_url) == ("ours", "http://127.0.0.1:11434/v1")


# The addresses of the others follow from further settings, see the tests of each.
PLAIN = [preset for preset in PRESETS.values() if preset.name not in ("bedrock", "vertex")]


@pytest.mark.parametrize("preset", PLAIN, ids=lambda preset: preset.name)
def test_a_hosted_service_needs_its_key_and_a_local_one_its_address(
    preset: Preset, bare: pytest.MonkeyPatch
) -> None:
    bare.setenv(f"{preset.variables}_API_KEY", "secret-of-it")
    endpoints = {endpoint.name: endpoint for endpoint in AgentLoopSettings().registry().endpoints}
    assert set(endpoints) == (set() if preset.local or preset.addressed else {preset.name})
    assert "secret-of-it" not in repr(AgentLoopSettings())
    if not (preset.local or preset.addressed):
        assert endpoints[preset.name].base_url == preset.base_url
    bare.setenv(f"{preset.variables}_BASE_URL", "http://x/v1")
    (endpoint,) = AgentLoopSettings().registry().endpoints
    assert (endpoint.base_url, endpoint.api_key) == ("http://x/v1", "secret-of-it")
    assert endpoint.preset == preset.name
    # A model of the service itself is not the default model of a replacement.
    assert AgentLoopSettings().registry().default_handle == ""


def test_a_preset_fills_the_unset_fields_of_an_endpoint(
    bare: pytest.MonkeyPatch,
) -> None:
    bare.setenv(
        "STRATA_AGENT_LOOP_MODEL_ENDPOINTS",
        '[{"name": "eu", "preset": "mistral"}, {"name": "c", "preset": "anthropic"},'
        ' {"name": "gpu", "preset": "vllm", "base_url": "http://x/v1"}, {"name": "plain"}]',
    )
    registry = AgentLoopSettings().registry()
    assert [(e.type, e.base_url) for e in registry.endpoints] == [
        ("openai", "https://api.mistral.ai/v1"),
        ("anthropic", ""),
        ("openai", "http://x/v1"),
        ("openai", ""),
    ]
    assert registry.default_handle == "eu/mistral-large-latest"
    assert registry.resolve("eu/m").quirks.call_id_length == 9
    assert registry.resolve("gpu/mistralai/m").quirks.call_id_length == 9
    assert registry.resolve("gpu/m").quirks.call_id_length == 0
    assert registry.resolve("plain/m").quirks == NO_QUIRKS


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


async def test_the_error_without_a_model_names_the_setting() -> None:
    async with ModelFactory() as factory:
        provider = ModelProvider(ModelRegistry([]), factory)
        with pytest.raises(ModelError) as raised:
            await provider.bind(ModelConfig())
        assert raised.value.kind is ModelErrorKind.NOT_CONFIGURED
        assert "OPENAI_API_KEY" in raised.value.message
        provider.check("anything/goes")


async def test_settings_of_an_agent_override_those_of_the_endpoint() -> None:
    endpoint = ModelEndpoint("e", "openai", "http://x/v1", models=("m",), context_window=128_000)
    async with ModelFactory() as factory:
        provider = ModelProvider(ModelRegistry([endpoint]), factory)
        plain = (await provider.bind(ModelConfig())).settings
        assert (plain.context_window, plain.temperature, plain.max_tokens) == (32_000, 0.7, None)
        config = ModelConfig("e/m", 64_000, 100, 0.0, True, "low", 5, False)
        bound_settings = (await provider.bind(config)).settings
        assert (
            bound_settings.context_window,
            bound_settings.max_tokens,
            bound_settings.temperature,
        ) == (64_000, 100, 0.0)
        assert bound_settings.parallel_tool_calls
        with pytest.raises(InvalidArgumentError, match="e/m"):
            provider.check("e/other")
