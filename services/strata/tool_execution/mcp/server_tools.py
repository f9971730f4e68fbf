"""Resolves whole MCP servers among the tools of an agent (``files__*``) to their tools."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from strata.api.tool_execution.v1 import execution_service_pb2 as pb
from strata.shared.server_tools import server_of, space_for_server_tools
from strata.shared.tool_catalogue import MAX_OFFERED_TOOLS
from strata.shared.tool_size import tool_bytes
from strata.tool_execution.domain.registry import ServerTools, ToolStore, tool_missing
from strata.tool_execution.domain.tools import Tool


class ServerContact(Protocol):
    """Keeps sessions with MCP servers."""

    def keep_connected(self, server_ids: Collection[str], away: Collection[str]) -> None:
        """Opens sessions with servers in the background and reads their tools.

        Args:
            server_ids: The enabled servers.
            away: The servers that could not be reached last time.
        """
        ...


@dataclass(frozen=True, slots=True)
class ChosenTools:
    """The tools that replace the names of an agent's list.

    Attributes:
        single: Names of the tools that are named individually.
        of_servers: Names of the tools of whole servers.
        servers: A note for each whole server.
        definitions: Definitions that were read to make the choice, by name.
    """

    single: list[str]
    of_servers: list[str] = field(default_factory=list)
    servers: list[pb.ServerTools] = field(default_factory=list)
    definitions: Mapping[str, Tool] = field(default_factory=dict)


class ServerToolNames:
    """Replaces names such as ``files__*`` by the names of the server's tools.

    Args:
        store: The project's own tools.
        contact: Keeps sessions with the servers, so that changes of their tools are noticed.
        read: Returns the definitions of usable tools by name.
    """

    def __init__(
        self,
        store: ToolStore,
        contact: ServerContact,
        read: Callable[[Collection[str]], Awaitable[Mapping[str, Tool]]],
    ) -> None:
        self._store = store
        self._contact = contact
        self._read = read

    async def choose(
        self, names: Sequence[str], run_id: str, *, skip_missing: bool, max_bytes: int = 0
    ) -> ChosenTools:
        """Returns the names of single tools, the tools of whole servers, and a note per server.

        Does not read the database if no name covers a server. Where space is short, the tools that
        were registered first are taken, so that a new tool does not displace one that the agent
        already has.

        Args:
            names: The tool names of the agent.
            run_id: The run. Its first attempt fixes the tools for later attempts. Empty if there
                is no run.
            skip_missing: Whether to leave out servers that do not exist.
            max_bytes: Maximum bytes of all definitions; 0 for no limit.

        Raises:
            NotFoundError: A server does not exist (``TOOL_NOT_FOUND``).
        """
        server_of_name = {name: server for name in names if (server := server_of(name)) is not None}
        if not server_of_name:
            return ChosenTools(list(names))
        servers = await self._store.of_servers(set(server_of_name.values()))
        missing = [name for name, server in server_of_name.items() if server not in servers]
        if missing and not skip_missing:
            raise tool_missing(missing[0])
        self._contact.keep_connected(
            [server.server_id for server in servers.values() if server.enabled],
            [server.server_id for server in servers.values() if server.away],
        )
        single = [name for name in names if name not in server_of_name]
        space = space_for_server_tools(names)
        available: dict[str, list[str]] = {}
        counted: dict[str, list[str]] = {}
        for name, server in server_of_name.items():
            tools = servers.get(server) or ServerTools("")
            available[name] = [tool for tool in tools.names if tool not in single]
            counted[name] = available[name][:space]
            space -= len(counted[name])
        definitions: Mapping[str, Tool] = {}
        taken = counted
        if max_bytes and any(counted.values()):
            definitions = await self._read({*single, *(t for of in counted.values() for t in of)})
            taken = _fitting(single, counted, definitions, max_bytes)
        notes = []
        for name, server in server_of_name.items():
            left_out = sorted({*available[name]} - {*taken[name]})
            note = pb.ServerTools(name=name, tools=len(taken[name]), left_out=left_out)
            if left_out:
                limits = []
                if len(counted[name]) < len(available[name]):
                    limits.append(_too_many(len({*single})))
                if len(taken[name]) < len(counted[name]):
                    limits.append(_too_large(max_bytes))
                note.problem = (
                    f"{len(left_out)} of {len(available[name])} tools are left out:"
                    f" {'; '.join(limits)}"
                )
            elif server in servers:
                note.problem = servers[server].problem
            else:
                note.problem = "there is no such MCP server"
            notes.append(note)
        chosen = [tool for name in server_of_name for tool in sorted(taken[name])]
        if run_id:
            kept = await self._store.keep_choice(run_id, chosen)
            chosen = [name for name in kept if name not in single]
        return ChosenTools(single, chosen, notes, definitions)


def _too_many(single: int) -> str:
    return f"a model is offered at most {MAX_OFFERED_TOOLS} tools, and {single} are named singly"


def _too_large(max_bytes: int) -> str:
    return (
        f"all tools may take {max_bytes} bytes of the context window; name the tools that are"
        " needed singly, or choose a larger context window"
    )


def _fitting(
    single: Sequence[str],
    of_servers: Mapping[str, Sequence[str]],
    definitions: Mapping[str, Tool],
    max_bytes: int,
) -> dict[str, list[str]]:
    """Returns the tools of servers that fit beside the single tools, by name of the list."""

    def size(name: str) -> int:
        tool = definitions.get(name)
        return 0 if tool is None else tool_bytes(name, tool.description, tool.parameters)

    left = max_bytes - sum(size(name) for name in {*single})
    taken: dict[str, list[str]] = {name: [] for name in of_servers}
    for name, tools in of_servers.items():
        for tool in tools:
            # A large tool does not keep smaller ones out.
            if (bytes_of_tool := size(tool)) <= left:
                taken[name].append(tool)
                left -= bytes_of_tool
    return taken
