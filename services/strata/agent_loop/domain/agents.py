"""Agents and conversations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from strata.agent_loop.domain.keys import SealedKey
from strata.agent_loop.domain.message_buffer import BufferLengths
from strata.agent_loop.domain.response_formats import TEXT_FORMAT, ResponseFormat
from strata.agent_loop.domain.tool_rules import ToolRule
from strata.shared.agent_types import AgentType
from strata.shared.errors import AbortedError
from strata.shared.ids import default_conversation_id

DEFAULT_TIMEZONE = "UTC"
# With 0.5 an agent forgets more than it must.
DEFAULT_EVICTED_SHARE = 0.3
DEFAULT_CLIP_CHARS = 2000


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
        fallback_models: Handles of the models that answer, in this order, where it cannot.
        enable_reasoner: False turns reasoning off; otherwise the two settings above decide.
        put_inner_thoughts_in_kwargs: The model writes its thoughts as an argument of each call;
            of the V2 loop only.
    """

    handle: str = ""
    context_window: int | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    parallel_tool_calls: bool = False
    reasoning_effort: str | None = None
    max_reasoning_tokens: int = 0
    structured_tools: bool | None = None
    fallback_models: tuple[str, ...] = ()
    enable_reasoner: bool | None = None
    put_inner_thoughts_in_kwargs: bool = False

    @property
    def handles(self) -> dict[str, str]:
        """The handles of the models, by their fields in a request."""
        fallbacks = enumerate(self.fallback_models)
        return {
            "model.handle": self.handle,
            **{f"model.fallback_models[{index}]": handle for index, handle in fallbacks},
        }


class CompactionMode(StrEnum):
    """What a compaction takes out of the window."""

    SLIDING_WINDOW = "sliding_window"
    """The oldest exchanges, as many as the settings say."""
    ALL = "all"
    """Everything before the exchange under way."""


