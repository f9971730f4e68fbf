"""All known services by name, best first. A new one is a file of its own and an entry here."""

from __future__ import annotations

from strata.agent_loop.models.presets import (
    anthropic,
    azure,
    bedrock,
    deepseek,
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
from strata.agent_loop.models.quirks import NO_QUIRKS, Quirks

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
        ValueError: There is none of the name; the message lists those that there are.
    """
    preset = PRESETS.get(name)
    if preset is None:
        raise ValueError(f"unknown preset {name!r}; known are {', '.join(PRESETS)}")
    return preset


def preset_of_product(title: str) -> str:
    """Returns the name of the local service that a product is; empty if it is not known."""
    local = (preset for preset in PRESETS.values() if preset.local)
    return next((preset.name for preset in local if preset.title == title), "")


def quirks_of(preset: str, model: str) -> Quirks:
    """Returns how a model of a service is called; without a service as at OpenAI."""
    return preset_of(preset).quirks_of(model) if preset else NO_QUIRKS
