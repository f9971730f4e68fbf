"""Preset for vLLM."""

from __future__ import annotations

from dataclasses import replace

from strata.agent_loop.models.presets.base import Preset
from strata.agent_loop.models.presets.mistral import ORDER
from strata.agent_loop.models.presets.templates import TEMPLATES

PRESET = Preset(
    name="vllm",
    title="vLLM",
    variables="VLLM",
    base_url="http://127.0.0.1:8000/v1",
    local=True,
    quirks=TEMPLATES,
    quirks_of_models={"mistralai/": replace(ORDER, joined_users=True, json_with_tools=False)},
)
