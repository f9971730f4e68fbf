"""Tools as the loop needs to know them, and what their calls give."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from strata.agent_loop.domain.groups import GroupMember
from strata.agent_loop.domain.messages import Provenance, ToolReturn
from strata.agent_loop.models.domain import ToolCall, ToolSchema
from strata.shared.server_tools import server_of
from strata.shared.tool_catalogue import CODE_TOOLS, FILE_TOOLS, ToolEffect
from strata.shared.tool_returns import FUNCTION_RETURN_CHAR_LIMIT


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool of an agent.

    Attributes:
        schema: What the model is offered.
        effect: What it does to the world.
        keyed: It is one of the tiers' own tools, whose writes are done once per idempotency key.
        requires_approval: Every call waits for a person.
        version: Names exactly this definition.
        returns_from: The untrusted label of what it returns; None if strangers do not write it.
        by_client: The client runs it: every call waits for its answer.
        return_char_limit: Most characters of a return that the model is shown.
    """

    schema: ToolSchema
    effect: ToolEffect = ToolEffect.UNDECLARED
    keyed: bool = False
    requires_approval: bool = False
    version: str = ""
    returns_from: Provenance | None = None
    by_client: bool = False
    return_char_limit: int = FUNCTION_RETURN_CHAR_LIMIT

    @property
    def name(self) -> str:
        """The name that the model calls it by."""
        return self.schema.name

    @property
    def replay_effect(self) -> ToolEffect:
        """What a repeated call under the same idempotency key does to the world."""
        if self.keyed and self.effect is not ToolEffect.READ_ONLY:
            return ToolEffect.IDEMPOTENT
        return self.effect


@dataclass(frozen=True, slots=True)
class ToolSet:
    """An agent's tools, in the order in which the model is offered them."""

    tools: tuple[Tool, ...]

    def find(self, name: str) -> Tool | None:
        """The tool of that name, if the agent has it."""
        return next((tool for tool in self.tools if tool.name == name), None)

    def only(self, names: Collection[str]) -> ToolSet:
        """The tools of these names."""
        kept = tuple(tool for tool in self.tools if tool.name in names)
        return self if len(kept) == len(self.tools) else ToolSet(kept)

    def offered(self, own: Collection[str], *, folders: bool) -> ToolSet:
        """What an agent with these tools of its own is offered, with or without folders.

        The tools of a whole MCP server are its own under the name of the server.
        """
        if not any(server_of(name) for name in own):
            return self.only({*own, *FILE_TOOLS} if folders else own)
        brought = set() if folders else {*FILE_TOOLS} - {*own}
        return self.only([name for name in self.names if name not in brought])

    @property
    def callable(self) -> ToolSet:
        """What code finds as functions."""
        return ToolSet(tuple(tool for tool in self.tools if tool.name not in CODE_TOOLS))

    def untrusted_labels(self, name: str) -> tuple[Provenance, ...]:
        """The untrusted labels of what a tool returns, or may: code calls what it likes."""
        called = self.callable.tools if name in CODE_TOOLS else (self.find(name),)
        labels = (tool.returns_from for tool in called if tool is not None)
        return tuple(dict.fromkeys(label for label in labels if label is not None))

    @property
    def names(self) -> list[str]:
        """All names."""
        return [tool.name for tool in self.tools]

    @property
    def schemas(self) -> Sequence[ToolSchema]:
        """What the model is offered."""
        return [tool.schema for tool in self.tools]


@dataclass(frozen=True, slots=True)
class MemoryEdit:
    """A memory block was changed by a tool.

    Attributes:
        operation: What was done: "append", "rename" and so on.
    """

    block_id: str
    label: str
    revision: int
    diff: str
    operation: str = ""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """How one call ended.

    Attributes:
        tool_return: What is stored and what the model is shown.
        duration_ms: How long it ran.
        memory_edits: Blocks that it changed.
        archival_changed: It stored or removed archival passages.
        files_changed: It opened or closed files.
    """

    tool_return: ToolReturn
    duration_ms: int = 0
    memory_edits: tuple[MemoryEdit, ...] = ()
    archival_changed: bool = False
    files_changed: bool = False


