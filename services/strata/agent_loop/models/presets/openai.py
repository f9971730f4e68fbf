"""Preset for OpenAI, or for a compatible server that is configured instead."""

from __future__ import annotations

from strata.agent_loop.models.known_models import KnownModel, rows
from strata.agent_loop.models.presets.base import Preset

KNOWN_MODELS: dict[str, KnownModel] = {
    **rows(1_050_000, 128_000, ["gpt-5.6-sol", "gpt-5.6-terra", "gpt-5.6-luna"]),
    **rows(1_050_000, 128_000, ["gpt-5.5", "gpt-5.4"]),
    **rows(400_000, 128_000, ["gpt-5.2", "gpt-5.1", "gpt-5", "gpt-5-mini", "gpt-5-nano"]),
    **rows(1_047_576, 32_768, ["gpt-4.1", "gpt-4.1-mini", "gpt-4.1-nano"]),
    **rows(200_000, 100_000, ["o3", "o4-mini"]),
    **rows(128_000, 16_384, ["gpt-4o", "gpt-4o-mini"]),
    **rows(128_000, 4_096, ["gpt-4-turbo"]),
    **rows(8_192, 8_192, ["gpt-4"]),
    **rows(16_385, 4_096, ["gpt-3.5-turbo"]),
}
"""Limits of OpenAI's models, with both of its APIs."""

PRESET = Preset(
    name="openai",
    title="OpenAI",
    variables="OPENAI",
    keyless=True,
    # The default if only a key is set.
    default_model="gpt-4.1-mini",
    known_models=KNOWN_MODELS,
)
