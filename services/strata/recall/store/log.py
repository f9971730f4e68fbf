"""SQL for the log of a conversation, including the messages before a fork.

A fork has its own rows: copies of the window that it started with, and its new messages. Its
log consists of these rows and the rows of the conversations that it was forked from (its lineage),
up to the fork. All of them use the same numbering of messages. If two rows have the same number,
the row of the nearer conversation is used.
"""

from __future__ import annotations

from collections.abc import Sequence

from strata.recall.store.rows import COLUMNS

LINEAGE = """
    lineage AS MATERIALIZED (
        SELECT CAST(:conversation AS text) AS conversation_id,
               CAST(9223372036854775807 AS bigint) AS until, CAST(0 AS bigint) AS depth
        UNION ALL
        SELECT a.id, a.until, a.depth
        FROM recall.windows w,
             unnest(w.ancestor_ids, w.ancestor_untils) WITH ORDINALITY AS a(id, until, depth)
        WHERE w.project_id = :project AND w.conversation_id = :conversation
    )
"""
"""A common table expression: the conversation and those it was forked from, nearest first."""


def log_sql(conditions: Sequence[str], *, newest_first: bool = False) -> str:
    """Returns the SQL of a query for messages of a log, ordered by sequence.

    Its parameters are ``project``, ``conversation``, ``limit`` and the ones of the conditions. At
    most ``limit`` rows are read from each conversation of the lineage, by the primary key.

    Args:
        conditions: SQL conditions on ``m``, a row of ``recall.messages``.
        newest_first: Order by descending sequence.
    """
    order = "DESC" if newest_first else "ASC"
    condition = "".join(f" AND {condition}" for condition in conditions)
    return f"""
        WITH {LINEAGE}
        SELECT message.* FROM lineage l CROSS JOIN LATERAL (
            SELECT {", ".join(f"m.{column.strip()}" for column in COLUMNS.split(","))}
            FROM recall.messages m
            WHERE m.project_id = :project AND m.conversation_id = l.conversation_id COLLATE "C"
              AND m.sequence <= l.until {condition}
              AND NOT EXISTS (
                  SELECT FROM lineage n JOIN recall.messages nearer
                    ON nearer.project_id = :project
                   AND nearer.conversation_id = n.conversation_id COLLATE "C"
                   AND nearer.sequence = m.sequence AND nearer.sequence <= n.until
                  WHERE n.depth < l.depth)
            ORDER BY m.sequence {order} LIMIT :limit
        ) AS message
        ORDER BY message.sequence {order} LIMIT :limit
    """


POSITION = f"""
    WITH {LINEAGE}
    SELECT m.sequence FROM recall.messages m
    JOIN lineage l
      ON l.conversation_id COLLATE "C" = m.conversation_id AND m.sequence <= l.until
    WHERE m.project_id = :project AND m.id = :id
"""
"""SQL for the sequence of a message in a log; no row if it is not in the log."""
