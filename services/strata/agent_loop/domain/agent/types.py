"""The table of agent types, one row per type (decision 0099 explains the rows)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from strata.agent_loop.domain.agent.tool_rules import ToolRule, base_rules
from strata.shared.agent_types import LINE_NUMBERED_TYPES, TYPES_WITHOUT_BLOCKS, AgentType
from strata.shared.tool_catalogue import (
    FINISH_RETHINKING_MEMORY,
    MEMORIES_STORED,
    RETHINK_USER_MEMORY,
    STORE_MEMORIES,
    default_tools,
)
from strata.shared.tool_rules import ToolRuleType


class LoopKind(StrEnum):
    """The loop version, which decides when a turn ends."""

    V2 = "v2"
    """Each step must call a tool; a heartbeat continues; ``send_message`` ends the turn."""
    V3 = "v3"
    """A reply without a call ends the turn."""


class Boot(StrEnum):
    """The first messages of a conversation, after the system message."""

    NONE = "none"
    CHAT = "chat"
    """A call of ``send_message`` and its return, if the agent has the tool; the login event."""


@dataclass(frozen=True, slots=True)
class TypeTraits:
    """Fixed properties of an agent type, and its defaults at creation.

    Attributes:
        type: The type.
        loop: Its loop version.
        prompt_key: Key of its system prompt.
        base_tool_rules: Default of ``include_base_tool_rules``.
        boot: The first messages of a new agent.
        autoclears: ``message_buffer_autoclear`` is always true.
        needs_sleeptime: It cannot be created without ``enable_sleeptime``.
        memory_agent: Type of its memory agent.
        own_rules: Rules that ``include_base_tool_rules`` adds to the rules of its tools.
    """

    type: AgentType
    loop: LoopKind
    prompt_key: str
    base_tool_rules: bool = True
    boot: Boot = Boot.CHAT
    autoclears: bool = False
    needs_sleeptime: bool = False
    memory_agent: AgentType = AgentType.SLEEPTIME
    own_rules: tuple[ToolRule, ...] = ()

    @property
    def buffered(self) -> bool:
        """Whether its memory agent runs when its window is full, instead of every few turns."""
        return self.memory_agent is AgentType.VOICE_SLEEPTIME

    def default_rules(
        self, tools: Sequence[str], own: Sequence[ToolRule] = ()
    ) -> tuple[ToolRule, ...]:
        """Returns the rules that ``include_base_tool_rules`` adds.

        Args:
            tools: Names of the agent's tools.
            own: The agent's own rules. Tools with an own rule get no rule of the type.
        """
        tools_with_rule = {rule.tool_name for rule in own}
        rules = (
            rule
            for rule in self.own_rules
            if rule.tool_name not in tools_with_rule
            and {rule.tool_name, *rule.children} <= set(tools)
        )
        return (*rules, *base_rules(tools, own))

    @property
    def sees_blocks(self) -> bool:
        """Whether its prompt shows its memory blocks."""
        return self.type not in TYPES_WITHOUT_BLOCKS

    @property
    def line_numbered(self) -> bool:
        """Whether its prompt has line numbers in memory blocks, if the provider is Anthropic."""
        return self.type in LINE_NUMBERED_TYPES

    @property
    def tools(self) -> tuple[str, ...]:
        """Its tools by default, in the order offered."""
        return default_tools(self.type)

    @property
    def tools_with_sleeptime(self) -> tuple[str, ...]:
        """Its tools by default if it has a memory agent (``enable_sleeptime``)."""
        return default_tools(self.type, sleeptime=True)


VOICE_MEMORY_PHASES = (
    ToolRule(ToolRuleType.RUN_FIRST, STORE_MEMORIES),
    # The second phase begins when the memories are stored; until then the tool is called again.
    ToolRule(
        ToolRuleType.CONDITIONAL,
        STORE_MEMORIES,
        child_output_mapping={MEMORIES_STORED: RETHINK_USER_MEMORY},
        default_child=STORE_MEMORIES,
    ),
    ToolRule(
        ToolRuleType.CONSTRAIN_CHILD_TOOLS,
        RETHINK_USER_MEMORY,
        children=(RETHINK_USER_MEMORY, FINISH_RETHINKING_MEMORY),
    ),
)
"""The two phases of a voice memory agent: archive first, then rewrite the block about the user."""

_ROWS = (
    TypeTraits(
        AgentType.LETTA_V1,
        LoopKind.V3,
        "letta_v1",
        base_tool_rules=False,
        boot=Boot.NONE,
    ),
    TypeTraits(AgentType.MEMGPT_V2, LoopKind.V2, "memgpt_v2_chat"),
    TypeTraits(AgentType.MEMGPT, LoopKind.V2, "memgpt_chat"),
    # No login event: users do not log in to a memory agent (decision 0099).
    TypeTraits(AgentType.SLEEPTIME, LoopKind.V3, "sleeptime_v2", boot=Boot.NONE),
    TypeTraits(AgentType.REACT, LoopKind.V2, "react"),
    TypeTraits(AgentType.WORKFLOW, LoopKind.V2, "workflow", autoclears=True),
    TypeTraits(
        AgentType.VOICE_CONVO,
        LoopKind.V2,
        "voice_chat",
        needs_sleeptime=True,
        memory_agent=AgentType.VOICE_SLEEPTIME,
    ),
    TypeTraits(
        AgentType.VOICE_SLEEPTIME,
        LoopKind.V2,
        "voice_sleeptime",
        boot=Boot.NONE,
        own_rules=VOICE_MEMORY_PHASES,
    ),
)

AGENT_TYPES: Mapping[AgentType, TypeTraits] = MappingProxyType({row.type: row for row in _ROWS})
"""Traits by type."""
