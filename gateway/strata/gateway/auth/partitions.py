"""Finds the partition of a project for calls that the gateway itself makes."""

from __future__ import annotations

from strata.shared.db import Database, sql
from strata.shared.partitions import DEFAULT_PARTITION

# About 200 bytes each.
_MOST_KNOWN = 100_000
_PARTITION = sql("SELECT partition FROM gateway.projects WHERE project_id = :project")


class ProjectPartitions:
    """Caches the partitions of projects without expiry: a project's partition never changes.

    Args:
        database: Connections with the service role.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._partitions: dict[str, str] = {}

    def note(self, project_id: str, partition: str) -> None:
        """Keeps the partition of a project that was read elsewhere."""
        if len(self._partitions) >= _MOST_KNOWN:
            self._partitions.clear()
        self._partitions[project_id] = partition

    async def of(self, project_id: str) -> str:
        """Returns the partition of a project; the default one if there is no such project.

        Raises:
            UnavailableError: The database cannot be reached.
        """
        cached = self._partitions.get(project_id)
        if cached is not None:
            return cached
        values = {"project": project_id}
        result = await self._database.execute(
            _PARTITION, values, project_id=project_id, read_only=True
        )
        partition: str | None = result.scalar_one_or_none()
        if partition is None:
            return DEFAULT_PARTITION
        self.note(project_id, partition)
        return partition
