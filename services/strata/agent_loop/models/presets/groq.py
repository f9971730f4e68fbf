"""Preset for Groq.

It accepts no response format together with streaming or tools, and Strata always streams.
"""

from __future__ import annotations

from strata.agent_loop.domain.model.quirks import Quirks, ReplyForm
from strata.agent_loop.models.presets.base import Preset

PRESET = Preset(
    name="groq",
    title="Groq",
    variables="GROQ",
    base_url="https://api.groq.com/openai/v1",
    quirks=Quirks(json_replies=ReplyForm.PROMPT),
)
