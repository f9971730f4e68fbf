"""Tools, tool calls and their outcomes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID, uuid5

from strata.protocol.images import ImageHeader
from strata.shared.cached_property import CachedProperty
from strata.shared.memory_edits import MemoryEdit, revisions_after
from strata.shared.messages import ToolStatus
from strata.shared.sandbox import RunStatus
from strata.shared.tool_catalogue import ToolEffect
from strata.shared.tool_returns import FUNCTION_RETURN_CHAR_LIMIT
from strata.tool_execution.domain.printed import PrintedLines

_ID_NAMESPACE = UUID("6f1c1d4e-2f7b-5d63-9d0a-5f3f0f5b7a10")


class ToolType(StrEnum):
    """The type of a tool, which decides its executor."""

    CORE = "core"
    MEMORY = "memory"
    SLEEPTIME = "sleeptime"
    FILES = "files"
    MULTI_AGENT = "multi_agent"
    CUSTOM = "custom"
    CLIENT = "client"
    BUILTIN = "builtin"
    MCP = "mcp"


Effect = ToolEffect
"""The declared effect of a tool; alias of `ToolEffect`."""


@dataclass(frozen=True, slots=True)
class McpOrigin:
    """The origin of a tool of an MCP server.

    Attributes:
        server_id: The server.
        name: Its name on the server.
        digest: Hash of the approved description and schema.
    """

    server_id: str
    name: str
    digest: str


@dataclass(frozen=True, slots=True)
class OwnDefinition:
    """The parts of a tool definition that only tools of a project have.

    Attributes:
        id: Id of the tool; empty until it is stored.
        source_code: Python source; empty for a tool that the client runs.
        function: The function of the source to call.
        requires_approval: Whether calls need approval by default; agents can override it.
        pip_requirements: Packages that the source needs.
        secret_names: Secrets that it gets as environment variables.
        allowed_hosts: Hosts that it may reach, see `domain.hosts`; empty means no network access.
        mcp: The origin of a tool of an MCP server; else None.
        blocked: Why it cannot be run now, or empty.
    """

    id: str = ""
    source_code: str = ""
    function: str = ""
    requires_approval: bool = False
    pip_requirements: tuple[str, ...] = ()
    secret_names: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    create_time: datetime | None = None
    update_time: datetime | None = None
    mcp: McpOrigin | None = None
    blocked: str = ""

    @property
    def content(self) -> list[Any]:
        """The values that give the tool a new version when they change."""
        content = [
            self.source_code,
            self.function,
            self.requires_approval,
            self.pip_requirements,
            self.secret_names,
        ]
        if self.allowed_hosts:
            # Only if set: versions of tools from before this field existed stay the same.
            content.append({"allowed_hosts": self.allowed_hosts})
        if self.mcp is not None:
            content += [self.mcp.server_id, self.mcp.name, self.mcp.digest]
        return content


@dataclass(frozen=True)
class Tool:
    """A tool that agents may call.

    Attributes:
        parameters: JSON schema of the arguments, an object schema.
        parallel: Whether calls of one reply may run concurrently.
        return_char_limit: Maximum number of characters of a return that the model sees.
        from_web: Whether it returns untrusted content from the web.
        explain: Returns a message for the model about invalid arguments that the schema cannot
            express, or None. It is called before the arguments are validated.
        own: The other parts of a project's own tool; None for a built-in tool.
    """

    name: str
    description: str
    type: ToolType
    parameters: Mapping[str, Any]
    effect: Effect
    parallel: bool = False
    return_char_limit: int = FUNCTION_RETURN_CHAR_LIMIT
    tags: tuple[str, ...] = ()
    from_web: bool = False
    explain: Callable[[Mapping[str, Any]], str | None] | None = None
    own: OwnDefinition | None = None

    @property
    def reads_web(self) -> bool:
        """Whether it may return untrusted content: it reads pages, or has network access."""
        return self.from_web or (self.own is not None and bool(self.own.allowed_hosts))

    @CachedProperty
    def id(self) -> str:
        """The id; built-in tools have fixed ids."""
        return self.own.id if self.own is not None else f"tool-{uuid5(_ID_NAMESPACE, self.name)}"

    @CachedProperty
    def version(self) -> str:
        """Hash of the definition."""
        definition: list[Any] = [
            self.name,
            self.description,
            self.type,
            self.parameters,
            self.effect,
            self.parallel,
            self.return_char_limit,
        ]
        if self.own is not None:
            definition += [self.tags, *self.own.content]
        text = json.dumps(definition, sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call of a model.

    Attributes:
        id: Id of the call, unique within its reply.
        name: Name of the tool.
        arguments: JSON text as the model wrote it.
        key: Idempotency key: ``run/step/call``.
    """

    id: str
    name: str
    arguments: str
    key: str


