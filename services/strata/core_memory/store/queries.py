"""The SQL statements that read blocks, current and as of an earlier time."""

from __future__ import annotations

from typing import Any

from strata.core_memory.domain.blocks import EditSelection
from strata.core_memory.files.store.views import DIRECTORIES_FINGERPRINT, ViewStatements
from strata.core_memory.store.rows import BLOCK, content_of
from strata.shared.db import SqlStatement, sql

# Equal fingerprints mean equal blocks in equal order, and the same windows into the same
# files: then values and agents are not returned. Without blocks there is one empty row.
_READ = (
    f"attached.id, {content_of('attached', without='value')}, create_time, update_time,"
    " delete_time, char_count, fingerprint, has_folders"
)
_BLOCKS_DIGEST = "coalesce(md5(string_agg(id || '@' || revision, ',' ORDER BY position)), '0')"
_FINGERPRINT = "blocks || CASE directories WHEN '' THEN '' ELSE '+' || md5(directories) END"
MEMORY = sql(
    f"""
    WITH attached AS (
        SELECT b.*, x.position FROM core_memory.attachments x
        JOIN core_memory.blocks b ON b.project_id = x.project_id AND b.id = x.block_id
        WHERE x.project_id = :project AND x.agent_id = :agent
    ), digests AS (
        SELECT {_BLOCKS_DIGEST} AS blocks, ({DIRECTORIES_FINGERPRINT}) AS directories FROM attached
    ), memory_state AS (
        SELECT {_FINGERPRINT} AS fingerprint, directories <> '' AS has_folders FROM digests
    )
    SELECT {_READ},
           CASE WHEN fingerprint = :known THEN '' ELSE value END AS value,
           CASE WHEN fingerprint = :known THEN CAST('{{}}' AS text[]) ELSE (
               SELECT coalesce(array_agg(n.agent_id ORDER BY n.position), '{{}}')
                 FROM core_memory.attachments n
                WHERE n.project_id = :project AND n.block_id = attached.id) END AS agent_ids
    FROM memory_state LEFT JOIN attached ON true
    ORDER BY position
    """
)
MEMORY_VIEWS = ViewStatements.with_fingerprint(
    f"""(
    SELECT {_FINGERPRINT}
      FROM (SELECT {_BLOCKS_DIGEST} AS blocks, ({DIRECTORIES_FINGERPRINT}) AS directories
              FROM (SELECT b.id, b.revision, x.position
                      FROM core_memory.attachments x
                      JOIN core_memory.blocks b
                        ON b.project_id = x.project_id AND b.id = x.block_id
                     WHERE x.project_id = :project AND x.agent_id = :agent) blocks) digests)
    """
)
"""Read folders and texts with the fingerprint that `MEMORY` returns."""
BLOCK_BY_ID = sql(
    f"SELECT {BLOCK} FROM core_memory.blocks b WHERE b.project_id = :project AND b.id = :block"
)
LABELLED = sql(
    f"""
    WITH b AS (
        SELECT l.* FROM core_memory.attachments x
        JOIN core_memory.blocks l ON l.project_id = x.project_id AND l.id = x.block_id
        WHERE x.project_id = :project AND x.agent_id = :agent AND x.label = :label)
    SELECT {BLOCK},
           (SELECT coalesce(array_agg(x.label ORDER BY x.position), '{{}}')
              FROM core_memory.attachments x
             WHERE x.project_id = :project AND x.agent_id = :agent) AS labels
    FROM (SELECT 1) AS one LEFT JOIN b ON true
    """
)
# A block has a label for the agent while it is attached and its newest version has that label.
LAST_LABELLED = sql(
    f"""
    WITH attached_blocks AS (
        SELECT block_id, attach_time, detach_time FROM core_memory.attachment_history
        WHERE project_id = :project AND agent_id = :agent
        UNION ALL
        SELECT block_id, create_time, CAST('infinity' AS timestamptz) FROM core_memory.attachments
        WHERE project_id = :project AND agent_id = :agent
    ), labels AS (
        SELECT block_id, label, create_time,
               lead(create_time, 1, CAST('infinity' AS timestamptz))
                   OVER (PARTITION BY block_id ORDER BY revision) AS end_time
        FROM core_memory.block_versions
        WHERE project_id = :project AND block_id IN (SELECT block_id FROM attached_blocks)
    ), last_labelled AS (
        SELECT m.block_id, max(least(m.detach_time, l.end_time)) AS end_time
        FROM attached_blocks m JOIN labels l ON l.block_id = m.block_id
        WHERE l.label = :label AND l.create_time <= m.detach_time AND l.end_time > m.attach_time
        GROUP BY m.block_id
    )
    SELECT {BLOCK} FROM last_labelled
    JOIN core_memory.blocks b ON b.project_id = :project AND b.id = last_labelled.block_id
    ORDER BY last_labelled.end_time DESC, b.id DESC LIMIT 1
    """
)

