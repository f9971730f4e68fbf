"""OpenAI, and compatible servers that are configured instead."""

from __future__ import annotations

from strata.agent_loop.models.presets.base import Preset

PRESET = Preset(
    name="openai",
    title="OpenAI",
    variables="OPENAI",
    keyless=True,
    # The default if only a key is set.
    default_model="gpt-4.1-mini",
)
