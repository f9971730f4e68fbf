"""All known services by name, best first. A new one needs a file and an entry here."""

from __future__ import annotations

from strata.agent_loop.domain.model.quirks import NO_QUIRKS, Quirks
from strata.agent_loop.models.known_models import KnownModel, limits_of
from strata.agent_loop.models.presets import (
    anthropic,
    azure,
    bedrock,
    deepseek,
    fireworks,
    gemini,
    groq,
    llamacpp,
    lmstudio,
    mistral,
    ollama,
    openai,
    openai_responses,
    openrouter,
    together,
    vertex,
    vllm,
    xai,
)
from strata.agent_loop.models.presets.base import Preset

PRESETS: dict[str, Preset] = {
    module.PRESET.name: module.PRESET
    for module in (
        openai,
        openai_responses,
        anthropic,
        azure,
        bedrock,
        vertex,
        gemini,
        mistral,
        deepseek,
        xai,
        groq,
        together,
        fireworks,
        openrouter,
        ollama,
        lmstudio,
        llamacpp,
        vllm,
    )
}


def preset_of(name: str) -> Preset:
    """Returns a known service.

    Raises:
        ValueError: There is no service of that name; the message lists the known ones.
    """
    preset = PRESETS.get(name)
    if preset is None:
        raise ValueError(f"unknown preset {name!r}; known are {', '.join(PRESETS)}")
    return preset


def preset_of_product(title: str) -> str:
    """Returns the name of a local service by its product name; empty if unknown."""
    local = (preset for preset in PRESETS.values() if preset.local)
    return next((preset.name for preset in local if preset.title == title), "")


def quirks_of(preset: str, model: str) -> Quirks:
    """Returns the quirks of a model at a service; without a service, at OpenAI."""
    return preset_of(preset).quirks_of(model) if preset else NO_QUIRKS


def known_model(preset: str, model: str) -> KnownModel | None:
    """Returns the documented limits of a model at a service; None if none are known."""
    return limits_of(PRESETS[preset].known_models, model) if preset in PRESETS else None
