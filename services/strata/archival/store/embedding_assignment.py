"""Stores the embedding model of each archive, and moves archives from one model to another.

An archive either follows the default of the server, stored as the empty name, or has its own model.
From the start of a move until it is finished, passages are written under both models.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from strata.archival.store.archives import missing_archive
from strata.shared.context import current_project
from strata.shared.db import Database, DatabaseConnection, sql
from strata.shared.idempotency.keys import request_id_reused
from strata.shared.idempotency.request_table import answered_or
from strata.shared.search.indexing.generations import Serving
from strata.shared.search.reindexing import FoundCounts, Phase, Reindex
from strata.shared.search.reindexing.ledger import (
    insert_reindex,
    move_reindex,
    no_reindex,
    read_reindex,
    repeated_reindex,
)

SCHEMA = "archival"
SLOT = "passages"

_WRITTEN = sql(
    "SELECT id, own_model, other_model FROM archival.archives"
    " WHERE project_id = :project AND id = ANY(CAST(:ids AS text[]))"
)
_LOCK = sql(
    "SELECT own_model, passage_count FROM archival.archives"
    " WHERE project_id = :project AND id = :id FOR UPDATE"
)
_BEGIN = sql(
    "UPDATE archival.archives SET other_model = :other WHERE project_id = :project AND id = :id"
)
_SERVE = sql(
    """
    UPDATE archival.archives SET own_model = :own, other_model = CAST(:other AS text),
        embedding_model = :model, embedding_dim = :dim, update_time = now()
    WHERE project_id = :project AND id = :id
    """
)
_SETTLE = sql(
    "UPDATE archival.archives SET other_model = NULL WHERE project_id = :project AND id = :id"
)


@dataclass(frozen=True, slots=True)
class EmbeddingAssignment:
    """The embedding models of an archive; an empty name means the default.

    Attributes:
        searched: The model that searches use.
        other: Another model that is also written; None if there is none.
    """

    searched: str = ""
    other: str | None = None

    @property
    def written(self) -> tuple[str, ...]:
        """The models that are written, the searched one first."""
        return (self.searched,) if self.other is None else (self.searched, self.other)


class EmbeddingAssignments:
    """Reads and changes the embedding models of archives.

    Args:
        database: Connects with the database role of the service.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def of(
        self, project_id: str, archive_ids: Collection[str]
    ) -> Mapping[str, EmbeddingAssignment]:
        """Returns the assignments of archives by id; missing archives are left out."""
        values = {"project": project_id, "ids": list(archive_ids)}
        async with self._database.transaction(project_id=project_id, read_only=True) as connection:
            rows = await connection.execute(_WRITTEN, values)
            return {row.id: EmbeddingAssignment(row.own_model, row.other_model) for row in rows}

    async def start(
        self,
        archive_id: str,
        model: str,
        request_id: str,
        generation_of: Callable[[str], Serving],
        default: Serving,
    ) -> Reindex:
        """Starts the rebuild of an archive of the current project.

        Args:
            archive_id: The archive.
            model: Its new model; empty keeps its model and makes new vectors.
            request_id: A repeated id returns the first response.
            generation_of: Returns the generation of archives with their own model.
            default: The generation of archives that follow the default.

        Raises:
            NotFoundError: ``ARCHIVE_NOT_FOUND``.
            FailedPreconditionError: ``IN_USE``: a rebuild is running already.
            AlreadyExistsError: ``REQUEST_ID_REUSED``.
        """

        async def find_answer() -> Reindex | None:
            async with self._database.transaction(read_only=True) as connection:
                return await _repeated(connection, archive_id, model, request_id)

        return await answered_or(
            self._start(archive_id, model, request_id, generation_of, default), find_answer
        )

    async def _start(
        self,
        archive_id: str,
        model: str,
        request_id: str,
        generation_of: Callable[[str], Serving],
        default: Serving,
    ) -> Reindex:
        project = current_project()
        async with self._database.transaction() as connection:
            result = await connection.execute(_LOCK, {"project": project, "id": archive_id})
            row = result.one_or_none()
            if row is None:
                raise missing_archive(archive_id)
            stored_assignment = await _repeated(connection, archive_id, model, request_id)
            if stored_assignment is not None:
                return stored_assignment
            source = generation_of(row.own_model) if row.own_model else default
            target = generation_of(model) if model else source
            job = await insert_reindex(
                connection,
                SCHEMA,
                (project, SLOT, archive_id),
                (source, target),
                row.passage_count,
                request_id,
            )
            if target != source:
                await connection.execute(
                    _BEGIN, {"project": project, "id": archive_id, "other": own_model(target)}
                )
        return job

    async def latest(self, archive_id: str) -> Reindex:
        """Returns the newest rebuild of an archive of the current project.

        Raises:
            NotFoundError: ``ARCHIVE_NOT_FOUND``, ``REINDEX_NOT_FOUND``.
        """
        project = current_project()
        async with self._database.transaction(read_only=True) as connection:
            result = await connection.execute(_WRITTEN, {"project": project, "ids": [archive_id]})
            if result.one_or_none() is None:
                raise missing_archive(archive_id)
            job = await read_reindex(connection, SCHEMA, project, SLOT, archive_id)
        if job is None:
            raise no_reindex(archive_id)
        return job

    async def move(self, job: Reindex, phase: Phase, note: str, share: FoundCounts) -> Reindex:
        """Moves a rebuild to another phase, and its archive to the model of that phase.

        Raises:
            FailedPreconditionError: The rebuild has moved to another phase.
        """
        archive = {"project": job.project_id, "id": job.archive_id}
        async with self._database.transaction(project_id=job.project_id) as connection:
            moved = await move_reindex(connection, SCHEMA, job, phase, note=note, share=share)
            if moved.phase.new_serves != job.phase.new_serves and job.source != job.target:
                serving = moved.serving
                other = own_model(moved.other) if phase.is_active else None
                values = {
                    "own": own_model(serving),
                    "other": other,
                    "model": serving.model,
                    "dim": serving.dim,
                }
                await connection.execute(_SERVE, {**archive, **values})
            elif not phase.is_active:
                await connection.execute(_SETTLE, archive)
        return moved


def own_model(generation: Serving) -> str:
    """Returns the own model of the archives of a generation; empty for the default."""
    return generation.slot.partition(":")[2]


async def _repeated(
    connection: DatabaseConnection, archive_id: str, model: str, request_id: str
) -> Reindex | None:
    """Returns the rebuild that the request started; None if it is new."""
    if not request_id:
        return None
    job = await repeated_reindex(connection, SCHEMA, current_project(), request_id)
    if job is not None and (job.archive_id != archive_id or model not in ("", job.target.model)):
        raise request_id_reused(request_id)
    return job
