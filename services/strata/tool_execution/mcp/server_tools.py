"""Resolves whole MCP servers among the tools of an agent (``files__*``) to their tools."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from strata.api.tool_execution.v1 import execution_service_pb2 as pb
from strata.shared.server_tools import server_of, space_for_server_tools
from strata.shared.tool_catalogue import MAX_OFFERED_TOOLS
from strata.tool_execution.domain.registry import ServerTools, ToolStore, tool_missing


class ServerContact(Protocol):
    """Keeps sessions with MCP servers."""

    def keep_connected(self, server_ids: Collection[str], away: Collection[str]) -> None:
        """Opens sessions with servers in the background and reads their tools.

        Args:
            server_ids: The enabled servers.
            away: The servers that could not be reached last time.
        """
        ...


class ServerToolNames:
    """Replaces names such as ``files__*`` by the names of the server's tools.

    Args:
        store: The project's own tools.
        contact: Keeps sessions with the servers, so that changes of their tools are noticed.
    """

    def __init__(self, store: ToolStore, contact: ServerContact) -> None:
        self._store = store
        self._contact = contact

    async def names(
        self, names: Sequence[str], run_id: str, *, skip_missing: bool
    ) -> tuple[list[str], list[str], list[pb.ServerTools]]:
        """Returns the names of single tools, the tools of whole servers, and a note per server.

        Does not read the database if no name covers a server.

        Args:
            names: The tool names of the agent.
            run_id: The run. Its first attempt fixes the tools for later attempts. Empty if there
                is no run.
            skip_missing: Whether to leave out servers that do not exist.

        Raises:
            NotFoundError: A server does not exist (``TOOL_NOT_FOUND``).
        """
        server_of_name = {name: server for name in names if (server := server_of(name)) is not None}
        if not server_of_name:
            return list(names), [], []
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
        chosen: list[str] = []
        notes: dict[str, pb.ServerTools] = {}
        for name, server in server_of_name.items():
            tools = servers.get(server) or ServerTools("", problem="there is no such MCP server")
            available = [name for name in tools.names if name not in single]
            added = available[: space - len(chosen)]
            problem = tools.problem
            if len(added) < len(available):
                left_out = len(available) - len(added)
                problem = (
                    f"{left_out} of {len(available)} tools are left out: a model is offered"
                    f" at most {MAX_OFFERED_TOOLS} tools, and {len(set(single))} are named singly"
                )
            chosen += added
            notes[name] = pb.ServerTools(name=name, tools=len(added), problem=problem)
        if run_id:
            chosen = list(await self._store.keep_choice(run_id, chosen))
            chosen = [name for name in chosen if name not in single]
        return single, chosen, list(notes.values())
