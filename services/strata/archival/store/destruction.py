"""Destroys passages; a tombstone stays until they are removed from the index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from strata.archival.store.rows import EMPTIED, LOCK_PASSAGES, PASSAGES, UNEXPIRED
from strata.protocol.errors import StrataError, UnavailableError
from strata.shared.db import Database, DatabaseConnection, SqlStatement, sql
from strata.shared.logs import get_logger
from strata.shared.polling import keep_polling

_log = get_logger(__name__)

_ARCHIVE_BATCH = 50


def destroy_sql(which: str, *, limit: str = "") -> SqlStatement:
    """Returns a statement that destroys passages, and returns the numbers of them and versions.

    Args:
        which: A condition on passages ``p`` in archives ``a``.
        limit: SQL after the condition, such as an order and a limit.
    """
    return sql(
        f"""
        WITH destroyed AS (
            SELECT p.id, p.archive_id, p.tags, p.deleted FROM {PASSAGES}
            WHERE p.project_id = :project AND NOT p.purge AND {which}
            {limit or LOCK_PASSAGES}
        ), emptied AS (
            UPDATE archival.passages p SET {EMPTIED}
            FROM destroyed d WHERE p.project_id = :project AND p.id = d.id
        ), deleted_versions AS (
            DELETE FROM archival.passage_versions v USING destroyed d
            WHERE v.project_id = :project AND v.passage_id = d.id RETURNING v.passage_id
        ), without_signature AS (
            DELETE FROM archival.passage_likeness l USING destroyed d
            WHERE l.project_id = :project AND l.passage_id = d.id
        ), without_vector AS (
            DELETE FROM archival.passage_vectors v USING destroyed d
            WHERE v.project_id = :project AND v.passage_id = d.id
        ), counted AS (
            UPDATE archival.archives a SET passage_count = a.passage_count - d.count
            FROM (SELECT archive_id, count(*) AS count FROM destroyed WHERE NOT deleted
                  GROUP BY archive_id) d
            WHERE a.project_id = :project AND a.id = d.archive_id
        ), untagged AS (
            INSERT INTO archival.archive_tags (project_id, archive_id, tag, count)
            SELECT :project, archive_id, tag, -count(*) FROM destroyed d, unnest(d.tags) AS tag
            WHERE NOT deleted GROUP BY archive_id, tag ORDER BY archive_id, tag
            ON CONFLICT (project_id, archive_id, tag)
            DO UPDATE SET count = archive_tags.count + excluded.count
        )
        SELECT (SELECT count(*) FROM destroyed) AS passages,
               (SELECT count(*) FROM deleted_versions) AS versions
        """
    )


# The cutoff is computed beforehand, because with row security an expression with a column
# cannot use the index.
_FIND = sql(
    """
    WITH expiring_archives AS MATERIALIZED (
        SELECT project_id, id, now() - time_to_live * interval '1 second' AS cutoff
        FROM archival.archives WHERE time_to_live > 0
    )
    SELECT project_id, id FROM expiring_archives e
    WHERE (project_id, id) > (:after_project, :after) AND EXISTS (
        SELECT 1 FROM archival.passages p
        WHERE p.project_id = e.project_id AND p.archive_id = e.id AND NOT p.purge
          AND p.create_time <= e.cutoff)
    ORDER BY project_id, id LIMIT :count
    """
)
_EXPIRED = destroy_sql(
    """
    p.archive_id = :archive AND p.create_time <= (
        SELECT now() - time_to_live * interval '1 second' FROM archival.archives
        WHERE project_id = :project AND id = :archive AND time_to_live > 0)
    """,
    limit=f"ORDER BY p.create_time, p.id LIMIT :count {LOCK_PASSAGES} SKIP LOCKED",
)
_EXPIRED_SAME = destroy_sql(
    "p.archive_id = :archive AND NOT p.deleted AND p.content_hash = ANY(CAST(:hashes AS text[]))"
    f" AND NOT {UNEXPIRED}"
)


async def destroy_expired_same(
    connection: DatabaseConnection, project_id: str, archive_id: str, hashes: Sequence[str]
) -> None:
    """Destroys expired passages that have the same texts as new ones."""
    values: dict[str, Any] = {"project": project_id, "archive": archive_id, "hashes": list(hashes)}
    await connection.execute(_EXPIRED_SAME, values)


class Expiry:
    """Destroys expired passages; replicas may do so concurrently.

    Args:
        database: Connects with the database role of the service.
        worker: Connects with the worker role, which sees the archives with a time-to-live.
        batch: Passages destroyed in one transaction.
        poll: Seconds between two runs.
        wake: Wakes the indexer after a commit.
    """

    def __init__(
        self,
        database: Database,
        worker: Database,
        *,
        batch: int,
        poll: float,
        wake: Callable[[], None],
    ) -> None:
        self._database = database
        self._worker = worker
        self._batch = batch
        self._poll = poll
        self._wake = wake

    async def destroy_expired(self) -> int:
        """Destroys a batch of expired passages in each archive; returns their number.

        An archive whose passages cannot be destroyed does not stop the others.

        Raises:
            UnavailableError: The database cannot be reached.
        """
        total = 0
        after = ("", "")
        while True:
            values = {"after_project": after[0], "after": after[1], "count": _ARCHIVE_BATCH}
            archives = await self._worker.system_query(_FIND, values)
            for row in archives:
                total += await self._destroy_in(row.project_id, row.id)
            if len(archives) < _ARCHIVE_BATCH:
                return total
            after = (archives[-1].project_id, archives[-1].id)

    async def _destroy_in(self, project_id: str, archive_id: str) -> int:
        values = {"project": project_id, "archive": archive_id, "count": self._batch}
        try:
            async with self._database.transaction(project_id=project_id) as connection:
                row = (await connection.execute(_EXPIRED, values)).one()
        except UnavailableError:
            raise
        except StrataError as error:
            _log.warning(
                "expired passages not destroyed",
                project_id=project_id,
                archive_id=archive_id,
                error=repr(error),
            )
            return 0
        self._wake()
        return int(row.passages)

    async def run(self) -> None:
        """Destroys expired passages periodically, until cancelled."""
        await keep_polling(self._destroy_all, self._poll, "expired passages are not destroyed")

    async def _destroy_all(self) -> None:
        while await self.destroy_expired():
            pass
