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
"""Types that edit the memory of other agents; their own memory has no such agent."""

LINE_NUMBERED_TYPES = frozenset({AgentType.SLEEPTIME, AgentType.MEMGPT_V2, AgentType.LETTA_V1})
"""Types whose memory blocks are shown with line numbers, which improve their edits."""

TYPES_WITHOUT_BLOCKS = frozenset({AgentType.REACT, AgentType.WORKFLOW})
"""Types whose prompt shows no memory blocks."""
