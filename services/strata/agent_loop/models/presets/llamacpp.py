"""Preset for llama.cpp's server, `llama-server`."""

from __future__ import annotations

from strata.agent_loop.models.presets.base import Preset
from strata.agent_loop.models.presets.templates import TEMPLATES

PRESET = Preset(
    name="llamacpp",
    title="llama.cpp",
    variables="LLAMA",
    base_url="http://127.0.0.1:8080/v1",
    local=True,
    quirks=TEMPLATES,
)
