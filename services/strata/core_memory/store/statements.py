"""The SQL statements of mutations; `unit` uses and explains them."""

from __future__ import annotations

from strata.core_memory.files.store.rows import PROMPT_LIMIT
from strata.core_memory.request_table import REQUESTS
from strata.core_memory.store.rows import (
    BLOCK,
    BLOCK_CHANGES,
    BLOCK_COLUMNS,
    BLOCK_VALUES,
    RECORD,
    VERSION_COLUMNS,
    VERSION_VALUES,
)
from strata.shared.db import sql

_REQUEST = f"request AS ({REQUESTS.insert})"
_CHANGES = f"changes AS (SELECT * FROM jsonb_to_recordset(CAST(:records AS jsonb)) AS r({RECORD}))"
_INSERT_BLOCKS = f"""
    INSERT INTO core_memory.blocks ({BLOCK_COLUMNS}) SELECT {BLOCK_VALUES} FROM changes g
"""
_INSERT_VERSIONS = f"""
    INSERT INTO core_memory.block_versions ({VERSION_COLUMNS})
    SELECT {VERSION_VALUES} FROM changes g
"""
_INSERT_ATTACHMENTS = (
    "INSERT INTO core_memory.attachments (project_id, agent_id, block_id, label, create_time)"
)
# Records the attachments that a statement has deleted (`detached`).
_ADD_HISTORY = """
    INSERT INTO core_memory.attachment_history
        (project_id, agent_id, block_id, label, position, attach_time, detach_time)
    SELECT project_id, agent_id, block_id, label, position, create_time,
           greatest(create_time, detach_time)
    FROM detached
"""

