"""The instructions of the summarizer."""

from __future__ import annotations

from strata.agent_loop.prompts.library import system_prompt

SUMMARY_PROMPT = system_prompt("summary_system_prompt")
"""The instructions of agents without their own; ``{limit}`` stands for characters."""

SUMMARY_ACKNOWLEDGEMENT = (
    "Understood. I will read the conversation that follows and answer with its summary, and with"
    " nothing else."
)
"""What a summarizer has said before it is shown the messages, where an agent wants that."""


def summary_prompt(custom: str, limit: int) -> str:
    """Returns the instructions for a summary of at most `limit` characters.

    Args:
        custom: The agent's own instructions; used as they are.
        limit: Characters.
    """
    return custom or SUMMARY_PROMPT.replace("{limit}", str(limit))
