"""Preset for Together AI."""

from __future__ import annotations

from strata.agent_loop.models.presets.base import Preset

PRESET = Preset(
    name="together",
    title="Together AI",
    variables="TOGETHER",
    base_url="https://api.together.ai/v1",
)