@dataclass(frozen=True, slots=True)
class CompactionSettings:
    """How compaction works (docs/wire-format.md#compaction).

    Attributes:
        model: Handle of the summarizer; empty for the agent's model.
        prompt: What it is told; empty for our prompt.
        mode: Wire name of a `CompactionMode`; empty for ``sliding_window``.
        sliding_window_percentage: Share of the space for messages that is freed; 0 for the default.
        clip_chars: Most characters of a summary; 0 for the default.
        model_settings: How the summarizer is called, without a handle; None leaves it to the
            endpoint, and for the agent's model to the agent.
        prompt_acknowledgement: The summarizer is shown a reply in which it agrees to answer with
            the summary alone; None for the default, false.
    """

    model: str = ""
    prompt: str = ""
    mode: str = ""
    sliding_window_percentage: float = 0.0
    clip_chars: int = 0
    model_settings: ModelConfig | None = None
    prompt_acknowledgement: bool | None = None

    def over(self, others: CompactionSettings) -> CompactionSettings:
        """Returns these settings, and what they leave open as others have it."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        # An empty text and 0 stand for what is left open; False is a choice.
        chosen: dict[str, Any] = {
            name: value for name, value in values.items() if value or value is False
        }
        return replace(others, **chosen)

    @property
    def evicts(self) -> CompactionMode:
        """What is taken out."""
        return CompactionMode(self.mode or CompactionMode.SLIDING_WINDOW)

    @property
    def evicted_share(self) -> float:
        """Share of the space that is freed."""
        return self.sliding_window_percentage or DEFAULT_EVICTED_SHARE

    @property
    def limit_chars(self) -> int:
        """Most characters of a summary."""
        return self.clip_chars or DEFAULT_CLIP_CHARS


@dataclass(frozen=True, slots=True)
class MessagePackaging:
    """How the messages of the user are shown to the model; they are stored as sent.

    Attributes:
        pack_user_messages: Show the text as a JSON object with type, message and time;
            otherwise the text itself.
        location: Where the user is, in such objects; empty leaves it out.
    """

    pack_user_messages: bool = False
    location: str = ""


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent; the fields are those of the contract, but for `model_keys`.

    Attributes:
        max_files_open: Files that may be open at once; 0 derives the number from the context
            window, see `domain.file_limits`.
        per_file_view_window_char_limit: Characters of a file that are shown; 0 likewise.
        message_buffer_autoclear: Each run begins with an empty window.
        response_format: What its replies must be, unless a run asks for another format.
        memory_agent_id: The agent that tends its memory; empty for none.
        sleeptime_frequency: Its memory agent runs after the first turn of a conversation and
            then after every so many; 0 without a memory agent, and where `buffer` decides.
        tends_agent_id: Of a memory agent: whose memory it tends; empty for any other agent.
        buffer: Of a voice agent: how many messages its window holds; None for other types.
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
    max_files_open: int = 0
    per_file_view_window_char_limit: int = 0
    compaction: CompactionSettings = field(default_factory=CompactionSettings)
    packaging: MessagePackaging = field(default_factory=MessagePackaging)
    message_buffer_autoclear: bool = False
    response_format: ResponseFormat = TEXT_FORMAT
    memory_agent_id: str = ""
    sleeptime_frequency: int = 0
    tends_agent_id: str = ""
    buffer: BufferLengths | None = None
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
    """An agent with what only the service itself knows of it.

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
        enable_sleeptime: Whether it is to have a memory agent.
        memory_agent_id: Its new memory agent, whose creation ends with the change; empty to take
            the one that it has from it. An agent that has one keeps it.
        sleeptime_frequency: See `Agent`.
        max_buffer: The longest length of the buffer; 0 for the default.
        min_buffer: The shortest; 0 for the default.
        buffer: What follows from both and from the lengths that the agent has.
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
    packaging: MessagePackaging | None = None
    message_buffer_autoclear: bool | None = None
    response_format: ResponseFormat | None = None
    max_files_open: int | None = None
    per_file_view_window_char_limit: int | None = None
    enable_sleeptime: bool | None = None
    memory_agent_id: str | None = None
    sleeptime_frequency: int | None = None
    max_buffer: int | None = None
    min_buffer: int | None = None
    buffer: BufferLengths | None = None
    expected_revision: int = 0


def check_revision(agent: Agent, expected: int) -> None:
    """Raises if an agent is not at the expected revision; 0 expects nothing.

    Raises:
        AbortedError: It has changed since (``REVISION_MISMATCH``).
    """
    if expected not in (0, agent.revision):
        raise revision_mismatch("agent", agent.revision, expected)


def revision_mismatch(kind: str, current: int, expected: int) -> AbortedError:
    """Returns the error for a change of an older revision than the present one."""
    return AbortedError(
        f"The {kind} is at revision {current}.",
        metadata={"expected": expected, "current": current},
    )


def merge_tools(base: Sequence[str], extra: Sequence[str]) -> tuple[str, ...]:
    """Joins two lists of tool names, keeping the first of each name."""
    return tuple(dict.fromkeys((*base, *extra)))


def apply_patch(agent: Agent, patch: AgentPatch) -> Agent:
    """Returns the agent as the change leaves it; its revision rises by one."""
    changes = {name: getattr(patch, name) for name in _PATCHED if getattr(patch, name) is not None}
    metadata = {**agent.metadata, **patch.metadata}
    kept = {key: value for key, value in metadata.items() if value}
    return replace(agent, **changes, metadata=kept, revision=agent.revision + 1)


def changes_prompt(patch: AgentPatch) -> bool:
    """Says whether a change may change how much of a prompt is left for memory and files."""
    files = (patch.max_files_open, patch.per_file_view_window_char_limit)
    parts = (patch.system, patch.model, patch.tools, patch.tool_rules, *files)
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
    "packaging",
    "message_buffer_autoclear",
    "response_format",
    "max_files_open",
    "per_file_view_window_char_limit",
    "memory_agent_id",
    "sleeptime_frequency",
    "buffer",
)
