"""Agents and conversations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

from strata.agent_loop.domain.keys import SealedKey
from strata.agent_loop.domain.tool_rules import ToolRule
from strata.shared.errors import AbortedError

DEFAULT_MAX_FILES_OPEN = 5
DEFAULT_FILE_VIEW_CHARS = 50_000
DEFAULT_TIMEZONE = "UTC"
# As observed (§10); blueprint §16.1 has 0.5, under which an agent forgets more than it must.
DEFAULT_EVICTED_SHARE = 0.3
DEFAULT_CLIP_CHARS = 2000


class AgentType(StrEnum):
    """Kinds of agents, by their wire names (blueprint §4.2.1)."""

    LETTA_V1 = "letta_v1_agent"
    MEMGPT_V2 = "memgpt_v2_agent"
    MEMGPT = "memgpt_agent"
    SLEEPTIME = "sleeptime_agent"
    REACT = "react_agent"
    WORKFLOW = "workflow_agent"
    VOICE_CONVO = "voice_convo_agent"
    VOICE_SLEEPTIME = "voice_sleeptime_agent"


# Blueprint §0.3.3: these see numbered lines, and only where the provider is Anthropic.
LINE_NUMBERED_TYPES = frozenset({AgentType.SLEEPTIME, AgentType.MEMGPT_V2, AgentType.LETTA_V1})


class AgentState(StrEnum):
    """Where an agent is in its life; only active ones can be seen."""

    CREATING = "creating"
    ACTIVE = "active"
    DELETING = "deleting"


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """How an agent's model is called; None leaves a value to the server and the endpoint.

    Attributes:
        handle: "endpoint/model"; empty for the server's default of the moment.
        context_window: Tokens.
        max_output_tokens: Tokens of a reply.
        temperature: Sampling temperature.
        parallel_tool_calls: Whether one reply may ask for several calls.
        reasoning_effort: none, minimal, low, medium, high or xhigh.
        max_reasoning_tokens: Thinking budget; 0 turns thinking off.
        structured_tools: Tools as constrained JSON, for small local models.
    """

    handle: str = ""
    context_window: int | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    parallel_tool_calls: bool = False
    reasoning_effort: str | None = None
    max_reasoning_tokens: int = 0
    structured_tools: bool | None = None


class CompactionMode(StrEnum):
    """What a compaction takes out of the window."""

    SLIDING_WINDOW = "sliding_window"
    """The oldest exchanges, as many as the settings say."""
    ALL = "all"
    """Everything before the exchange under way."""


@dataclass(frozen=True, slots=True)
class CompactionSettings:
    """How compaction works (blueprint §16.1).

    Attributes:
        model: Handle of the summarizer; empty for the agent's model.
        prompt: What it is told; empty for our prompt.
        mode: Wire name of a `CompactionMode`; empty for ``sliding_window``.
        sliding_window_percentage: Share of the room for messages that is freed; 0 for the default.
        clip_chars: Most characters of a summary; 0 for the default.
    """

    model: str = ""
    prompt: str = ""
    mode: str = ""
    sliding_window_percentage: float = 0.0
    clip_chars: int = 0

    def over(self, others: CompactionSettings) -> CompactionSettings:
        """Returns these settings, and what they leave open as others have it."""
        names = ("model", "prompt", "mode", "sliding_window_percentage", "clip_chars")
        given = {name: getattr(self, name) for name in names if getattr(self, name)}
        return replace(others, **given)

    @property
    def evicts(self) -> CompactionMode:
        """What is taken out."""
        return CompactionMode(self.mode or CompactionMode.SLIDING_WINDOW)

    @property
    def evicted_share(self) -> float:
        """Share of the room that is freed."""
        return self.sliding_window_percentage or DEFAULT_EVICTED_SHARE

    @property
    def limit_chars(self) -> int:
        """Most characters of a summary."""
        return self.clip_chars or DEFAULT_CLIP_CHARS


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent; the fields are those of the contract, but for `model_keys`.

    Attributes:
        model_keys: Its own keys for models and its project's, sealed, where it was loaded for a
            turn. They are no part of it and are stored elsewhere.
    """

    id: str
    name: str
    type: AgentType
    system: str
    description: str = ""
    model: ModelConfig = field(default_factory=ModelConfig)
    tools: tuple[str, ...] = ()
    tool_rules: tuple[ToolRule, ...] = ()
    tags: tuple[str, ...] = ()
    timezone: str = DEFAULT_TIMEZONE
    metadata: Mapping[str, str] = field(default_factory=dict)
    max_files_open: int = DEFAULT_MAX_FILES_OPEN
    per_file_view_window_char_limit: int = DEFAULT_FILE_VIEW_CHARS
    compaction: CompactionSettings = field(default_factory=CompactionSettings)
    revision: int = 1
    create_time: datetime | None = None
    update_time: datetime | None = None
    model_keys: tuple[SealedKey, ...] = field(default=(), repr=False)

    @property
    def default_conversation_id(self) -> str:
        """The conversation that is used when none is named."""
        return default_conversation_id(self.id)


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation of an agent."""

    id: str
    agent_id: str
    title: str = ""
    forked_from_id: str = ""
    create_time: datetime | None = None


@dataclass(frozen=True, slots=True)
class StoredAgent:
    """An agent with what only the room itself knows of it.

    Attributes:
        agent: The agent.
        state: Where it is in its life.
        request_id: The request that created it; may be empty.
        payload_hash: Digest of that request, so that a reuse for something else is noticed.
    """

    agent: Agent
    state: AgentState
    request_id: str
    payload_hash: str


@dataclass(frozen=True, slots=True)
class AgentPatch:
    """A change of an agent; None leaves a field as it is.

    Attributes:
        metadata: Pairs to set; an empty value removes the key.
        expected_revision: Fail if the agent is not at this revision; 0 means any.
    """

    agent_id: str
    name: str | None = None
    description: str | None = None
    system: str | None = None
    model: ModelConfig | None = None
    tools: tuple[str, ...] | None = None
    tool_rules: tuple[ToolRule, ...] | None = None
    tags: tuple[str, ...] | None = None
    timezone: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    compaction: CompactionSettings | None = None
    max_files_open: int | None = None
    per_file_view_window_char_limit: int | None = None
    expected_revision: int = 0


def check_revision(agent: Agent, expected: int) -> None:
    """Raises if an agent is not at the expected revision; 0 expects nothing.

    Raises:
        AbortedError: It has changed since (``REVISION_MISMATCH``).
    """
    if expected not in (0, agent.revision):
        raise AbortedError(
            f"The agent is at revision {agent.revision}.",
            metadata={"expected": expected, "current": agent.revision},
        )


def default_conversation_id(agent_id: str) -> str:
    """Returns the id of an agent's default conversation; no lookup is needed to know it."""
    return "conversation-" + agent_id.removeprefix("agent-")


