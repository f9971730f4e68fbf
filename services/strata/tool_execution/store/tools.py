"""Store of tools in PostgreSQL."""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from strata.shared.context import current_project, require_caller
from strata.shared.db import Database, DatabaseConnection, sql
from strata.shared.idempotency.keys import RequestKey
from strata.shared.scopes import Scope
from strata.tool_execution.domain.mcp import TOO_MANY_TOOLS
from strata.tool_execution.domain.registry import (
    Runnable,
    ServerTools,
    StoredVector,
    check_secrets,
    name_taken,
)
from strata.tool_execution.domain.tools import Tool, ToolType
from strata.tool_execution.store.columns import parameters_sql, replacements_sql
from strata.tool_execution.store.request_table import REQUESTS
from strata.tool_execution.store.rows import (
    CHANGEABLE,
    COLUMNS,
    COLUMNS_WITHOUT_SOURCE,
    NEW_TOOL,
    from_text,
    to_text,
    to_tool,
    to_values,
)

# A row that an older release has written may have the same version but lack newer columns. So these
# columns are compared as well.
_UPSERT = sql(
    f"""
    INSERT INTO tool_execution.tools AS t (project_id, {", ".join(NEW_TOOL)})
    VALUES (:project, {parameters_sql(NEW_TOOL)})
    ON CONFLICT (project_id, name) DO UPDATE SET
        {replacements_sql(CHANGEABLE)}, update_time = now()
        WHERE t.type = EXCLUDED.type
            AND (t.version, t.function_name, t.allowed_hosts)
                <> (EXCLUDED.version, EXCLUDED.function_name, EXCLUDED.allowed_hosts)
            AND (:may_use_secrets OR t.secret_names = '{{}}')
    RETURNING {COLUMNS}
    """
)
_SELECT = f"SELECT {COLUMNS} FROM tool_execution.tools WHERE project_id = :project"
_BY_ID = sql(f"{_SELECT} AND id = :key")
_BY_NAME = sql(f"{_SELECT} AND name = :key")
_NAMED = sql(
    f"{_SELECT} AND name = ANY(CAST(:names AS text[]))"
    " AND (blocked = '' OR name = ANY(CAST(:kept AS text[])))"
)
_OF_SERVERS = sql(
    """
    SELECT s.id, s.name, s.enabled, s.error,
        array(SELECT t.name FROM tool_execution.tools t
               WHERE t.project_id = s.project_id AND t.mcp_server_id = s.id AND t.blocked = ''
               ORDER BY t.create_time, t.name) AS tools
    FROM tool_execution.mcp_servers s
    WHERE s.project_id = :project AND s.name = ANY(CAST(:servers AS text[]))
    """
)
# Differs from every digest of a request.
_CHOICE = "tools of a run"
_PAGE = sql(
    f"{_SELECT} AND name > :after AND blocked = ''"
    " AND (CAST(:types AS text[]) = '{}' OR type = ANY(CAST(:types AS text[])))"
    " ORDER BY name LIMIT :limit"
)
_SEALED = """
    (SELECT json_object_agg(s.name, encode(s.sealed, 'base64'))
       FROM tool_execution.secrets s
      WHERE s.project_id = t.project_id AND s.name = ANY(t.secret_names))::text AS sealed
"""
_RUNNABLE = sql(
    f"SELECT {COLUMNS}, {_SEALED} FROM tool_execution.tools t"
    " WHERE project_id = :project AND name = ANY(CAST(:names AS text[]))"
)
_DELETE = sql(
    "DELETE FROM tool_execution.tools"
    " WHERE project_id = :project AND id = :id AND mcp_server_id = ''"
    " AND (:may_use_secrets OR secret_names = '{}')"
)
_SEARCHABLE = sql(
    f"""
    SELECT {COLUMNS_WITHOUT_SOURCE}, vector, vector_hash
    FROM tool_execution.tools WHERE project_id = :project AND blocked = ''
    ORDER BY name LIMIT :limit
    """
)
_KEEP = sql(
    """
    UPDATE tool_execution.tools t SET vector = v.vector, vector_hash = v.hash
    FROM unnest(CAST(:ids AS text[]), CAST(:hashes AS text[]), CAST(:vectors AS bytea[]))
        AS v (id, hash, vector)
    WHERE t.project_id = :project AND t.id = v.id
    """
)


