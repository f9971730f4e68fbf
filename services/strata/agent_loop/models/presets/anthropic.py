"""Preset for Anthropic."""

from __future__ import annotations

from strata.agent_loop.models.known_models import rows
from strata.agent_loop.models.presets.base import Preset

PRESET = Preset(
    name="anthropic",
    title="Anthropic",
    variables="ANTHROPIC",
    dialect="anthropic",
    default_model="claude-sonnet-4-5",
    known_models={
        **rows(1_000_000, 128_000, ["claude-fable-5-1", "claude-opus-5-5", "claude-sonnet-5-5"]),
        **rows(1_000_000, 128_000, ["claude-fable-5", "claude-opus-5", "claude-sonnet-5"]),
        **rows(1_000_000, 128_000, ["claude-opus-4-8", "claude-opus-4-6", "claude-sonnet-4-6"]),
        **rows(200_000, 64_000, ["claude-opus-4-5", "claude-sonnet-4-5", "claude-haiku-4-5"]),
        **rows(200_000, 32_000, ["claude-opus-4-1"]),
    },
)