@dataclass(frozen=True, slots=True)
class OlderLines:
    """The part of a transcript that ``store_memories`` archives.

    Attributes:
        agent_id: The agent in whose archive the memories are stored.
        range_key: Identifies the range of messages, independently of the run.
        lines: The lines in order; memories refer to their indices, from 0.
    """

    agent_id: str
    range_key: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CallingGroup:
    """The group in whose run calls are made.

    Attributes:
        id: Id of the group.
        agent_ids: The agents that the group tools can reach, in order.
        names: Their names, in the same order.
    """

    id: str = ""
    agent_ids: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CallingAgent:
    """The agent and the run that make calls, with the settings that tools need.

    Attributes:
        agent_type: Type of the agent, by its wire name.
        block_revisions: Revisions of the memory blocks that the model read, by label.
        max_files_open: Maximum number of open files; 0 means the default of the file service.
        file_view_chars: Characters of one file in the prompt; 0 means the default.
        max_memory_bytes: UTF-8 bytes that blocks and open files may take together in the prompt
            when files are opened; 0 means the default.
        max_search_bytes: UTF-8 bytes that the messages found by a search may take in its return;
            0 means the default.
        message_id: The assistant message that contains the calls; empty if unknown.
        taint: Labels of the untrusted content that the model has read: "web", "mcp". Tools attach
            them to what they write to memory.
        older_lines: Older lines of the transcript of a voice memory agent; None for other callers.
        group: The group in whose run the calls are made, if it offers the agent a tool.
    """

    agent_id: str
    conversation_id: str
    run_id: str
    step_id: str
    model: str
    timezone: str
    agent_type: str = "letta_v1_agent"
    block_revisions: Mapping[str, int] = field(default_factory=dict)
    max_files_open: int = 0
    file_view_chars: int = 0
    max_memory_bytes: int = 0
    max_search_bytes: int = 0
    message_id: str = ""
    taint: tuple[str, ...] = ()
    older_lines: OlderLines | None = None
    group: CallingGroup = CallingGroup()

    def after(self, edits: Iterable[MemoryEdit]) -> CallingAgent:
        """Returns the caller for later calls of the same reply."""
        revisions = revisions_after(self.block_revisions, edits)
        if revisions is self.block_revisions:
            return self
        return replace(self, block_revisions=revisions)


@dataclass(frozen=True, slots=True)
class ReturnedImage:
    """An image that a tool returned."""

    header: ImageHeader
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Output:
    """The output of a tool: its value, and its changes of memory.

    Attributes:
        value: Text, None or a JSON value.
        memory_edits: The edits of memory blocks.
        archival_changed: Whether archival memory was changed.
        files_changed: Whether open files were changed.
        taint: Labels of untrusted content in the memory that it read, or under which that memory
            was written.
        images: Images that the model sees after the value.
        printed: Its output.
    """

    value: Any
    memory_edits: tuple[MemoryEdit, ...] = ()
    archival_changed: bool = False
    files_changed: bool = False
    taint: tuple[str, ...] = ()
    images: tuple[ReturnedImage, ...] = ()
    printed: PrintedLines = field(default_factory=PrintedLines)


class ToolError(Exception):
    """A tool failed; the message is written for the model.

    Args:
        message: The reason.
        value: A JSON value that the model sees instead of the message.
        memory_edits: Edits of memory before the failure.
        unknown: Whether it is unknown if the call had its effect.
        end: How the run in the sandbox ended, if there was one.
        printed: Its output.
        taint: Labels of untrusted content that the value may derive from.
    """

    def __init__(
        self,
        message: str,
        value: Any = None,
        memory_edits: Iterable[MemoryEdit] = (),
        *,
        taint: Iterable[str] = (),
        unknown: bool = False,
        end: RunStatus | None = None,
        printed: PrintedLines | None = None,
    ) -> None:
        super().__init__(message)
        self.value: Any = message if value is None else value
        self.memory_edits = tuple(memory_edits)
        self.status = ToolStatus.UNKNOWN if unknown else ToolStatus.FAILED
        self.end = end
        self.printed = printed or PrintedLines()
        self.taint = tuple(taint)


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """A finished call.

    Attributes:
        call: The call.
        status: How it ended.
        content: The packed tool return that the model sees.
        duration: Duration in seconds.
        truncated: Whether the text was truncated at the tool's limit.
        output: The output of the tool.
    """

    call: ToolCall
    status: ToolStatus
    content: str
    duration: float
    truncated: bool = False
    output: Output = field(default_factory=lambda: Output(None))

    @property
    def ok(self) -> bool:
        """Whether the tool succeeded."""
        return self.status is ToolStatus.OK