class PostgresToolStore:
    """Implements `domain.registry.ToolStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def upsert(self, tool: Tool, request: RequestKey) -> Tool:
        """Stores a tool under its name; unchanged content is not written again."""
        project = current_project()
        async with self._database.transaction() as connection:
            before = await REQUESTS.claim(connection, request)
            if before is not None:
                return from_text(before)
            stored_tool = await _stored(connection, project, tool)
            await REQUESTS.answer(connection, request, to_text(stored_tool), stored_tool.id)
            return stored_tool

    async def get(self, *, tool_id: str = "", name: str = "") -> Tool | None:
        """Returns a tool by id or name."""
        async with self._database.transaction(read_only=True) as connection:
            bound = {"project": current_project(), "key": tool_id or name}
            row = (await connection.execute(_BY_ID if tool_id else _BY_NAME, bound)).one_or_none()
            return None if row is None else to_tool(row)

    async def page(self, types: Collection[ToolType], after: str, limit: int) -> Sequence[Tool]:
        """Returns up to `limit` tools by name, after the name `after`; no types means all."""
        bound = {
            "project": current_project(),
            "after": after,
            "types": sorted(types),
            "limit": limit,
        }
        async with self._database.transaction(read_only=True) as connection:
            return [to_tool(row) for row in await connection.execute(_PAGE, bound)]

    async def named(self, names: Collection[str], kept: Collection[str] = ()) -> Mapping[str, Tool]:
        """Returns the tools with these names; blocked ones only if they are in `kept`."""
        bound = {"project": current_project(), "names": sorted(names), "kept": sorted(kept)}
        async with self._database.transaction(read_only=True) as connection:
            tools = [to_tool(row) for row in await connection.execute(_NAMED, bound)]
        return {tool.name: tool for tool in tools}

    async def of_servers(self, servers: Collection[str]) -> Mapping[str, ServerTools]:
        """Returns the tools of MCP servers, by server name; missing servers are left out."""
        bound = {"project": current_project(), "servers": sorted(servers)}
        async with self._database.transaction(read_only=True) as connection:
            rows = (await connection.execute(_OF_SERVERS, bound)).all()
        return {row.name: _of_server(row) for row in rows}

    async def keep_choice(self, run_id: str, names: Sequence[str]) -> Sequence[str]:
        """Stores the tool names of a run unless some are stored; returns the stored names."""
        key = RequestKey(f"{_CHOICE} {run_id}", _CHOICE)
        # No row means that another attempt stored some while this statement ran.
        for _ in range(2):
            async with self._database.transaction() as connection:
                stored_names = await REQUESTS.keep(
                    connection, key, json.dumps(list(names)), subject=""
                )
            if stored_names is not None:
                return [str(name) for name in json.loads(stored_names)]
        return list(names)

    async def runnable(self, names: Collection[str]) -> Runnable:
        """Returns the tools with these names and their secrets, including blocked tools."""
        bound = {"project": current_project(), "names": sorted(names)}
        async with self._database.transaction(read_only=True) as connection:
            rows = (await connection.execute(_RUNNABLE, bound)).all()
        sealed = {
            name: base64.b64decode(value)
            for row in rows
            for name, value in json.loads(row.sealed or "{}").items()
        }
        return Runnable({row.name: to_tool(row) for row in rows}, sealed)

    async def delete(self, tool_id: str) -> bool:
        """Deletes a tool that does not belong to an MCP server; returns whether one was deleted."""
        async with self._database.transaction() as connection:
            bound = {"project": current_project(), "id": tool_id, "key": tool_id}
            result = await connection.execute(_DELETE, {**bound, **_rights()})
            if result.rowcount:
                await REQUESTS.purge(connection, tool_id)
                return True
            row = (await connection.execute(_BY_ID, bound)).one_or_none()
        if row is not None:
            check_secrets(to_tool(row), require_caller())
        return False

    async def searchable(self, limit: int) -> Sequence[tuple[Tool, StoredVector | None]]:
        """Returns up to `limit` tools in order of their names, with vectors, without source."""
        async with self._database.transaction(read_only=True) as connection:
            bound = {"project": current_project(), "limit": limit}
            rows = await connection.execute(_SEARCHABLE, bound)
            return [(to_tool(row), _vector(row)) for row in rows]

    async def keep_vectors(self, vectors: Sequence[StoredVector]) -> None:
        """Stores the vectors of tools."""
        bound = {
            "project": current_project(),
            "ids": [vector.tool_id for vector in vectors],
            "hashes": [vector.text_hash for vector in vectors],
            "vectors": [vector.vector for vector in vectors],
        }
        async with self._database.transaction() as connection:
            await connection.execute(_KEEP, bound)


def _of_server(row: Any) -> ServerTools:
    if not row.enabled:
        return ServerTools(row.id, problem="the MCP server is disabled", enabled=False)
    # A server that reported too many tools is reachable.
    if row.error and row.error != TOO_MANY_TOOLS:
        return ServerTools(
            row.id, problem=f"the MCP server cannot be reached: {row.error}", away=True
        )
    return ServerTools(row.id, tuple(row.tools), problem=row.error)


def _rights() -> dict[str, bool]:
    return {"may_use_secrets": Scope.SECRETS in require_caller().scopes}


async def _stored(connection: DatabaseConnection, project: str, tool: Tool) -> Tool:
    values = {"project": project, **to_values(tool), **_rights()}
    row = (await connection.execute(_UPSERT, values)).one_or_none()
    if row is None:
        bound = {"project": project, "key": tool.name}
        row = (await connection.execute(_BY_NAME, bound)).one()
    if row.type != tool.type:
        raise name_taken(tool.name, f"a {row.type} tool")
    stored_tool = to_tool(row)
    if stored_tool.version != tool.version:
        # Not written: the stored tool has secrets, and the caller must not change it.
        check_secrets(stored_tool, require_caller())
    return stored_tool


def _vector(row: Any) -> StoredVector | None:
    return None if row.vector is None else StoredVector(row.id, row.vector_hash, row.vector)
