"""The registry of a project's own tools: its store interfaces and errors."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from strata.protocol.errors import (
    AlreadyExistsError,
    NotFoundError,
    PermissionDeniedError,
    Reason,
    UnimplementedError,
)
from strata.shared.context import Caller
from strata.shared.idempotency.keys import RequestKey
from strata.shared.scopes import Scope
from strata.tool_execution.domain.tools import Tool, ToolType

MAX_NAME = 48


@dataclass(frozen=True, slots=True)
class Runnable:
    """Tools to run, and their secrets.

    Attributes:
        tools: The tools by name.
        sealed: Stored secrets that the tools declare, encrypted, by name.
    """

    tools: Mapping[str, Tool] = field(default_factory=dict)
    sealed: Mapping[str, bytes] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class StoredVector:
    """The embedding of the search text of a tool.

    Attributes:
        tool_id: The tool.
        text_hash: Hash of the embedding model and the text; it changes with either.
        vector: The vector as packed 32-bit floats.
    """

    tool_id: str
    text_hash: str
    vector: bytes


@dataclass(frozen=True, slots=True)
class ServerTools:
    """The tools of an MCP server, for an agent that has the whole server.

    Attributes:
        server_id: Id of the server.
        names: Names of its usable tools, oldest first; empty while the server is unreachable.
        problem: Why there are none, or empty.
        away: Whether the last contact failed.
        enabled: Whether the server is enabled.
    """

    server_id: str
    names: tuple[str, ...] = ()
    problem: str = ""
    away: bool = False
    enabled: bool = True


class ToolStore(Protocol):
    """The tools that the calling project has defined."""

    async def upsert(self, tool: Tool, request: RequestKey) -> Tool:
        """Stores a tool under its name; unchanged content is not written again.

        Raises:
            AlreadyExistsError: A tool of another type has the name (``NAME_TAKEN``), or the request
                id belongs to a different request (``REQUEST_ID_REUSED``).
            PermissionDeniedError: The caller must not change the stored tool (``SCOPE_MISSING``);
                see `check_secrets`.
        """
        ...

    async def get(self, *, tool_id: str = "", name: str = "") -> Tool | None:
        """Returns a tool by id or name; None if it does not exist."""
        ...

    async def page(self, types: Collection[ToolType], after: str, limit: int) -> Sequence[Tool]:
        """Returns up to `limit` tools in order of their names, after the name `after`.

        Blocked tools are left out. No types means all types.
        """
        ...

    async def named(self, names: Collection[str], kept: Collection[str] = ()) -> Mapping[str, Tool]:
        """Returns the tools with these names; missing and blocked ones are left out.

        Args:
            names: The names.
            kept: Names of tools that are returned even if they are blocked.
        """
        ...

    async def of_servers(self, servers: Collection[str]) -> Mapping[str, ServerTools]:
        """Returns the tools of MCP servers, by server name; missing servers are left out."""
        ...

    async def keep_choice(self, run_id: str, names: Sequence[str]) -> Sequence[str]:
        """Stores the tool names of a run unless some are stored; returns the stored names."""
        ...

    async def runnable(self, names: Collection[str]) -> Runnable:
        """Returns the tools with these names and their secrets, including blocked tools."""
        ...

    async def delete(self, tool_id: str) -> bool:
        """Deletes a tool; tools of MCP servers are not deleted. Returns whether one was deleted.

        Raises:
            PermissionDeniedError: The caller must not delete the tool (``SCOPE_MISSING``); see
                `check_secrets`.
        """
        ...

    async def searchable(self, limit: int) -> Sequence[tuple[Tool, StoredVector | None]]:
        """Returns up to `limit` tools in order of their names, with vectors where stored.

        Source code and blocked tools are left out.
        """
        ...

    async def keep_vectors(self, vectors: Sequence[StoredVector]) -> None:
        """Stores the vectors of tools."""
        ...


class SecretStore(Protocol):
    """The encrypted secrets of the calling project."""

    async def put(self, name: str, sealed: bytes) -> None:
        """Stores a secret; it replaces an earlier one of the same name."""
        ...

    async def delete(self, name: str) -> None:
        """Deletes a secret if it exists."""
        ...


def tool_missing(name: str) -> NotFoundError:
    """Returns the error for a tool that does not exist."""
    return NotFoundError(
        f"Tool {name} does not exist.", reason=Reason.TOOL_NOT_FOUND, metadata={"name": name}
    )


def name_taken(name: str, by: str) -> AlreadyExistsError:
    """Returns the error for a name that is in use."""
    return AlreadyExistsError(
        f"The name {name} is taken by {by}.", reason=Reason.NAME_TAKEN, metadata={"name": name}
    )


def check_secrets(tool: Tool, caller: Caller) -> None:
    """Checks that a caller may define a tool with secrets.

    The author of a tool's code, hosts or packages can read its secrets: they are redacted in what
    the tool returns, but code can disguise them.

    Args:
        tool: The tool to store, or the stored tool to change.
        caller: The caller.

    Raises:
        PermissionDeniedError: The tool has secrets, and the caller's key has neither of the scopes
            ``secrets`` and ``admin`` (``SCOPE_MISSING``).
    """
    names = tool.own.secret_names if tool.own is not None else ()
    if names and Scope.SECRETS not in caller.scopes:
        raise PermissionDeniedError(
            f"The tool {tool.name} names secrets ({', '.join(names)}). To define, change or delete"
            f" such a tool the key needs the scope {Scope.SECRETS} or {Scope.ADMIN}: who writes"
            " the code of a tool can read what it is given. Use such a key, or another name for"
            " a tool without secrets.",
            metadata={"scope": Scope.SECRETS},
        )


def not_built(what: str, message: str) -> UnimplementedError:
    """Returns the error for a feature that this server does not have."""
    return UnimplementedError(message, reason=Reason.NOT_BUILT, metadata={"what": what})
