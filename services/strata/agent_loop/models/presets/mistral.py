"""Preset for Mistral.

Its API is strict about the order of messages, ids of calls and unknown parameters.
"""

from __future__ import annotations

from dataclasses import replace

from strata.agent_loop.domain.model.quirks import Quirks
from strata.agent_loop.models.presets.base import Preset

ORDER = Quirks(
    call_id_length=9,
    limit_name="max_tokens",
    system_first=True,
    reply_after_tool=True,
    user_last=True,
)
"""Quirks of Mistral's models at any service."""

PRESET = Preset(
    name="mistral",
    title="Mistral",
    variables="MISTRAL",
    base_url="https://api.mistral.ai/v1",
    default_model="mistral-large-latest",
    # The last event of a stream always has the usage.
    quirks=replace(ORDER, without=frozenset({"stream_options"})),
)
