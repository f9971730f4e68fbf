"""Tools and the outcome of calling them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import Any
from uuid import UUID, uuid5

from strata.shared.images import ImageHeader
from strata.shared.tool_catalogue import ToolEffect
from strata.shared.tool_returns import FUNCTION_RETURN_CHAR_LIMIT
from strata.tool_execution.domain.sandbox import RunStatus

_ID_NAMESPACE = UUID("6f1c1d4e-2f7b-5d63-9d0a-5f3f0f5b7a10")


class ToolType(StrEnum):
    """Which executor runs a tool."""

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
"""What a tool does to the world, as this service calls it."""


@dataclass(frozen=True, slots=True)
class McpOrigin:
    """Where a tool of an MCP server comes from.

    Attributes:
        name: What the server calls it.
        digest: Names the description and schema that were approved.
    """

    server_id: str
    name: str
    digest: str


@dataclass(frozen=True, slots=True)
class OwnDefinition:
    """What a project says of a tool of its own.

    Attributes:
        id: Its id; empty until it is stored.
        source_code: Python source; empty for a tool that the client runs.
        function: The function of the source that is called.
        requires_approval: Every call waits for a person, unless the agent says otherwise.
        pip_requirements: Packages that the source needs.
        secret_names: Secrets that it gets as environment variables.
        allowed_hosts: Hosts that it may reach, as `domain.hosts` has it; none for no network.
        mcp: The server that runs it; None if none does.
        blocked: Why it may not be run now, or empty.
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
        """What makes another version of the tool when it is changed."""
        content = [
            self.source_code,
            self.function,
            self.requires_approval,
            self.pip_requirements,
            self.secret_names,
        ]
        if self.allowed_hosts:
            # Without any, versions are those of before there were hosts.
            content.append({"allowed_hosts": self.allowed_hosts})
        if self.mcp is not None:
            content += [self.mcp.server_id, self.mcp.name, self.mcp.digest]
        return content


@dataclass(frozen=True)
class Tool:
    """A tool that agents may call.

    Attributes:
        parameters: JSON schema of the arguments, an object schema.
        parallel: True if calls of one reply may run at the same time.
        return_char_limit: Most characters of a return that the model is shown.
        from_web: True if what it returns was written by strangers.
        explain: Says in words for the model what is wrong with arguments where the schema
            cannot; None if nothing is. It sees them before the schema has checked them.
        own: What else there is to a tool that a project made; None for a built-in one.
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
        """Whether strangers may have written what it returns: it reads pages, or has a network."""
        return self.from_web or (self.own is not None and bool(self.own.allowed_hosts))

    @cached_property
    def id(self) -> str:
        """The id; that of a built-in tool is fixed."""
        return self.own.id if self.own is not None else f"tool-{uuid5(_ID_NAMESPACE, self.name)}"

    @cached_property
    def version(self) -> str:
        """Names exactly this definition."""
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
class Call:
    """One call that a model asked for.

    Attributes:
        arguments: JSON text as the model wrote it.
        key: Names the call for ever: ``run/step/call``.
    """

    id: str
    name: str
    arguments: str
    key: str


@dataclass(frozen=True, slots=True)
class MemoryEdit:
    """A memory block that a tool changed.

    Attributes:
        operation: What was done: "append", "rename" and so on.
    """

    block_id: str
    label: str
    revision: int
    diff: str
    operation: str = ""


# After these a label stands for another block than the one that the model saw under it.
_NEW_BLOCK = frozenset({"create", "rename"})


@dataclass(frozen=True, slots=True)
class OlderLines:
    """The part of a transcript that ``store_memories`` archives.

    Attributes:
        agent_id: The agent in whose archive the memories are stored.
        range_key: Names the range of messages, whatever run reads it.
        lines: The lines in order; memories name them by their indices, from 0.
    """

    agent_id: str
    range_key: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Caller:
    """On whose behalf calls are run.

    Attributes:
        agent_type: Type of the agent by its wire name.
        block_revisions: Revisions of the memory blocks that the model saw, by label.
        max_files_open: Files that may be open at once; 0 leaves it to the file service.
        file_view_chars: Characters of one file that are shown; 0 likewise.
        max_memory_bytes: UTF-8 bytes that blocks and open files may take together in the prompt
            when files are opened; 0 likewise.
        message_id: The assistant message that asks for the calls; empty if it is not known.
        taint: Text of strangers that the model had read: "web", "mcp". What a tool writes to
            memory is to be marked with it.
        older_lines: Of a voice memory agent that reads a transcript; None for any other caller.
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
    message_id: str = ""
    taint: tuple[str, ...] = ()
    older_lines: OlderLines | None = None

    def after(self, edits: Iterable[MemoryEdit]) -> Caller:
        """Returns the caller as later calls of the same reply see it.

        The text that the model saw stays the old one, so a seen revision stays as it is;
        but there is none of a block that the reply itself made or renamed.
        """
        made = {edit.label for edit in edits if edit.operation in _NEW_BLOCK}
        if made.isdisjoint(self.block_revisions):
            return self
        kept = {label: seen for label, seen in self.block_revisions.items() if label not in made}
        return replace(self, block_revisions=kept)


@dataclass(frozen=True, slots=True)
class Image:
    """An image that a tool returned."""

    header: ImageHeader
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Output:
    """What a tool gave: text, None or a JSON value, and what it changed.

    Attributes:
        taint: Text of strangers in the memory that it read, or that it was written under.
        images: Images beside the value; the model is shown them after it.
    """

    value: Any
    memory_edits: tuple[MemoryEdit, ...] = ()
    archival_changed: bool = False
    files_changed: bool = False
    taint: tuple[str, ...] = ()
    images: tuple[Image, ...] = ()


class ReturnStatus(StrEnum):
    """How a call ended, by the name that the model knows.

    FAILED promises that the call had no effect beyond what its text names. UNKNOWN: it was sent or
    begun, and there is no answer that says whether it had its effect.
    """

    OK = "OK"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


class ToolError(Exception):
    """A tool refused or failed; the text is written for the model.

    Args:
        message: What is wrong.
        value: What the model is shown instead, if words alone do not do: a JSON value.
        memory_edits: What was changed before it failed.
        unknown: True if the call may have had an effect that nothing tells of.
        end: How the sandbox ended the code, if it was run there.
    """

    def __init__(
        self,
        message: str,
        value: Any = None,
        memory_edits: Iterable[MemoryEdit] = (),
        *,
        unknown: bool = False,
        end: RunStatus | None = None,
    ) -> None:
        super().__init__(message)
        self.value: Any = message if value is None else value
        self.memory_edits = tuple(memory_edits)
        self.status = ReturnStatus.UNKNOWN if unknown else ReturnStatus.FAILED
        self.end = end


@dataclass(frozen=True, slots=True)
class Outcome:
    """A finished call, ready for the model.

    Attributes:
        status: How it ended.
        content: The packed return that the model is shown.
        duration: Seconds.
        truncated: True if the text was cut at the tool's limit.
    """

    call: Call
    status: ReturnStatus
    content: str
    duration: float
    truncated: bool = False
    output: Output = field(default_factory=lambda: Output(None))

    @property
    def ok(self) -> bool:
        """Whether the tool returned."""
        return self.status is ReturnStatus.OK