# All columns of a block `b` that is made of a version.
_PAST_BLOCK = f"""
    b.id, {content_of("b")}, b.create_time, b.update_time,
    CAST(NULL AS timestamptz) AS delete_time,
    (SELECT coalesce(array_agg(m.agent_id ORDER BY m.position), '{{}}') FROM (
        SELECT x.agent_id, x.position FROM core_memory.attachments x
         WHERE x.project_id = :project AND x.block_id = b.id AND x.create_time <= :time
        UNION ALL
        SELECT h.agent_id, h.position FROM core_memory.attachment_history h
         WHERE h.project_id = :project AND h.block_id = b.id
           AND h.attach_time <= :time AND h.detach_time > :time) m) AS agent_ids
"""

_CONDITIONS = {
    "block_id": "block_id = :block_id",
    "run_id": "run_id = :run_id",
    "agent_id": "agent_id = :agent_id",
    "since": "create_time >= CAST(:since AS timestamptz)",
}


def _past(members: str) -> str:
    """Returns the CTE ``b``: the blocks of ``members``, as they were, unless deleted then."""
    return f"""
    b AS (
        SELECT v.project_id, v.block_id AS id, {content_of("v")}, l.create_time,
               v.create_time AS update_time, m.position
        FROM {members} m
        JOIN core_memory.blocks l ON l.project_id = :project AND l.id = m.block_id
        CROSS JOIN LATERAL (
            SELECT * FROM core_memory.block_versions
            WHERE project_id = :project AND block_id = m.block_id AND create_time <= :time
            ORDER BY revision DESC LIMIT 1) v
        WHERE v.operation <> 'delete')
    """


AS_OF = sql(
    f"""
    WITH {_past("(SELECT CAST(:block AS text) AS block_id, 0 AS position)")}
    SELECT {_PAST_BLOCK} FROM b
    """
)
AGENT_BLOCKS = sql(
    f"""
    SELECT {BLOCK}, x.position FROM core_memory.attachments x
    JOIN core_memory.blocks b ON b.project_id = x.project_id AND b.id = x.block_id
    WHERE x.project_id = :project AND x.agent_id = :agent
      AND (CAST(:label AS text) = '' OR x.label = :label)
      AND x.position > CAST(:after AS bigint)
    ORDER BY x.position LIMIT :count
    """
)
AGENT_BLOCKS_AS_OF = sql(
    f"""
    WITH attached_blocks AS (
        SELECT block_id, position FROM core_memory.attachments
        WHERE project_id = :project AND agent_id = :agent AND create_time <= :time
        UNION ALL
        SELECT block_id, position FROM core_memory.attachment_history
        WHERE project_id = :project AND agent_id = :agent
          AND attach_time <= :time AND detach_time > :time
    ), {_past("attached_blocks")}
    SELECT {_PAST_BLOCK}, b.position FROM b
    WHERE (CAST(:label AS text) = '' OR b.label = :label)
      AND b.position > CAST(:after AS bigint)
    ORDER BY b.position LIMIT :count
    """
)
VERSIONS = sql(
    """
    SELECT * FROM core_memory.block_versions
    WHERE project_id = :project AND block_id = :block
      AND revision < CAST(:before AS bigint)
    ORDER BY revision DESC LIMIT :count
    """
)
VALUES = sql(
    """
    SELECT revision, value FROM core_memory.block_versions
    WHERE project_id = :project AND block_id = :block
      AND revision = ANY(CAST(:revisions AS bigint[]))
    """
)


def project_blocks_statement(*, labelled: bool, deleted: bool) -> SqlStatement:
    """Returns the statement that lists blocks of a project, with conditions that fit an index."""
    conditions = ["b.project_id = :project", "b.id > :after"]
    if labelled:
        conditions.append("b.label = :label")
    if not deleted:
        conditions.append("b.delete_time IS NULL")
    return sql(
        f"SELECT {BLOCK} FROM core_memory.blocks b WHERE {' AND '.join(conditions)}"
        " ORDER BY b.id LIMIT :count"
    )


def edits_statement(selection: EditSelection) -> SqlStatement:
    """Returns the statement that lists the matching versions, newest first in each block."""
    conditions = [_CONDITIONS[name] for name in edits_parameters(selection)]
    return sql(
        "SELECT block_id, revision FROM core_memory.block_versions WHERE "
        + " AND ".join(["project_id = :project", *conditions])
        + " ORDER BY block_id, revision DESC"
    )


def edits_parameters(selection: EditSelection) -> dict[str, Any]:
    """Returns the parameters of the statement, except the project."""
    values = {name: getattr(selection, name) for name in _CONDITIONS}
    return {name: value for name, value in values.items() if value}
