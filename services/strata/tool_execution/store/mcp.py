"""Store of MCP servers and their tools in PostgreSQL."""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import asyncpg

from strata.protocol.errors import (
    AbortedError,
    NotFoundError,
    Reason,
    ResourceExhaustedError,
)
from strata.shared.context import current_project
from strata.shared.db import Database, DatabaseConnection
from strata.shared.idempotency.keys import RequestKey
from strata.shared.ids import new_id
from strata.tool_execution.domain.mcp import (
    MAX_ERROR,
    MAX_KNOWN_TOOLS,
    MAX_SERVERS,
    TOO_MANY_TOOLS,
    Connectable,
    McpServer,
    McpTool,
    ReportedTool,
    ServerSyncResult,
    ToolState,
    reconcile,
    server_missing,
    unusable,
)
from strata.tool_execution.domain.registry import name_taken
from strata.tool_execution.domain.tools import Effect, McpOrigin, OwnDefinition, Tool, ToolType
from strata.tool_execution.store import mcp_statements
from strata.tool_execution.store.mcp_rows import (
    mcp_tool_values,
    server_values,
    to_mcp_tool,
    to_server,
)
from strata.tool_execution.store.request_table import REQUESTS
from strata.tool_execution.store.rows import to_tool, to_values


class PostgresMcpStore:
    """Implements `domain.mcp.McpStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, server: McpServer, request: RequestKey) -> McpServer:
        """Stores a new server; a repeated request returns the server of the first one."""
        project = current_project()
        try:
            async with self._database.transaction() as connection:
                before = await REQUESTS.claim(connection, request)
                if before is not None:
                    return await _server(connection, before)
                await connection.execute(mcp_statements.LOCK_ADDITIONS, {"project": project})
                count = await connection.execute(mcp_statements.COUNT, {"project": project})
                if count.scalar_one() >= MAX_SERVERS:
                    raise ResourceExhaustedError(
                        f"A project has at most {MAX_SERVERS} MCP servers.",
                        reason=Reason.QUOTA_EXCEEDED,
                        metadata={"quota": "mcp_servers"},
                    )
                values = {"project": project, **server_values(server)}
                row = (await connection.execute(mcp_statements.INSERT, values)).one()
                await REQUESTS.answer(connection, request, server.id, subject="")
                return to_server(row)
        except asyncpg.IntegrityConstraintViolationError as error:
            if "mcp_servers_name" in str(error):
                raise name_taken(server.name, "another MCP server") from None
            raise

    async def get(self, server_id: str) -> McpServer:
        """Returns a server."""
        async with self._database.transaction(read_only=True) as connection:
            return await _server(connection, server_id)

    async def page(self, after: str, limit: int) -> Sequence[McpServer]:
        """Returns up to `limit` servers in order of their names, after the name `after`."""
        bound = {"project": current_project(), "after": after, "limit": limit}
        async with self._database.transaction(read_only=True) as connection:
            return [to_server(row) for row in await connection.execute(mcp_statements.PAGE, bound)]

    async def update(self, server: McpServer) -> McpServer:
        """Stores the configuration of a server."""
        project = current_project()
        async with self._database.transaction() as connection:
            values = {"project": project, **server_values(server)}
            bound = {name: values[name] for name in ("project", "id")}
            # Locked first, as by a sign-in that ends meanwhile.
            if (await connection.execute(mcp_statements.LOCK, bound)).one_or_none() is None:
                raise server_missing(server.id)
            same = {name: values[name] for name in ("project", "id", "url", "oauth")}
            await connection.execute(mcp_statements.FORGET_OTHERS, same)
            row = (await connection.execute(mcp_statements.UPDATE, values)).one()
            if not server.enabled:
                await _block(connection, server.id, None, "its MCP server is disabled")
            return to_server(row)

    async def delete(self, server_id: str) -> None:
        """Deletes a server and its tools."""
        bound = {"project": current_project(), "id": server_id}
        async with self._database.transaction() as connection:
            # Locked first, as in `sync`, so that the next statement sees the tools that a running
            # transaction stores.
            if (await connection.execute(mcp_statements.LOCK, bound)).one_or_none() is None:
                raise server_missing(server_id)
            await connection.execute(mcp_statements.DELETE_TOOLS, bound)
            await connection.execute(mcp_statements.DELETE, bound)

    async def connectable(self, server_ids: Collection[str]) -> Mapping[str, Connectable]:
        """Returns servers by id with their secrets; deleted servers are left out."""
        bound = {"project": current_project(), "ids": sorted(server_ids)}
        async with self._database.transaction(read_only=True) as connection:
            rows = (await connection.execute(mcp_statements.CONNECTABLE, bound)).all()
        return {
            row.id: Connectable(
                to_server(row),
                {
                    name: base64.b64decode(value)
                    for name, value in json.loads(row.sealed or "{}").items()
                },
            )
            for row in rows
        }

    async def sync(self, server_id: str, reported: Sequence[ReportedTool]) -> ServerSyncResult:
        """Stores the reported tools of a server, and a successful contact."""
        project = current_project()
        bound = {"project": project, "id": server_id}
        async with self._database.transaction() as connection:
            # Locked, so that only one of two concurrent listings counts as the first.
            locked = (await connection.execute(mcp_statements.LOCK, bound)).one_or_none()
            if locked is None:
                raise server_missing(server_id)
            rows = (await connection.execute(mcp_statements.ALL_TOOLS, bound)).all()
            stored_tools = {row.name: to_mcp_tool(row) for row in rows}
            space = MAX_KNOWN_TOOLS - len(stored_tools)
            new = [tool for tool in reported if tool.name not in stored_tools]
            left_out = {tool.name for tool in new[max(0, space) :]}
            accepted = [tool for tool in reported if tool.name not in left_out]
            accepted = await _without_taken(connection, server_id, accepted)
            after = reconcile(stored_tools, accepted)
            for tool in after:
                if stored_tools.get(tool.name) != tool:
                    values = {"project": project, "server": server_id, **mcp_tool_values(tool)}
                    await connection.execute(mcp_statements.PUT_TOOL, values)
                if tool.state is ToolState.APPROVED:
                    await _register(connection, server_id, tool)
                else:
                    await _block(connection, server_id, tool.name, tool.reason)
            if not locked.enabled:
                await _block(connection, server_id, None, "its MCP server is disabled")
            error = TOO_MANY_TOOLS if left_out else ""
            row = (
                await connection.execute(mcp_statements.CONTACT, {**bound, "error": error})
            ).one()
            changed = [tool.name for tool in after if tool.state is ToolState.CHANGED]
            return ServerSyncResult(to_server(row), sorted(changed))

    async def failed(self, server_id: str, error: str) -> None:
        """Stores a failed contact."""
        text = error.replace("\0", "")[:MAX_ERROR]
        bound = {"project": current_project(), "id": server_id, "error": text}
        async with self._database.transaction() as connection:
            await connection.execute(mcp_statements.FAILED, bound)

    async def usable(self, server_id: str) -> Sequence[Tool]:
        """Returns the tools of a server that are in the registry."""
        bound = {"project": current_project(), "id": server_id}
        async with self._database.transaction(read_only=True) as connection:
            return [to_tool(row) for row in await connection.execute(mcp_statements.USABLE, bound)]

    async def tools(self, server_id: str, after: str, limit: int) -> Sequence[McpTool]:
        """Returns up to `limit` tools in order of their names, after the name `after`."""
        bound = {"project": current_project(), "id": server_id, "after": after, "limit": limit}
        async with self._database.transaction(read_only=True) as connection:
            await _server(connection, server_id)
            return [
                to_mcp_tool(row)
                for row in await connection.execute(mcp_statements.TOOL_PAGE, bound)
            ]

    async def quarantined(self, server_id: str) -> Mapping[str, str]:
        """Returns the tools that cannot be used: reasons by tool name."""
        bound = {"project": current_project(), "id": server_id}
        async with self._database.transaction(read_only=True) as connection:
            rows = await connection.execute(mcp_statements.UNUSABLE, bound)
            return {row.name: row.reason for row in rows}

    async def approve(self, server_id: str, name: str, digest: str) -> McpTool:
        """Approves the current description and schema of a tool."""
        project = current_project()
        bound = {"project": project, "id": server_id}
        async with self._database.transaction() as connection:
            locked = (await connection.execute(mcp_statements.LOCK, bound)).one_or_none()
            if locked is None:
                raise server_missing(server_id)
            row = (
                await connection.execute(mcp_statements.ONE_TOOL, {**bound, "name": name})
            ).one_or_none()
            if row is None:
                raise NotFoundError(
                    f"The MCP server has no tool {name[:100]}.",
                    reason=Reason.TOOL_NOT_FOUND,
                    metadata={"name": name[:100]},
                )
            tool = to_mcp_tool(row)
            if tool.state in (ToolState.QUARANTINED, ToolState.GONE):
                raise unusable(tool)
            if tool.digest != digest:
                raise AbortedError(
                    f"The tool {tool.name} has changed since you looked at it. List the tools"
                    " again.",
                    reason=Reason.REVISION_MISMATCH,
                    metadata={"expected": digest[:64], "current": tool.digest},
                )
            approved = replace(
                tool,
                state=ToolState.APPROVED,
                reason="",
                approved_digest=tool.digest,
                approved=None,
            )
            values = {"project": project, "server": server_id, **mcp_tool_values(approved)}
            await connection.execute(mcp_statements.PUT_TOOL, values)
            await _register(connection, server_id, approved)
            if not locked.enabled:
                await _block(connection, server_id, name, "its MCP server is disabled")
            return approved


async def _server(connection: DatabaseConnection, server_id: str) -> McpServer:
    bound = {"project": current_project(), "id": server_id}
    row = (await connection.execute(mcp_statements.ONE, bound)).one_or_none()
    if row is None:
        raise server_missing(server_id)
    return to_server(row)


async def _without_taken(
    connection: DatabaseConnection, server_id: str, reported: Sequence[ReportedTool]
) -> list[ReportedTool]:
    """Adds a problem to tools whose names other tools of the project have."""
    names = [tool.tool_name for tool in reported]
    bound = {"project": current_project(), "server": server_id, "names": names}
    used_names = {row.name for row in await connection.execute(mcp_statements.TAKEN, bound)}
    taken_problem = "its name in the registry is taken by another tool"
    return [
        replace(tool, problem=tool.problem or taken_problem)
        if tool.tool_name in used_names
        else tool
        for tool in reported
    ]


async def _register(connection: DatabaseConnection, server_id: str, tool: McpTool) -> None:
    registered = Tool(
        name=tool.tool_name,
        description=tool.description,
        type=ToolType.MCP,
        parameters=tool.parameters,
        # Effects that a server declares are untrusted: calls are never repeated because of them.
        effect=Effect.UNDECLARED,
        own=OwnDefinition(
            id=new_id("tool"), mcp=McpOrigin(server_id, tool.name, tool.approved_digest)
        ),
    )
    values = {
        **to_values(registered),
        "mcp_server_id": server_id,
        "mcp_name": tool.name,
        "mcp_digest": tool.approved_digest,
    }
    await connection.execute(mcp_statements.REGISTER, {"project": current_project(), **values})


async def _block(
    connection: DatabaseConnection, server_id: str, name: str | None, reason: str
) -> None:
    """Blocks a tool of a server (all with None), so that it is neither offered nor run."""
    bound = {
        "project": current_project(),
        "server": server_id,
        "name": name or "",
        "reason": reason,
    }
    await connection.execute(mcp_statements.BLOCK, bound)
