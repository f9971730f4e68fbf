"""What chat templates refuse that servers run over the messages. Local servers share it.

The templates of Qwen refuse a message of the system after the first one, those of Mistral and
Gemma refuse two messages of the user in a row.
"""

from __future__ import annotations

from strata.agent_loop.models.quirks import Quirks

TEMPLATES = Quirks(
    limit_name="max_tokens",
    system_first=True,
    joined_users=True,
    # The grammar of a reply would keep the model from calling any tool.
    json_with_tools=False,
)
