"""Which tools an agent has that was given whole MCP servers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from strata.api.tool_execution.v1 import execution_service_pb2 as pb
from strata.shared.server_tools import MAX_SERVER_TOOLS, server_of
from strata.tool_execution.domain.registry import ServerTools, ToolStore, tool_missing


class ServerContact(Protocol):
    """Keeps sessions with MCP servers."""

    def look_after(self, server_ids: Collection[str], away: Collection[str]) -> None:
        """Opens sessions with servers in the background and reads their tools."""
        ...


class ServerToolNames:
    """Replaces names such as ``files__*`` by those of the tools.

    Args:
        store: The project's own tools.
        contact: Is asked to keep in touch with the servers, so that changes are noticed.
    """

    def __init__(self, store: ToolStore, contact: ServerContact) -> None:
        self._store = store
        self._contact = contact

    async def names(
        self, names: Sequence[str], run_id: str, *, skip_missing: bool
    ) -> tuple[list[str], list[str], list[pb.ServerTools]]:
        """Returns the single names, those of tools of servers, and a note for each server.

        Nothing is read if no name is that of a server.

        Args:
            names: As the agent has them.
            run_id: The run whose first attempt decides; empty if none does.
            skip_missing: Leave out servers that do not exist.

        Raises:
            NotFoundError: TOOL_NOT_FOUND: there is no such server.
        """
        wanted = {name: server for name in names if (server := server_of(name)) is not None}
        if not wanted:
            return list(names), [], []
        found = await self._store.of_servers(set(wanted.values()))
        missing = [name for name, server in wanted.items() if server not in found]
        if missing and not skip_missing:
            raise tool_missing(missing[0])
        self._contact.look_after(
            [each.server_id for each in found.values() if each.enabled],
            [each.server_id for each in found.values() if each.away],
        )
        single = [name for name in names if name not in wanted]
        chosen: list[str] = []
        notes: dict[str, pb.ServerTools] = {}
        for name, server in wanted.items():
            tools = found.get(server) or ServerTools("", problem="there is no such MCP server")
            fitting = [name for name in tools.names if name not in single]
            taken = fitting[: MAX_SERVER_TOOLS - len(chosen)]
            problem = tools.problem
            if len(taken) < len(fitting):
                problem = (
                    f"{len(fitting) - len(taken)} of {len(fitting)} tools are left out: an agent"
                    f" has at most {MAX_SERVER_TOOLS} tools of whole MCP servers"
                )
            chosen += taken
            notes[name] = pb.ServerTools(name=name, tools=len(taken), problem=problem)
        if run_id:
            chosen = list(await self._store.keep_choice(run_id, chosen))
            chosen = [name for name in chosen if name not in single]
        return single, chosen, list(notes.values())
