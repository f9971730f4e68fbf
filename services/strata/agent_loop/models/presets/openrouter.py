"""Preset for OpenRouter.

It forwards requests to other providers, whose rules for messages apply.
"""

from __future__ import annotations

from dataclasses import replace

from strata.agent_loop.domain.model.quirks import Quirks
from strata.agent_loop.models.presets.base import Preset
from strata.agent_loop.models.presets.mistral import ORDER

PRESET = Preset(
    name="openrouter",
    title="OpenRouter",
    variables="OPENROUTER",
    base_url="https://openrouter.ai/api/v1",
    quirks=Quirks(reasoning_object=True),
    quirks_of_models={"mistralai/": replace(ORDER, reasoning_object=True)},
)
