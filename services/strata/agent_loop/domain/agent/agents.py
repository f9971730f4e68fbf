"""Agents and conversations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from strata.agent_loop.domain.agent.message_buffer import BufferLengths
from strata.agent_loop.domain.agent.response_formats import TEXT_FORMAT, ResponseFormat
from strata.agent_loop.domain.agent.tool_rules import ToolRule
from strata.agent_loop.domain.model.keys import SealedKey
from strata.protocol.errors import AbortedError, AlreadyExistsError
from strata.shared.agent_types import AgentType
from strata.shared.ids import default_conversation_id
from strata.shared.metadata_pairs import merge_metadata

DEFAULT_TIMEZONE = "UTC"
# With a larger share, such as 0.5, an agent loses more context than necessary.
DEFAULT_EVICTED_SHARE = 0.3
DEFAULT_CLIP_CHARS = 2000


class AgentState(StrEnum):
    """The life-cycle state of an agent; only active agents are visible."""

    CREATING = "creating"
    ACTIVE = "active"
    DELETING = "deleting"


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Model settings of an agent; None uses the default of the server or the endpoint.

    Attributes:
        handle: "endpoint/model"; empty for the server's current default.
        context_window: Size of the window in tokens.
        max_output_tokens: Maximum number of tokens of a reply.
        temperature: Sampling temperature.
        parallel_tool_calls: Whether one reply may ask for several calls.
        reasoning_effort: none, minimal, low, medium, high or xhigh.
        max_reasoning_tokens: Thinking budget; 0 turns thinking off.
        structured_tools: Tools as constrained JSON, for small local models.
        fallback_models: Handles of models that are asked, in this order, if it cannot answer.
        enable_reasoner: False turns reasoning off; otherwise the two reasoning settings decide.
        put_inner_thoughts_in_kwargs: The model writes its thoughts as an argument of each call
            (V2 loop only).
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
    """Which messages a compaction takes out of the window."""

    SLIDING_WINDOW = "sliding_window"
    """The oldest exchanges, until a share of the space is free."""
    ALL = "all"
    """All exchanges before the current one."""


@dataclass(frozen=True, slots=True)
class CompactionSettings:
    """Settings of compaction (docs/wire-format.md#compaction).

    Attributes:
        model: Handle of the summarizer; empty for the agent's model.
        prompt: System prompt of the summarizer; empty for the built-in one.
        mode: Wire name of a `CompactionMode`; empty for ``sliding_window``.
        sliding_window_percentage: Share of the space for messages that is freed; 0 for the default.
        clip_chars: Maximum number of characters of a summary; 0 for the default.
        model_settings: Model settings of the summarizer, without a handle; None for the defaults
            of the endpoint, or for the agent's settings if it is the agent's model.
        prompt_acknowledgement: Adds a reply in which the summarizer agrees to answer with the
            summary alone; None for the default, false.
    """

    model: str = ""
    prompt: str = ""
    mode: str = ""
    sliding_window_percentage: float = 0.0
    clip_chars: int = 0
    model_settings: ModelConfig | None = None
    prompt_acknowledgement: bool | None = None

    def over(self, others: CompactionSettings) -> CompactionSettings:
        """Returns these settings, with unset ones taken from `others`."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        # An empty text and 0 mean unset; False is a choice.
        chosen: dict[str, Any] = {
            name: value for name, value in values.items() if value or value is False
        }
        return replace(others, **chosen)

    @property
    def evicts(self) -> CompactionMode:
        """The mode in force."""
        return CompactionMode(self.mode or CompactionMode.SLIDING_WINDOW)

    @property
    def evicted_share(self) -> float:
        """Share of the space that is freed."""
        return self.sliding_window_percentage or DEFAULT_EVICTED_SHARE

    @property
    def limit_chars(self) -> int:
        """Maximum number of characters of a summary."""
        return self.clip_chars or DEFAULT_CLIP_CHARS


@dataclass(frozen=True, slots=True)
class MessagePackaging:
    """How user messages are shown to the model; they are stored as they were sent.

    Attributes:
        pack_user_messages: Show a JSON object with type, message and time instead of the text.
        location: Location of the user in these objects; empty leaves it out.
    """

    pack_user_messages: bool = False
    location: str = ""


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent. All fields but `model_keys` are fields of the proto.

    Attributes:
        max_files_open: Files that may be open at once; 0 derives the number from the context
            window, see `domain.agent.file_limits`.
        per_file_view_window_char_limit: Characters of a file that are shown; 0 derives it too.
        message_buffer_autoclear: Each run begins with an empty window.
        response_format: Format of its replies, unless a run requests another one.
        memory_agent_id: Id of its memory agent; empty for none.
        sleeptime_frequency: Its memory agent runs after the first turn of a conversation and
            then every this many turns; 0 without a memory agent, or if `buffer` decides.
        tends_agent_id: For a memory agent, the agent whose memory it maintains; otherwise empty.
        buffer: For a voice agent, how many messages its window holds; None for other types.
        external_id: Its identifier in the system of the client; empty for none. Not unique.
        model_keys: Sealed model keys of the agent and its project, if it was loaded for a turn.
            They are stored apart from the agent.
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
    external_id: str = ""
    revision: int = 1
    create_time: datetime | None = None
    update_time: datetime | None = None
    model_keys: tuple[SealedKey, ...] = field(default=(), repr=False)

    @property
    def default_conversation_id(self) -> str:
        """Id of the conversation that is used if a request names none."""
        return default_conversation_id(self.id)


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation of an agent.

    Attributes:
        external_id: Its identifier in the system of the client, unique for the agent; empty for
            none.
    """

    id: str
    agent_id: str
    title: str = ""
    forked_from_id: str = ""
    create_time: datetime | None = None
    external_id: str = ""


def external_id_taken(external_id: str) -> AlreadyExistsError:
    """Returns the error for an external id that another conversation of the agent has."""
    return AlreadyExistsError(
        f"The agent has a conversation with the external id {external_id!r}.",
        metadata={"external_id": external_id},
    )


@dataclass(frozen=True, slots=True)
class ListedAgent:
    """An entry of a list of agents by name; the fields mean the same as in `Agent`."""

    id: str
    name: str
    description: str
    tends_agent_id: str
    create_time: datetime


@dataclass(frozen=True, slots=True)
class AgentFilter:
    """Which agents of a project are listed.

    Attributes:
        tags: Only agents that have all of these.
        name_contains: Only agents whose name contains this text; case does not matter.
        agent_ids: Only agents with these ids; empty for all.
    """

    tags: tuple[str, ...] = ()
    name_contains: str = ""
    agent_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StoredAgent:
    """An agent with internal state of the service.

    Attributes:
        agent: The agent.
        state: Its life-cycle state.
        request_id: Id of the request that created it; may be empty.
        payload_hash: Digest of that request, to detect that its id is used for another one.
    """

    agent: Agent
    state: AgentState
    request_id: str
    payload_hash: str


@dataclass(frozen=True, slots=True)
class AgentPatch:
    """A change of an agent; None leaves a field unchanged.

    Attributes:
        metadata: Pairs to set; an empty value removes the key.
        enable_sleeptime: Whether the agent has a memory agent.
        memory_agent_id: Id of a new memory agent, which becomes active with the change; empty
            removes the memory agent. Ignored if the agent has a memory agent already.
        sleeptime_frequency: See `Agent`.
        max_buffer: The longest length of the buffer; 0 for the default.
        min_buffer: The shortest length of the buffer; 0 for the default.
        buffer: The lengths that result from both and from the agent's lengths.
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
    external_id: str | None = None
    expected_revision: int = 0


def check_revision(agent: Agent, expected: int) -> None:
    """Checks that an agent is at the expected revision; 0 allows any.

    Raises:
        AbortedError: REVISION_MISMATCH.
    """
    if expected not in (0, agent.revision):
        raise revision_mismatch("agent", agent.revision, expected)


def revision_mismatch(kind: str, current: int, expected: int) -> AbortedError:
    """Returns the error for a change that was based on another revision."""
    return AbortedError(
        f"The {kind} is at revision {current}.",
        metadata={"expected": expected, "current": current},
    )


def merge_tools(base: Sequence[str], extra: Sequence[str]) -> tuple[str, ...]:
    """Joins two lists of tool names, keeping the first of each name."""
    return tuple(dict.fromkeys((*base, *extra)))


def apply_patch(agent: Agent, patch: AgentPatch) -> Agent:
    """Returns the changed agent; its revision rises by one.

    Raises:
        InvalidArgumentError: The change adds metadata, and the agent would have too many pairs.
    """
    changes = {name: getattr(patch, name) for name in _PATCHED if getattr(patch, name) is not None}
    metadata = merge_metadata(agent.metadata, patch.metadata)
    return replace(agent, **changes, metadata=metadata, revision=agent.revision + 1)


def changes_prompt(patch: AgentPatch) -> bool:
    """Returns whether a change may affect the space for memory and files in the prompt."""
    files = (patch.max_files_open, patch.per_file_view_window_char_limit)
    parts = (patch.system, patch.model, patch.tools, patch.tool_rules, *files)
    return any(part is not None for part in parts)


# The fields that a change replaces; it adds to the metadata.
_PATCHED = tuple(
    field.name
    for field in fields(AgentPatch)
    if field.name in Agent.__dataclass_fields__ and field.name != "metadata"
)
