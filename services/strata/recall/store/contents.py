"""Reads the messages of a collection for a rebuild, batch by batch in the order of keys."""

from __future__ import annotations

from collections.abc import Collection

from strata.shared.db import Database, sql

_COUNT = sql("SELECT count(*) FROM recall.messages WHERE index_state <> 'none'")
_AFTER = sql(
    """
    SELECT project_id, id, index_state FROM recall.messages
    WHERE (project_id, id) > (:project, :id) ORDER BY project_id, id LIMIT :limit
    """
)
_GONE = sql(
    """
    SELECT w.id FROM unnest(CAST(:ids AS text[])) w(id)
    LEFT JOIN recall.messages m ON m.project_id = :project AND m.id = w.id WHERE m.id IS NULL
    """
)

Key = tuple[str, str]


class MessageContents:
    """Reads messages in the order of a rebuild.

    Args:
        database: Connects with the database role of the service.
        worker: Connects with the worker role.
    """

    def __init__(self, database: Database, worker: Database) -> None:
        self._database = database
        self._worker = worker

    async def count(self) -> int:
        """Returns the number of messages of all projects that are to be indexed."""
        async with self._worker.system_transaction(read_only=True) as connection:
            return int((await connection.execute(_COUNT)).scalar_one())

    async def after(self, key: Key, limit: int) -> tuple[list[Key], Key] | None:
        """Returns the next keys of messages to index, all of one project, and the last key read.

        Returns None at the end.
        """
        values = {"project": key[0], "id": key[1], "limit": limit}
        async with self._worker.system_transaction(read_only=True) as connection:
            rows = (await connection.execute(_AFTER, values)).all()
        if not rows:
            return None
        same = [row for row in rows if row.project_id == rows[0].project_id]
        keys = [(row.project_id, row.id) for row in same if row.index_state != "none"]
        return keys, (same[-1].project_id, same[-1].id)

    async def deleted(self, project_id: str, ids: Collection[str]) -> list[str]:
        """Returns the ids among `ids` whose messages are deleted."""
        async with self._database.transaction(project_id=project_id, read_only=True) as connection:
            rows = await connection.execute(_GONE, {"project": project_id, "ids": list(ids)})
            return [row.id for row in rows]
