"""What a rebuilt collection is filled from, batch by batch in the order of keys."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import text

from strata.shared.db import Database

_COUNT = text("SELECT count(*) FROM recall.messages WHERE index_state <> 'none'")
_AFTER = text(
    """
    SELECT project_id, id, index_state FROM recall.messages
    WHERE (project_id, id) > (:project, :id) ORDER BY project_id, id LIMIT :limit
    """
)
_GONE = text(
    """
    SELECT w.id FROM unnest(CAST(:ids AS text[])) w(id)
    LEFT JOIN recall.messages m ON m.project_id = :project AND m.id = w.id WHERE m.id IS NULL
    """
)

Key = tuple[str, str]


class MessageContents:
    """Messages in the order in which a rebuild takes them.

    Args:
        database: Connects as the service's service role.
        worker: Connects as its worker role.
    """

    def __init__(self, database: Database, worker: Database) -> None:
        self._database = database
        self._worker = worker

    async def count(self) -> int:
        """Returns how many messages of all projects are to be indexed."""
        async with self._worker.system_transaction(read_only=True) as connection:
            return int((await connection.execute(_COUNT)).scalar_one())

    async def after(self, key: Key, limit: int) -> tuple[list[Key], Key] | None:
        """Returns those of the next keys that are to be indexed, all of one project.

        Beside them the last key that was looked at; None at the end.
        """
        values = {"project": key[0], "id": key[1], "limit": limit}
        async with self._worker.system_transaction(read_only=True) as connection:
            rows = (await connection.execute(_AFTER, values)).all()
        if not rows:
            return None
        same = [row for row in rows if row.project_id == rows[0].project_id]
        found = [(row.project_id, row.id) for row in same if row.index_state != "none"]
        return found, (same[-1].project_id, same[-1].id)

    async def gone(self, project_id: str, ids: Collection[str]) -> list[str]:
        """Returns those of some messages that are deleted."""
        async with self._database.transaction(project_id=project_id, read_only=True) as connection:
            rows = await connection.execute(_GONE, {"project": project_id, "ids": list(ids)})
            return [row.id for row in rows]
