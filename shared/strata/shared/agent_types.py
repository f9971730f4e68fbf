"""The kinds of agents by their wire names."""

from __future__ import annotations

from enum import StrEnum


class AgentType(StrEnum):
    """Kinds of agents, by their wire names."""

    LETTA_V1 = "letta_v1_agent"
    MEMGPT_V2 = "memgpt_v2_agent"
    MEMGPT = "memgpt_agent"
    SLEEPTIME = "sleeptime_agent"
    REACT = "react_agent"
    WORKFLOW = "workflow_agent"
    VOICE_CONVO = "voice_convo_agent"
    VOICE_SLEEPTIME = "voice_sleeptime_agent"


MEMORY_AGENT_TYPES = frozenset({AgentType.SLEEPTIME, AgentType.VOICE_SLEEPTIME})
"""Types that tend the memory of others; none tends theirs."""

LINE_NUMBERED_TYPES = frozenset({AgentType.SLEEPTIME, AgentType.MEMGPT_V2, AgentType.LETTA_V1})
"""Types whose memory is shown with line numbers, to models that do better with them."""

TYPES_WITHOUT_BLOCKS = frozenset({AgentType.REACT, AgentType.WORKFLOW})
"""Types whose prompt shows no memory blocks."""
