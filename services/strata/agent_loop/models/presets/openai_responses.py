"""Preset for OpenAI's Responses API, which keeps the reasoning of a model from step to step."""

from __future__ import annotations

from strata.agent_loop.models.presets.base import Preset
from strata.agent_loop.models.presets.openai import KNOWN_MODELS

PRESET = Preset(
    name="openai_responses",
    title="OpenAI Responses",
    variables="OPENAI_RESPONSES",
    dialect="openai_responses",
    keyless=True,
    default_model="gpt-5-mini",
    known_models=KNOWN_MODELS,
)
