"""Tools of an agent, calls that are executed, and their results."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from strata.agent_loop.domain.agent.groups import GroupMember
from strata.agent_loop.domain.conversation.messages import ToolReturn
from strata.agent_loop.domain.model.chat import ToolCall, ToolSchema
from strata.shared.memory_edits import MemoryEdit, revisions_after
from strata.shared.provenance import Provenance
from strata.shared.record_fields import replace
from strata.shared.server_tools import server_of
from strata.shared.tool_catalogue import CODE_TOOLS, FILE_TOOLS, ToolEffect
from strata.shared.tool_returns import FUNCTION_RETURN_CHAR_LIMIT


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool of an agent.

    Attributes:
        schema: Name, description and parameters that the model is offered.
        effect: Its effect on the world, which decides whether a call may be repeated.
        keyed: A built-in tool of a memory tier; its writes happen once per idempotency key.
        requires_approval: Every call waits for a person's approval.
        version: Identifies this definition of the tool.
        returns_from: The untrusted label of its returns; None if its returns are trusted.
        by_client: The client runs it: every call waits for the client's return.
        return_char_limit: Maximum number of characters of a return that the model is shown.
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
        """The name under which the model calls it."""
        return self.schema.name

    @property
    def replay_effect(self) -> ToolEffect:
        """The effect of a repeated call with the same idempotency key."""
        if self.keyed and self.effect is not ToolEffect.READ_ONLY:
            return ToolEffect.IDEMPOTENT
        return self.effect


@dataclass(frozen=True, slots=True)
class ToolSet:
    """An agent's tools, in the order in which the model is offered them.

    Attributes:
        tools: The tools.
        left_out: Names of tools of whole MCP servers for which there is no space.
    """

    tools: tuple[Tool, ...]
    left_out: tuple[str, ...] = ()

    def find(self, name: str) -> Tool | None:
        """Returns the tool of that name; None if the agent does not have it."""
        return next((tool for tool in self.tools if tool.schema.name == name), None)

    def only(self, names: Collection[str]) -> ToolSet:
        """Returns the tools with these names."""
        # Not `tool.name`: each turn calls this several times, with all tools of an agent.
        kept = tuple([tool for tool in self.tools if tool.schema.name in names])
        return self if len(kept) == len(self.tools) else replace(self, tools=kept)

    def offered(self, own: Collection[str], *, folders: bool) -> ToolSet:
        """Returns the tools that a model is offered; folders add the file tools.

        Args:
            own: Names of the agent's tools. A name such as "files__*" means all tools of an
                MCP server.
            folders: Whether a folder is attached to the agent.
        """
        if not any(server_of(name) for name in own):
            return self.only({*own, *FILE_TOOLS} if folders else own)
        brought = set() if folders else {*FILE_TOOLS} - {*own}
        return self.only([name for name in self.names if name not in brought])

    @property
    def callable(self) -> ToolSet:
        """The tools that code can call as functions."""
        return ToolSet(tuple(tool for tool in self.tools if tool.name not in CODE_TOOLS))

    def untrusted_labels(self, name: str) -> tuple[Provenance, ...]:
        """Returns the untrusted labels that a tool's return may have.

        A tool that runs code may have the labels of all tools, since the code can call any.
        """
        called = self.callable.tools if name in CODE_TOOLS else (self.find(name),)
        labels = (tool.returns_from for tool in called if tool is not None)
        return tuple(dict.fromkeys(label for label in labels if label is not None))

    @property
    def names(self) -> list[str]:
        """Names of all tools."""
        return [tool.schema.name for tool in self.tools]

    @property
    def schemas(self) -> Sequence[ToolSchema]:
        """Schemas of all tools."""
        return [tool.schema for tool in self.tools]


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of one call.

    Attributes:
        tool_return: The return that is stored and shown to the model.
        duration_ms: Run time in milliseconds.
        memory_edits: Changes to memory blocks.
        archival_changed: The call stored or removed archival passages.
        files_changed: The call opened or closed files.
    """

    tool_return: ToolReturn
    duration_ms: int = 0
    memory_edits: tuple[MemoryEdit, ...] = ()
    archival_changed: bool = False
    files_changed: bool = False


@dataclass(frozen=True, slots=True)
class CallStarted:
    """The executor started a call."""

    tool_call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class CallFinished:
    """The executor finished a call."""

    result: ToolResult


ToolEvent: TypeAlias = CallStarted | CallFinished


@dataclass(frozen=True, slots=True)
class PromptSnapshot:
    """The state of the prompt that a reply was made from, as far as its calls depend on it.

    Attributes:
        block_revisions: Revisions of the memory blocks that the model saw, by label.
        max_files_open: Files that may be open at once; 0 leaves it to core memory.
        taint: Untrusted labels of the context; see `domain.conversation.taint`.
        file_view_chars: Characters of one file that are shown; 0 leaves it to core memory.
        max_memory_bytes: UTF-8 bytes that blocks and open files may take together in the prompt
            when files are opened; 0 likewise.
        max_search_bytes: UTF-8 bytes that messages found by a search may take in its return; 0 for
            the default.
    """

    block_revisions: Mapping[str, int] = field(default_factory=dict)
    max_files_open: int = 0
    taint: tuple[Provenance, ...] = ()
    file_view_chars: int = 0
    max_memory_bytes: int = 0
    max_search_bytes: int = 0

    def after(self, results: Collection[ToolResult]) -> PromptSnapshot:
        """Returns the snapshot for calls that run after other calls of the same reply.

        The executor applies the same rule within a batch.
        """
        edits = (edit for result in results for edit in result.memory_edits)
        revisions = revisions_after(self.block_revisions, edits)
        return replace(self, block_revisions=revisions)


@dataclass(frozen=True, slots=True)
class CodeCall:
    """A tool call that code makes.

    Attributes:
        parent_id: The call whose code it is.
        arguments: A JSON object, as text.
    """

    parent_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class CodeAnswer:
    """The answer to a tool call that code made.

    Attributes:
        value_json: The tool's return as JSON, if there is no error.
        error: Error text for the code; None if the call succeeded.
    """

    value_json: str = "null"
    error: str | None = None


@dataclass(frozen=True, slots=True)
class CodeToolAccess:
    """The tools that code can call, and the function that runs these calls.

    Attributes:
        tools: The tools, which code calls as functions.
        answer: Checks and runs a call; it is cancelled when the code stops waiting.
    """

    tools: ToolSet
    answer: Callable[[CodeCall], Awaitable[CodeAnswer]]


@dataclass(frozen=True, slots=True)
class OlderLines:
    """The part of a transcript that a voice memory agent archives.

    Attributes:
        agent_id: The agent in whose archive memories are stored.
        range_key: Identifies the range of messages across runs.
        lines: The lines, in order.
    """

    agent_id: str
    range_key: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CallingGroup:
    """The group whose run makes the calls.

    Attributes:
        id: The group.
        members: The agents that the tools of the group reach, in order.
    """

    id: str
    members: tuple[GroupMember, ...]


@dataclass(frozen=True, slots=True)
class ToolBatch:
    """Calls of one reply that the executor runs.

    Attributes:
        idempotency_keys: By call id; the same on every attempt of the run.
        allowed: Names of the agent's tools.
        agent_type: Wire name of the agent's type.
        snapshot: The prompt that the reply was made from.
        message_id: Id under which the reply will be stored.
        code_access: For calls whose code calls tools; None if there are none.
        older_lines: Lines that ``store_memories`` can store; None outside of voice memory runs.
        group: The group whose run makes the calls, if it offers the agent a tool.
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
