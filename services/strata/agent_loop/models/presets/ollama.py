"""Preset for Ollama. It has no parallel_tool_calls."""

from __future__ import annotations

from strata.agent_loop.domain.model.quirks import Quirks
from strata.agent_loop.models.presets.base import Preset

PRESET = Preset(
    name="ollama",
    title="Ollama",
    variables="OLLAMA",
    base_url="http://127.0.0.1:11434/v1",
    local=True,
    quirks=Quirks(
        limit_name="max_tokens",
        without=frozenset({"parallel_tool_calls"}),
        # The grammar of a JSON reply would prevent tool calls.
        json_with_tools=False,
    ),
)