@dataclass(frozen=True, slots=True)
class CallStarted:
    """The executor began a call."""

    tool_call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class CallFinished:
    """The executor ended a call."""

    result: ToolResult


ToolEvent: TypeAlias = CallStarted | CallFinished


@dataclass(frozen=True, slots=True)
class PromptSnapshot:
    """What a reply was made from, as far as its calls depend on it.

    Attributes:
        block_revisions: Revisions of the memory blocks that the model saw, by label.
        max_files_open: Files that may be open at once; 0 leaves it to core memory.
        taint: Untrusted labels of the context; see `domain.taint`.
        file_view_chars: Characters of one file that are shown; 0 leaves it to core memory.
        max_memory_bytes: UTF-8 bytes that blocks and open files may take together in the prompt
            when files are opened; 0 likewise.
    """

    block_revisions: Mapping[str, int] = field(default_factory=dict)
    max_files_open: int = 0
    taint: tuple[Provenance, ...] = ()
    file_view_chars: int = 0
    max_memory_bytes: int = 0

    def after(self, results: Collection[ToolResult]) -> PromptSnapshot:
        """Returns what calls see that are run after others of the same reply.

        A block that the reply itself made or renamed was not seen under its label; the executor
        goes by the same rule among the calls of one batch.
        """
        made = {
            edit.label
            for result in results
            for edit in result.memory_edits
            if edit.operation in ("create", "rename")
        }
        kept = {name: seen for name, seen in self.block_revisions.items() if name not in made}
        return replace(self, block_revisions=kept)


@dataclass(frozen=True, slots=True)
class CodeCall:
    """A call that code asks for.

    Attributes:
        parent_id: The call whose code it is.
        arguments: A JSON object, as text.
    """

    parent_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class CodeAnswer:
    """What a call of code came to.

    Attributes:
        value_json: What the tool returned, if there is no error.
        error: Why there is no value, in words for the code.
    """

    value_json: str = "null"
    error: str | None = None


@dataclass(frozen=True, slots=True)
class CodeToolAccess:
    """What code can call, and who runs that.

    Attributes:
        tools: What it finds as functions.
        answer: Judges and runs a call; cancelled if nobody waits for it any more.
    """

    tools: ToolSet
    answer: Callable[[CodeCall], Awaitable[CodeAnswer]]


@dataclass(frozen=True, slots=True)
class OlderLines:
    """The part of a transcript that a voice memory agent archives.

    Attributes:
        agent_id: The agent in whose archive memories are stored.
        range_key: Names the range of messages, whatever run reads it.
        lines: The lines, in order.
    """

    agent_id: str
    range_key: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CallingGroup:
    """The group in whose run calls are made.

    Attributes:
        id: The group.
        members: The agents that the tools of the group reach, in order.
    """

    id: str
    members: tuple[GroupMember, ...]


@dataclass(frozen=True, slots=True)
class ToolBatch:
    """The calls of one reply, to be run.

    Attributes:
        idempotency_keys: By call id: names a call for ever.
        allowed: Names of the agent's tools.
        agent_type: The agent's type, by its wire name.
        snapshot: What the reply was made from.
        message_id: Id that the reply will be stored with.
        code_access: For calls whose code calls tools; None if there are none.
        older_lines: What ``store_memories`` can store; None if it can store nothing.
        group: The group in whose run the calls are made, if it offers the agent a tool.
    """

    agent_id: str
    conversation_id: str
    run_id: str
    step_id: str
    model: str
    timezone: str
    calls: Sequence[ToolCall]
    idempotency_keys: Mapping[str, str]
    allowed: Sequence[str]
    agent_type: str
    snapshot: PromptSnapshot
    message_id: str
    code_access: CodeToolAccess | None = None
    older_lines: OlderLines | None = None
    group: CallingGroup | None = None