# Reads the request and locks the block in one statement. The lock is in a CTE, because an
# outer join cannot be locked; it returns the newest row, after waiting for it.
LOCK_BLOCK = sql(
    f"""
    WITH b AS (
        SELECT * FROM core_memory.blocks
        WHERE project_id = :project AND id = :block AND delete_time IS NULL
        FOR NO KEY UPDATE)
    SELECT {REQUESTS.columns}, {BLOCK}
    FROM (SELECT 1) AS one
    {REQUESTS.join}
    LEFT JOIN b ON true
    """
)
# Locked in order of id, to exclude deadlocks.
LOCK_BLOCKS = sql(
    f"""
    WITH b AS (
        SELECT * FROM core_memory.blocks
        WHERE project_id = :project AND id = ANY(CAST(:ids AS text[]))
        ORDER BY id
        FOR NO KEY UPDATE)
    SELECT {REQUESTS.columns}, {BLOCK}
    FROM (SELECT 1) AS one
    {REQUESTS.join}
    LEFT JOIN b ON true
    """
)
# After waiting for the lock, the condition on the block is checked again.
LOCK_LABELLED = sql(
    f"""
    WITH b AS (
        SELECT l.* FROM core_memory.attachments x
        JOIN core_memory.blocks l ON l.project_id = x.project_id AND l.id = x.block_id
        WHERE x.project_id = :project AND x.agent_id = :agent
          AND x.label = ANY(CAST(:labels AS text[])) AND l.delete_time IS NULL
        ORDER BY l.id
        FOR NO KEY UPDATE OF l)
    SELECT {REQUESTS.columns}, {BLOCK},
           (SELECT coalesce(array_agg(x.label ORDER BY x.position), '{{}}')
              FROM core_memory.attachments x
             WHERE x.project_id = :project AND x.agent_id = :agent) AS labels
    FROM (SELECT 1) AS one
    {REQUESTS.join}
    LEFT JOIN b ON true
    """
)
INSERT = sql(
    f"""
    WITH {_CHANGES}, {_REQUEST}, new_blocks AS ({_INSERT_BLOCKS}), new_attachments AS (
        {_INSERT_ATTACHMENTS}
        SELECT :project, :agent, id, label, create_time FROM changes
        WHERE CAST(:agent AS text) <> '')
    {_INSERT_VERSIONS}
    """
)
INSERT_ALL = sql(f"WITH {_CHANGES}, new_blocks AS ({_INSERT_BLOCKS}) {_INSERT_VERSIONS}")
UPDATE = sql(
    f"""
    WITH {_CHANGES}, {_REQUEST}, changed_blocks AS (
        UPDATE core_memory.blocks b SET
            {BLOCK_CHANGES},
            made_for = CASE WHEN b.delete_time IS NULL THEN b.made_for ELSE '' END
        FROM changes g WHERE b.project_id = :project AND b.id = g.id
    ), detached AS (
        DELETE FROM core_memory.attachments x USING changes g
        WHERE g.delete_time IS NOT NULL AND x.project_id = :project AND x.block_id = g.id
        RETURNING x.*, g.delete_time AS detach_time
    ), history AS ({_ADD_HISTORY})
    {_INSERT_VERSIONS}
    """
)
PURGE = sql("DELETE FROM core_memory.blocks WHERE project_id = :project AND id = :block")
ATTACH = sql(
    f"""
    {_INSERT_ATTACHMENTS}
    SELECT :project, :agent, r.id, r.label, :time
    FROM unnest(CAST(:ids AS text[]), CAST(:labels AS text[])) WITH ORDINALITY r(id, label, ordinal)
    ORDER BY r.ordinal
    ON CONFLICT (project_id, agent_id, block_id) DO NOTHING
    """
)
DETACH = sql(
    f"""
    WITH detached AS (
        DELETE FROM core_memory.attachments
        WHERE project_id = :project AND agent_id = :agent AND block_id = :block
        RETURNING *, CAST(:time AS timestamptz) AS detach_time)
    {_ADD_HISTORY}
    """
)
BEGIN_AGENT = sql(
    f"""
    INSERT INTO core_memory.prepared_agents
        (project_id, agent_id, {", ".join(PROMPT_LIMIT)}, prompt_revision)
    VALUES (:project, :agent, {", ".join(PROMPT_LIMIT.values())}, :revision)
    ON CONFLICT DO NOTHING
    """
)
# Locked first: the next statement sees blocks that were attached to the followed agent before,
# and a later attachment waits for this transaction and then applies to both.
LOCK_FOLLOWED = sql(
    "SELECT agent_id FROM core_memory.prepared_agents"
    " WHERE project_id = :project AND agent_id = :followed FOR UPDATE"
)
FOLLOW = sql(
    f"""
    WITH follower AS (
        UPDATE core_memory.prepared_agents SET follows_agent_id = :followed
        WHERE project_id = :project AND agent_id = :agent)
    {_INSERT_ATTACHMENTS}
    SELECT project_id, :agent, block_id, label, :time FROM core_memory.attachments
    WHERE project_id = :project AND agent_id = :followed
    ORDER BY position
    ON CONFLICT DO NOTHING
    """
)
LOCK_PROMPT = sql(
    f"SELECT {', '.join(PROMPT_LIMIT)} FROM core_memory.prepared_agents"
    " WHERE project_id = :project AND agent_id = :agent FOR NO KEY UPDATE"
)
PROMPT_SIZE = sql(
    """
    SELECT plain_bytes, numbered_bytes FROM core_memory.prompt_sizes(
        ARRAY[CAST(:project AS text)], ARRAY[CAST(:agent AS text)])
    """
)
RAISE_PROMPT = sql(
    "UPDATE core_memory.prepared_agents SET prompt_limit_bytes = CAST(:limit AS bigint)"
    " WHERE project_id = :project AND agent_id = :agent"
)
SET_PROMPT = sql(
    f"""
    UPDATE core_memory.prepared_agents SET
        {", ".join(f"{name} = {value}" for name, value in PROMPT_LIMIT.items())},
        prompt_revision = :revision
    WHERE project_id = :project AND agent_id = :agent AND prompt_revision <= :revision
    """
)
LABELS = sql(
    "SELECT id, label FROM core_memory.blocks"
    " WHERE project_id = :project AND id = ANY(CAST(:ids AS text[])) AND delete_time IS NULL"
    " ORDER BY id FOR SHARE"
)
ATTACHED = sql(
    f"""
    SELECT {BLOCK} FROM core_memory.attachments x
    JOIN core_memory.blocks b ON b.project_id = x.project_id AND b.id = x.block_id
    WHERE x.project_id = :project AND x.agent_id = :agent
    ORDER BY x.position
    """
)
# Locked first, so that the next statement sees concurrent attachments. The agent's blocks are
# locked too, in order of id. As in all changes of blocks, a block is locked before its
# attachments and before the agent.
LOCK_MADE_FOR = sql(
    """
    SELECT b.id FROM core_memory.blocks b
    WHERE b.project_id = :project AND b.id IN (
        SELECT id FROM core_memory.blocks
        WHERE project_id = :project AND made_for = :agent AND delete_time IS NULL
        UNION
        SELECT block_id FROM core_memory.attachments
        WHERE project_id = :project AND agent_id = :agent)
    ORDER BY b.id FOR NO KEY UPDATE OF b
    """
)
DETACH_ALL = sql(
    f"""
    WITH deleted_agent AS (
        DELETE FROM core_memory.prepared_agents
        WHERE project_id = :project AND agent_id = :agent
    ), detached AS (
        DELETE FROM core_memory.attachments
        WHERE project_id = :project AND agent_id = :agent
        RETURNING *, CAST(:time AS timestamptz) AS detach_time
    )
    {_ADD_HISTORY}
    RETURNING block_id
    """
)
MADE_FOR = sql(
    f"""
    SELECT {BLOCK} FROM core_memory.blocks b
    WHERE b.project_id = :project AND b.made_for = :agent AND b.delete_time IS NULL
      AND NOT EXISTS (
        SELECT 1 FROM core_memory.attachments x
        WHERE x.project_id = b.project_id AND x.block_id = b.id)
    """
)
VALUE_AT = sql(
    "SELECT value FROM core_memory.block_versions"
    " WHERE project_id = :project AND block_id = :block AND revision = :revision"
)
REVERTS = sql(
    "SELECT block_id, revision, undoes FROM core_memory.block_versions"
    " WHERE project_id = :project AND block_id = ANY(CAST(:ids AS text[])) AND undoes <> ''"
)
VERSIONS_AT = sql(
    "SELECT * FROM core_memory.block_versions"
    " WHERE project_id = :project AND block_id = :block"
    " AND revision = ANY(CAST(:revisions AS bigint[]))"
)
KNOWN_AGENT = sql(
    "SELECT 1 FROM core_memory.prepared_agents WHERE project_id = :project AND agent_id = :agent"
)
"""Returns a row if an agent exists."""
