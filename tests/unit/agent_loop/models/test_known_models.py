"""The documented limits of models, and the defaults of unknown models."""

from __future__ import annotations

from datetime import date

import pytest

from strata.agent_loop.domain.agent.agents import ModelConfig
from strata.agent_loop.models.factory import ModelFactory
from strata.agent_loop.models.known_models import AS_OF
from strata.agent_loop.models.presets.table import known_model
from strata.agent_loop.models.provider import ModelProvider
from strata.agent_loop.models.registry import ModelEndpoint, ModelRegistry

OPENAI = ModelEndpoint("openai", "openai", preset="openai")
LOCAL = ModelEndpoint("mine", "openai", "http://127.0.0.1:1/v1")
SMALL = ModelEndpoint("small", "openai", "http://127.0.0.1:1/v1", context_window=8_000)


@pytest.mark.parametrize("model", ["gpt-4.1", "gpt-4.1-2025-04-14", "gpt-4.1-latest"])
def test_versions_of_a_model_have_the_limits_of_the_model(model: str) -> None:
    known = known_model("openai", model)
    assert known is not None
    assert (known.context_window, known.max_output_tokens) == (1_047_576, 32_768)


def test_model_has_the_limits_of_its_service_under_each_of_its_names() -> None:
    assert known_model("openai_responses", "gpt-5.5") == known_model("openai", "gpt-5.5")
    listed = known_model("gemini", "models/gemini-2.5-pro")
    assert listed is not None
    assert listed == known_model("gemini", "gemini-2.5-pro")


@pytest.mark.parametrize(
    ("preset", "model"),
    [("openai", "gpt-4.2"), ("openai", "gpt-4.1-abc"), ("vllm", "gpt-4.1"), ("", "gpt-4.1")],
)
def test_model_that_the_table_lacks_is_unknown(preset: str, model: str) -> None:
    assert known_model(preset, model) is None


def test_the_table_of_models_has_a_valid_date() -> None:
    assert date.fromisoformat(AS_OF) < date(2100, 1, 1)


async def bound(handle: str, *, as_fallback: bool = False, **config: int) -> tuple[int, int | None]:
    async with ModelFactory() as factory:
        provider = ModelProvider(ModelRegistry([OPENAI, LOCAL, SMALL]), factory)
        model = ModelConfig(handle=handle, **config)  # type: ignore[arg-type]
        settings = (await provider.bind(model, as_fallback=as_fallback)).settings
        return settings.context_window, settings.max_tokens


@pytest.mark.parametrize(
    ("handle", "window"),
    [
        ("openai/gpt-5", 32_000),
        ("openai/gpt-4", 8_192),
        ("openai/gpt-9", 32_000),
        ("mine/any", 32_000),
        ("small/any", 8_000),
    ],
)
async def test_agent_without_a_window_gets_the_default_or_that_of_the_model(
    handle: str, window: int
) -> None:
    assert (await bound(handle))[0] == window


@pytest.mark.parametrize(
    ("handle", "as_fallback", "window"),
    [
        ("openai/gpt-4", False, 200_000),
        ("openai/gpt-4", True, 8_192),
        ("openai/gpt-5", True, 200_000),
        ("small/any", True, 8_000),
        ("mine/any", True, 200_000),
    ],
)
async def test_the_configured_context_window_applies_to_the_own_model_and_limits_a_fallback(
    handle: str, as_fallback: bool, window: int
) -> None:
    assert (await bound(handle, as_fallback=as_fallback, context_window=200_000))[0] == window


async def test_output_limit_never_exceeds_the_models() -> None:
    assert (await bound("openai/gpt-4o", max_output_tokens=64_000))[1] == 16_384
    assert (await bound("openai/gpt-4o", max_output_tokens=500))[1] == 500
    assert (await bound("mine/any", max_output_tokens=64_000))[1] == 64_000
    assert (await bound("openai/gpt-4o"))[1] is None
