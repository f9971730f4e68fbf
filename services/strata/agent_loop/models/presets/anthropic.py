"""Anthropic."""

from __future__ import annotations

from strata.agent_loop.models.presets.base import Preset

PRESET = Preset(
    name="anthropic",
    title="Anthropic",
    variables="ANTHROPIC",
    dialect="anthropic",
    default_model="claude-sonnet-4-5",
)