# Blueprint §4.2.1 and observed §5 give the first three. Archival memory was in no default set
# there, so that an agent could not reach one of its own tiers unless told; ours has it, and a
# way to what a summary stands for.
_DEFAULT_TOOLS: Mapping[AgentType, Sequence[str]] = {
    AgentType.LETTA_V1: (
        "conversation_search",
        "memory_insert",
        "memory_replace",
        "archival_memory_insert",
        "archival_memory_search",
        "expand_summary",
    ),
}

BUILT_TYPES = frozenset(_DEFAULT_TOOLS)
"""The types whose loop this release can run."""


def default_tools(agent_type: AgentType) -> tuple[str, ...]:
    """Returns the tools that an agent of the type starts with, in the order offered.

    For ``letta_v1_agent``: ``conversation_search``, ``memory_insert``, ``memory_replace`` as in
    the specification, and ``archival_memory_insert``, ``archival_memory_search`` and
    ``expand_summary``, which are Strata's addition.
    """
    return tuple(_DEFAULT_TOOLS.get(agent_type, ()))


def merge_tools(base: Sequence[str], extra: Sequence[str]) -> tuple[str, ...]:
    """Joins two lists of tool names, keeping the first of each name."""
    return tuple(dict.fromkeys((*base, *extra)))


def apply_patch(agent: Agent, patch: AgentPatch) -> Agent:
    """Returns the agent as the change leaves it; its revision rises by one."""
    given = {name: getattr(patch, name) for name in _PATCHED if getattr(patch, name) is not None}
    metadata = {**agent.metadata, **patch.metadata}
    kept = {key: value for key, value in metadata.items() if value}
    return replace(agent, **given, metadata=kept, revision=agent.revision + 1)


def changes_prompt(patch: AgentPatch) -> bool:
    """Says whether a change may change how much of a prompt is left for memory."""
    parts = (patch.system, patch.model, patch.tools, patch.tool_rules)
    return any(part is not None for part in parts)


_PATCHED = (
    "name",
    "description",
    "system",
    "model",
    "tools",
    "tool_rules",
    "tags",
    "timezone",
    "compaction",
    "max_files_open",
    "per_file_view_window_char_limit",
)
