"""Preset for Google Gemini, with its endpoint for OpenAI's chat completions.

Calls are signed; from version 3 on, a call without a signature is refused. Tool schemas are limited
to a subset of OpenAPI's.
"""

from __future__ import annotations

from dataclasses import replace

from strata.agent_loop.domain.model.quirks import Quirks
from strata.agent_loop.models.known_models import rows
from strata.agent_loop.models.presets.base import Preset

# Accepted instead of a signature for calls of other models.
_UNSIGNED = "skip_thought_signature_validator"

_GEMINI = Quirks(
    limit_name="max_tokens",
    without=frozenset({"parallel_tool_calls"}),
    system_first=True,
    user_last=True,
    calls_follow_user=True,
    plain_schemas=True,
    # "Function calling with a response mime type: 'application/json' is unsupported".
    json_with_tools=False,
    call_signatures=True,
    unsigned_call=_UNSIGNED,
    thinking_config=True,
    efforts=(("xhigh", "high"), ("max", "high")),
)
# Signatures are optional for these models, and the replacement is not accepted.
_OPTIONAL = replace(_GEMINI, unsigned_call="")

PRESET = Preset(
    name="gemini",
    title="Google Gemini",
    variables="GEMINI",
    base_url="https://generativelanguage.googleapis.com/v1beta/openai",
    default_model="gemini-2.5-flash",
    quirks=_GEMINI,
    quirks_of_models={"gemini-2": _OPTIONAL, "models/gemini-2": _OPTIONAL},
    known_models=rows(
        1_048_576, 65_536, ["gemini-3.5-flash", "gemini-2.5-pro", "gemini-2.5-flash"]
    ),
)
