"""Quirks of chat templates, which local servers share.

The templates of Qwen refuse system messages after the first message; the templates of Mistral and
Gemma refuse two user messages in a row.
"""

from __future__ import annotations

from strata.agent_loop.domain.model.quirks import Quirks

TEMPLATES = Quirks(
    limit_name="max_tokens",
    system_first=True,
    joined_users=True,
    # The grammar of a JSON reply would prevent tool calls.
    json_with_tools=False,
)
