"""SQL statements of `store.mcp`."""

from __future__ import annotations

from strata.shared.db import sql
from strata.tool_execution.store.columns import (
    changes_sql,
    parameters_sql,
    replacements_sql,
    select_sql,
)
from strata.tool_execution.store.mcp_rows import (
    CONFIGURATION,
    MCP_TOOL,
    NEW_SERVER,
    REPORT,
    SERVER,
)
from strata.tool_execution.store.rows import COLUMNS, SERVER_TOOL

_SERVER = select_sql(SERVER)
_SIGN_IN = """
    (SELECT json_build_object('principal', t.principal, 'time', t.sign_in_time,
            'issuer', t.issuer, 'problem', t.problem)
       FROM tool_execution.mcp_tokens t
      WHERE t.project_id = mcp_servers.project_id AND t.server_id = mcp_servers.id
    )::text AS sign_in
"""
_OF = "WHERE project_id = :project AND id = :id"

# Serializes additions to a project, so that no two of them count the same servers.
LOCK_ADDITIONS = sql(
    "SELECT pg_advisory_xact_lock(hashtextextended('MCP servers ' || :project, 0))"
)
COUNT = sql("SELECT count(*) FROM tool_execution.mcp_servers WHERE project_id = :project")
INSERT = sql(
    f"""
    INSERT INTO tool_execution.mcp_servers (
        project_id, {", ".join(NEW_SERVER)})
    VALUES (:project, {parameters_sql(NEW_SERVER)})
    RETURNING {_SERVER}
    """
)
UPDATE = sql(
    f"""
    UPDATE tool_execution.mcp_servers SET
        {changes_sql(CONFIGURATION)}, update_time = now()
    {_OF} RETURNING {_SERVER}
    """
)
# Tokens must be sent only to the server that the person has signed in to.
FORGET_OTHERS = sql(
    """
    WITH changed_server AS (
        SELECT id FROM tool_execution.mcp_servers
        WHERE project_id = :project AND id = :id AND (url <> :url OR oauth::text <> :oauth)
    ), deleted_sign_ins AS (
        DELETE FROM tool_execution.mcp_sign_ins s USING changed_server
        WHERE s.project_id = :project AND s.server_id = changed_server.id
    )
    DELETE FROM tool_execution.mcp_tokens t USING changed_server
    WHERE t.project_id = :project AND t.server_id = changed_server.id
    """
)
ONE = sql(f"SELECT {_SERVER}, {_SIGN_IN} FROM tool_execution.mcp_servers {_OF}")
PAGE = sql(
    f"SELECT {_SERVER}, {_SIGN_IN} FROM tool_execution.mcp_servers"
    " WHERE project_id = :project AND name > :after ORDER BY name LIMIT :limit"
)
LOCK = sql(f"SELECT id, enabled FROM tool_execution.mcp_servers {_OF} FOR UPDATE")
DELETE = sql(f"DELETE FROM tool_execution.mcp_servers {_OF}")
DELETE_TOOLS = sql(
    "DELETE FROM tool_execution.tools WHERE project_id = :project AND mcp_server_id = :id"
)
CONTACT = sql(
    f"""
    UPDATE tool_execution.mcp_servers SET error = :error, last_contact_time = now()
    {_OF} RETURNING {_SERVER}
    """
)
FAILED = sql(f"UPDATE tool_execution.mcp_servers SET error = :error {_OF}")
CONNECTABLE = sql(
    f"""
    SELECT {_SERVER},
        (SELECT json_object_agg(s.name, encode(s.sealed, 'base64'))
           FROM tool_execution.secrets s
          WHERE s.project_id = m.project_id AND (s.name = m.bearer_secret
             OR s.name = m.client_credentials->>'client_secret'
             OR s.name = m.oauth->>'client_secret'
             OR s.name IN (SELECT value FROM json_each_text(m.environment_secrets))
             OR s.name IN (SELECT value FROM json_each_text(m.header_secrets)))
        )::text AS sealed
    FROM tool_execution.mcp_servers m
    WHERE project_id = :project AND id = ANY(CAST(:ids AS text[]))
    """
)

_TOOL = f"""
    SELECT {select_sql(MCP_TOOL, "k")},
        t.description AS approved_description, t.parameters::text AS approved_parameters
    FROM tool_execution.mcp_tools k
    LEFT JOIN tool_execution.tools t ON t.project_id = k.project_id AND t.name = k.tool_name
        AND t.mcp_server_id = k.server_id
    WHERE k.project_id = :project AND k.server_id = :id
"""
ALL_TOOLS = sql(_TOOL)
ONE_TOOL = sql(f"{_TOOL} AND k.name = :name")
TOOL_PAGE = sql(f"{_TOOL} AND k.name > :after ORDER BY k.name LIMIT :limit")
UNUSABLE = sql(
    "SELECT name, reason FROM tool_execution.mcp_tools"
    " WHERE project_id = :project AND server_id = :id AND reason <> ''"
)
PUT_TOOL = sql(
    f"""
    INSERT INTO tool_execution.mcp_tools (project_id, server_id, {", ".join(MCP_TOOL)})
    VALUES (:project, :server, {parameters_sql(MCP_TOOL)})
    ON CONFLICT (project_id, server_id, name) DO UPDATE SET {replacements_sql(REPORT)}
    """
)

USABLE = sql(
    f"""
    SELECT {COLUMNS} FROM tool_execution.tools
    WHERE project_id = :project AND mcp_server_id = :id AND blocked = '' ORDER BY name
    """
)
TAKEN = sql(
    """
    SELECT name FROM tool_execution.tools
    WHERE project_id = :project AND name = ANY(CAST(:names AS text[]))
        AND mcp_server_id <> :server
    """
)
REGISTER = sql(
    f"""
    INSERT INTO tool_execution.tools AS t (project_id, {", ".join(SERVER_TOOL)})
    VALUES (:project, {parameters_sql(SERVER_TOOL)})
    ON CONFLICT (project_id, name) DO UPDATE SET
        description = EXCLUDED.description, parameters = EXCLUDED.parameters,
        version = EXCLUDED.version, mcp_digest = EXCLUDED.mcp_digest, blocked = '',
        update_time = now()
        WHERE t.mcp_server_id = EXCLUDED.mcp_server_id AND t.mcp_name = EXCLUDED.mcp_name
            AND (t.version <> EXCLUDED.version OR t.blocked <> '')
    """
)
BLOCK = sql(
    """
    UPDATE tool_execution.tools SET blocked = :reason
    WHERE project_id = :project AND mcp_server_id = :server
        AND (CAST(:name AS text) = '' OR mcp_name = :name) AND blocked <> :reason
    """
)
