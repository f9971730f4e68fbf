"""The catalogue of built-in tools: the properties that several services need.

The tool service defines the description and the JSON schema of each tool, and runs it. A test
checks its definitions and executors against this catalogue.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from strata.shared.agent_types import AgentType
from strata.shared.tool_rules import ToolRuleType

SEND_MESSAGE = "send_message"
"""Sends a message to the user, in agent types whose plain text is not shown to the user."""

SENT_MESSAGE = "Sent message successfully."
"""The return of every call of ``send_message``, which the contract fixes."""

STORE_MEMORIES = "store_memories"
RETHINK_USER_MEMORY = "rethink_user_memory"
FINISH_RETHINKING_MEMORY = "finish_rethinking_memory"

MEMORIES_STORED = "Memories stored."
"""The return of every successful call of ``store_memories``. A rule of voice memory agents
recognises it."""

ASK_MEMBERS = "send_message_to_all_agents_in_group"
"""Sends a message to all members of a group; offered to the manager of a ``supervisor`` group."""

HAND_OVER = "hand_over"
"""Hands the conversation over to another member; offered to members of a ``swarm`` group."""


class ToolEffect(StrEnum):
    """The side effects of a tool; see ``ToolEffect`` in the protos."""

    UNDECLARED = "undeclared"
    READ_ONLY = "read_only"
    IDEMPOTENT = "idempotent"
    SIDE_EFFECT = "side_effect"

    @property
    def repeatable(self) -> bool:
        """Whether a call with an unknown outcome can be repeated without a second effect."""
        return self in (ToolEffect.READ_ONLY, ToolEffect.IDEMPOTENT)


@dataclass(frozen=True, slots=True)
class BuiltinTool:
    """A built-in tool.

    Attributes:
        name: The name that the model calls it by. No custom tool can have it.
        effect: Its side effects.
        built: Whether this release has the tool; the name is reserved in any case.
        keyed: The service that it calls applies its writes once per idempotency key.
        parallel: Calls of one reply may run at the same time.
        default_rule: Rule that ``include_base_tool_rules`` adds: EXIT_LOOP, CONTINUE_LOOP or None.
        exits_without_rule: A call ends the turn of every agent that has no EXIT_LOOP or
            CONTINUE_LOOP rule for the tool.
        agent_types: Types that get it by default without a memory agent (sleeptime).
        agent_types_with_sleeptime: Types that get it by default with a memory agent.
        with_folders: Every agent that has a folder is offered it, beside its own tools.
        calls_other_tools: Its code calls the agent's other tools (decision 0086).
        shows_history: It returns messages of recall. Recall does not index its calls and returns,
            or searches would find the results of earlier searches.
        text_argument: Its argument that clients show as the agent's text; empty for other tools.
        edits_block: Its argument ``label`` must be the label of a block that exists.
        only_in_groups: It is offered only in a run of the agent's group; it cannot be one of the
            agent's own tools.
    """

    name: str
    effect: ToolEffect
    built: bool = True
    keyed: bool = False
    parallel: bool = False
    default_rule: ToolRuleType | None = None
    exits_without_rule: bool = False
    agent_types: frozenset[AgentType] = frozenset()
    agent_types_with_sleeptime: frozenset[AgentType] = frozenset()
    with_folders: bool = False
    calls_other_tools: bool = False
    shows_history: bool = False
    text_argument: str = ""
    edits_block: bool = False
    only_in_groups: bool = False


_CONTINUE, _EXIT = ToolRuleType.CONTINUE_LOOP, ToolRuleType.EXIT_LOOP
_READS, _ONCE = ToolEffect.READ_ONLY, ToolEffect.IDEMPOTENT
_V1, _V2, _OLD = AgentType.LETTA_V1, AgentType.MEMGPT_V2, AgentType.MEMGPT
_VOICE = AgentType.VOICE_CONVO
# Memory agents have no memory agent themselves, so their tools are the same in both cases.
_SLEEP = frozenset({AgentType.SLEEPTIME})
_VOICE_SLEEP = frozenset({AgentType.VOICE_SLEEPTIME})
_CHAT = frozenset({_V1, _V2, _OLD})

_ENTRIES = (
    BuiltinTool(
        SEND_MESSAGE,
        _READS,
        keyed=True,
        default_rule=_EXIT,
        agent_types=frozenset({_V2, _OLD, _VOICE}),
        # Not letta_v1_agent, because it replies in plain text.
        agent_types_with_sleeptime=frozenset({_V2, _OLD, _VOICE}),
        text_argument="message",
    ),
    BuiltinTool(
        "conversation_search",
        _READS,
        keyed=True,
        parallel=True,
        default_rule=_CONTINUE,
        agent_types=_CHAT,
        agent_types_with_sleeptime=_CHAT,
        shows_history=True,
    ),
    # Not implemented; the name is reserved.
    BuiltinTool("conversation_search_date", _READS, built=False, shows_history=True),
    BuiltinTool(
        "memory_insert",
        _ONCE,
        keyed=True,
        default_rule=_CONTINUE,
        agent_types=frozenset({_V1, _V2}) | _SLEEP,
        agent_types_with_sleeptime=_SLEEP,
        edits_block=True,
    ),
    BuiltinTool(
        "memory_replace",
        _ONCE,
        keyed=True,
        default_rule=_CONTINUE,
        agent_types=frozenset({_V1, _V2}) | _SLEEP,
        agent_types_with_sleeptime=_SLEEP,
        edits_block=True,
    ),
    BuiltinTool(
        "memory_rethink",
        _ONCE,
        keyed=True,
        default_rule=_CONTINUE,
        agent_types=_SLEEP,
        agent_types_with_sleeptime=_SLEEP,
    ),
    BuiltinTool(
        "memory_finish_edits",
        _READS,
        keyed=True,
        default_rule=_EXIT,
        exits_without_rule=True,
        agent_types=_SLEEP,
        agent_types_with_sleeptime=_SLEEP,
    ),
    BuiltinTool(
        "core_memory_append",
        _ONCE,
        keyed=True,
        default_rule=_CONTINUE,
        agent_types=frozenset({_OLD}),
        edits_block=True,
    ),
    BuiltinTool(
        "core_memory_replace",
        _ONCE,
        keyed=True,
        default_rule=_CONTINUE,
        agent_types=frozenset({_OLD}),
        edits_block=True,
    ),
    BuiltinTool(
        "memory",
        _ONCE,
        keyed=True,
        default_rule=_CONTINUE,
        agent_types=frozenset({_OLD}),
    ),
    BuiltinTool(
        "memory_apply_patch",
        _ONCE,
        keyed=True,
        default_rule=_CONTINUE,
        agent_types=frozenset({_OLD}),
    ),
    # With these three an agent can reach all of its memory tiers, and the messages of a summary.
    BuiltinTool(
        "archival_memory_insert",
        _ONCE,
        keyed=True,
        default_rule=_CONTINUE,
        agent_types=_CHAT,
    ),
    BuiltinTool(
        "archival_memory_search",
        _READS,
        keyed=True,
        parallel=True,
        default_rule=_CONTINUE,
        agent_types=_CHAT,
        agent_types_with_sleeptime=_CHAT,
    ),
    BuiltinTool(
        "expand_summary",
        _READS,
        keyed=True,
        parallel=True,
        default_rule=_CONTINUE,
        agent_types=_CHAT,
        shows_history=True,
    ),
    BuiltinTool(
        "search_memory",
        _READS,
        keyed=True,
        parallel=True,
        default_rule=_CONTINUE,
        agent_types=frozenset({_VOICE}),
        agent_types_with_sleeptime=frozenset({_VOICE}),
        shows_history=True,
    ),
    BuiltinTool(
        STORE_MEMORIES,
        _ONCE,
        keyed=True,
        default_rule=_CONTINUE,
        agent_types=_VOICE_SLEEP,
        agent_types_with_sleeptime=_VOICE_SLEEP,
    ),
    BuiltinTool(
        RETHINK_USER_MEMORY,
        _ONCE,
        keyed=True,
        default_rule=_CONTINUE,
        agent_types=_VOICE_SLEEP,
        agent_types_with_sleeptime=_VOICE_SLEEP,
    ),
    BuiltinTool(
        FINISH_RETHINKING_MEMORY,
        _READS,
        keyed=True,
        default_rule=_EXIT,
        exits_without_rule=True,
        agent_types=_VOICE_SLEEP,
        agent_types_with_sleeptime=_VOICE_SLEEP,
    ),
    BuiltinTool("open_files", _ONCE, keyed=True, with_folders=True),
    BuiltinTool("grep_files", _READS, keyed=True, parallel=True, with_folders=True),
    BuiltinTool(
        "semantic_search_files",
        _READS,
        keyed=True,
        parallel=True,
        with_folders=True,
    ),
    BuiltinTool("web_search", _READS, parallel=True),
    BuiltinTool("fetch_webpage", _READS, parallel=True),
    BuiltinTool("current_time", _READS, parallel=True),
    # A call leaves no state behind, so it can be repeated.
    BuiltinTool("run_code", _READS, parallel=True),
    # The tools that it calls can have any effect.
    BuiltinTool(
        "run_code_with_tools",
        ToolEffect.SIDE_EFFECT,
        calls_other_tools=True,
    ),
    # The idempotency key of the call becomes the id of the run that it starts.
    BuiltinTool("send_message_to_agent_and_wait_for_reply", _ONCE, parallel=True),
    BuiltinTool("send_message_to_agents_matching_tags", _ONCE, parallel=True),
    BuiltinTool(
        "send_message_to_agent_async",
        _ONCE,
        parallel=True,
        default_rule=_EXIT,
    ),
    # Not parallel: each call starts one run per member of the group.
    BuiltinTool(ASK_MEMBERS, _ONCE, only_in_groups=True),
    # It has no effect by itself: the gateway reads the next speaker from the stored call.
    BuiltinTool(HAND_OVER, _READS, exits_without_rule=True, only_in_groups=True),
)

CATALOGUE: Mapping[str, BuiltinTool] = MappingProxyType({entry.name: entry for entry in _ENTRIES})
"""The built-in tools by name, in the order in which agents are offered them."""


def default_tools(agent_type: AgentType, *, sleeptime: bool = False) -> tuple[str, ...]:
    """Returns the tools that an agent of a type gets by default, in the order offered.

    Args:
        agent_type: The type.
        sleeptime: Whether a memory agent edits its memory (``enable_sleeptime``).
    """
    return tuple(
        entry.name
        for entry in _ENTRIES
        if agent_type in (entry.agent_types_with_sleeptime if sleeptime else entry.agent_types)
    )


def _names(entries: Iterable[BuiltinTool]) -> tuple[str, ...]:
    return tuple(entry.name for entry in entries)


FILE_TOOLS = _names(entry for entry in _ENTRIES if entry.with_folders)
"""Offered to every agent that has a folder, in addition to its tools."""

MAX_OFFERED_TOOLS = 128
"""Maximum number of tools that a model is offered: OpenAI's API refuses requests with more."""

MAX_AGENT_TOOLS = MAX_OFFERED_TOOLS - len(FILE_TOOLS) - 1
"""Maximum number of tools of an agent: the file tools and the tool of a group come on top."""

EXIT_TOOLS = frozenset(_names(entry for entry in _ENTRIES if entry.exits_without_rule))
"""Tools that end the turn unless the agent has another rule for them."""

CODE_TOOLS = frozenset(_names(entry for entry in _ENTRIES if entry.calls_other_tools))
"""Tools whose code calls the agent's other tools (decision 0086)."""

TEXT_TOOLS = frozenset(_names(entry for entry in _ENTRIES if entry.text_argument))
"""Tools whose calls are shown as text of the agent."""

BLOCK_EDITS = frozenset(_names(entry for entry in _ENTRIES if entry.edits_block))
"""Tools that edit a block that must exist."""

GROUP_TOOLS = frozenset(_names(entry for entry in _ENTRIES if entry.only_in_groups))
"""Tools that an agent is offered only in a run of its group."""

HISTORY_TOOLS = frozenset(_names(entry for entry in _ENTRIES if entry.shows_history))
"""Tools whose calls and returns recall leaves out of its index."""
