"""Preset for Fireworks AI. It lowers a `max_tokens` above the context window."""

from __future__ import annotations

from strata.agent_loop.domain.model.quirks import Quirks
from strata.agent_loop.models.presets.base import Preset

PRESET = Preset(
    name="fireworks",
    title="Fireworks AI",
    variables="FIREWORKS",
    base_url="https://api.fireworks.ai/inference/v1",
    # The documented name for all models, also for open ones of OpenAI.
    quirks=Quirks(limit_name="max_tokens"),
)
