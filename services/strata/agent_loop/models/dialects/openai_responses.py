"""OpenAI's Responses API. Pure."""

from __future__ import annotations

from dataclasses import replace

from strata.agent_loop.models.dialects import openai

DIALECT = replace(
    openai.DIALECT, name="openai_responses", adapter="strata.agent_loop.models.openai_api.responses"
)
