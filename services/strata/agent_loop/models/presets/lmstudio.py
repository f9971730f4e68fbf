"""Preset for LM Studio.

`tool_choice` accepts no tool name, and some models need a user message before the first call.
"""

from __future__ import annotations

from dataclasses import replace

from strata.agent_loop.models.presets.base import Preset
from strata.agent_loop.models.presets.templates import TEMPLATES

PRESET = Preset(
    name="lmstudio",
    title="LM Studio",
    variables="LMSTUDIO",
    base_url="http://127.0.0.1:1234/v1",
    local=True,
    quirks=replace(TEMPLATES, names_tools=False, user_before_calls=True),
)
