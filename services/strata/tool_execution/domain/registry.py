"""The registry of a project's own tools: what is asked of it and of where it is kept."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from strata.shared.context import Caller
from strata.shared.errors import (
    AlreadyExistsError,
    NotFoundError,
    PermissionDeniedError,
    Reason,
    UnimplementedError,
)
from strata.shared.scopes import Scope
from strata.tool_execution.domain.tools import Tool, ToolType

MAX_NAME = 48


@dataclass(frozen=True, slots=True)
class Request:
    """A request that may be repeated.

    Attributes:
        id: Names it; empty if it is not to be recognised.
        digest: Of everything that it asks for.
    """

    id: str = ""
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Runnable:
    """Tools to be run, and the secrets that they ask for.

    Attributes:
        sealed: The stored secrets among those asked for, by name.
    """

    tools: Mapping[str, Tool] = field(default_factory=dict)
    sealed: Mapping[str, bytes] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class StoredVector:
    """The vector of a text that a tool is found by.

    Attributes:
        text_hash: Of the model and the text; another text needs another vector.
    """

    tool_id: str
    text_hash: str
    vector: bytes


@dataclass(frozen=True, slots=True)
class ServerTools:
    """The tools of an MCP server that an agent has as a whole.

    Attributes:
        server_id: Id of the server.
        names: Names of its tools that can be used, in order; none while it is away.
        problem: Why there are none, or empty.
        away: It could not be reached at the last contact.
        enabled: It may be reached.
    """

    server_id: str
    names: tuple[str, ...] = ()
    problem: str = ""
    away: bool = False
    enabled: bool = True


class ToolStore(Protocol):
    """The own tools of the calling project."""

    async def upsert(self, tool: Tool, request: Request) -> Tool:
        """Stores a tool under its name; with the same content nothing is changed.

        Raises:
            AlreadyExistsError: NAME_TAKEN by a tool of another type, or REQUEST_ID_REUSED.
            PermissionDeniedError: SCOPE_MISSING; see `check_secrets`, for the tool that would be
                changed.
        """
        ...

    async def get(self, *, tool_id: str = "", name: str = "") -> Tool | None:
        """Returns a tool by id or name."""
        ...

    async def page(self, types: Collection[ToolType], after: str, limit: int) -> Sequence[Tool]:
        """Returns tools by name, those after a name, without blocked ones; no types mean all."""
        ...

    async def named(self, names: Collection[str], kept: Collection[str] = ()) -> Mapping[str, Tool]:
        """Returns the tools of these names that there are.

        Args:
            names: The names.
            kept: Those among them that are returned also while they are blocked.
        """
        ...

    async def of_servers(self, servers: Collection[str]) -> Mapping[str, ServerTools]:
        """Returns the tools of MCP servers by name of the server; of those that there are."""
        ...

    async def keep_choice(self, run_id: str, names: Sequence[str]) -> Sequence[str]:
        """Keeps the names of tools that a run is offered; returns those that were kept first."""
        ...

    async def runnable(self, names: Collection[str]) -> Runnable:
        """Returns the tools of these names, blocked ones too, with their secrets."""
        ...

    async def delete(self, tool_id: str) -> bool:
        """Deletes a tool that is no MCP server's; says whether there was one.

        Raises:
            PermissionDeniedError: SCOPE_MISSING; see `check_secrets`.
        """
        ...

    async def searchable(self, limit: int) -> Sequence[tuple[Tool, StoredVector | None]]:
        """Returns tools by name that are not blocked, without source, with vectors if there."""
        ...

    async def keep_vectors(self, vectors: Sequence[StoredVector]) -> None:
        """Keeps vectors beside their tools."""
        ...


class SecretStore(Protocol):
    """The sealed secrets of the calling project."""

    async def put(self, name: str, sealed: bytes) -> None:
        """Stores a secret in place of the one before."""
        ...

    async def delete(self, name: str) -> None:
        """Deletes a secret if there is one."""
        ...


def tool_missing(name: str) -> NotFoundError:
    """Returns what is raised for a tool that is not there."""
    return NotFoundError(
        f"Tool {name} does not exist.", reason=Reason.TOOL_NOT_FOUND, metadata={"name": name}
    )


def name_taken(name: str, by: str) -> AlreadyExistsError:
    """Returns what is raised for a name that something else has."""
    return AlreadyExistsError(
        f"The name {name} is taken by {by}.", reason=Reason.NAME_TAKEN, metadata={"name": name}
    )


def check_secrets(tool: Tool, caller: Caller) -> None:
    """Refuses a caller who may not decide what is done with the secrets that a tool names.

    Whoever writes the code of a tool, or names its hosts and packages, can read all that the tool
    is given: what a tool returns is searched for its secrets, but code can disguise them.

    Args:
        tool: As it is to be stored, or as it is stored and would be changed.
        caller: Who asks.

    Raises:
        PermissionDeniedError: SCOPE_MISSING.
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
    """Returns what is raised for a part of a request that this release does not have."""
    return UnimplementedError(message, reason=Reason.NOT_BUILT, metadata={"what": what})
