"""Groq. It refuses fields that it does not know, and Strata sends none of them."""

from __future__ import annotations

from strata.agent_loop.models.presets.base import Preset

PRESET = Preset(
    name="groq",
    title="Groq",
    variables="GROQ",
    base_url="https://api.groq.com/openai/v1",
)
