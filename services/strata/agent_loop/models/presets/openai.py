"""OpenAI, and any server that is set in its place."""

from __future__ import annotations

from strata.agent_loop.models.presets.base import Preset

PRESET = Preset(
    name="openai",
    title="OpenAI",
    variables="OPENAI",
    keyless=True,
    # Used where a key is set and nothing else. Anything newer is one setting away.
    default_model="gpt-4.1-mini",
)
