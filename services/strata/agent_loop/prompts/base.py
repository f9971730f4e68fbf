"""The base system prompts, by agent type."""

from __future__ import annotations

from strata.agent_loop.domain.agent.types import AGENT_TYPES
from strata.agent_loop.prompts.library import system_prompt
from strata.shared.agent_types import AgentType


def base_prompt(agent_type: AgentType) -> str:
    """Returns the base prompt of a type."""
    return system_prompt(AGENT_TYPES[agent_type].prompt_key)
