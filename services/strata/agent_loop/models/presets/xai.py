"""Preset for xAI. Most of its models refuse `reasoning_effort`; it is left out after that."""

from __future__ import annotations

from strata.agent_loop.domain.model.quirks import Quirks
from strata.agent_loop.models.presets.base import Preset

PRESET = Preset(
    name="xai",
    title="xAI",
    variables="XAI",
    base_url="https://api.x.ai/v1",
    quirks=Quirks(limit_name="max_completion_tokens"),
)
