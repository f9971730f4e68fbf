"""The instructions of the summarizer."""

from __future__ import annotations

from strata.agent_loop.prompts.library import system_prompt

SUMMARY_PROMPT = system_prompt("summary_system_prompt")
"""The instructions of agents without their own; ``{limit}`` is the number of characters."""

SUMMARY_ACKNOWLEDGEMENT = (
    "Understood. I will read the conversation that follows and answer with its summary, and with"
    " nothing else."
)
"""A reply of the summarizer before the messages, if the agent's settings ask for it."""


def summary_prompt(custom: str, limit: int) -> str:
    """Returns the instructions for a summary of at most `limit` characters.

    Args:
        custom: The agent's own instructions, used unchanged; empty for the built-in ones.
        limit: Maximum number of characters of the summary.
    """
    return custom or SUMMARY_PROMPT.replace("{limit}", str(limit))
