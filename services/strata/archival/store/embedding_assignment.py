"""Which embedding model each archive has, and its move from one to another.

An archive either follows the default of the server, written as the empty name, or has a model
of its own. While it moves, and until the move is finished, both are written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from sqlalchemy import text

from strata.archival.store.archives import missing_archive
from strata.shared.context import current_project
from strata.shared.db import Database
from strata.shared.errors import AlreadyExistsError, Reason
from strata.shared.vectors.reindex import Phase, Reindex, Serving, Share
from strata.shared.vectors.reindex.ledger import (
    insert_reindex,
    move_reindex,
    no_reindex,
    read_reindex,
    repeated_reindex,
)

SCHEMA = "archival"
SLOT = "passages"

_WRITTEN = text(
    "SELECT id, own_model, other_model FROM archival.archives"
    " WHERE project_id = :project AND id = ANY(CAST(:ids AS text[]))"
)
_LOCK = text(
    "SELECT own_model, passage_count FROM archival.archives"
    " WHERE project_id = :project AND id = :id FOR UPDATE"
)
_BEGIN = text(
    "UPDATE archival.archives SET other_model = :other WHERE project_id = :project AND id = :id"
)
_SERVE = text(
    """
    UPDATE archival.archives SET own_model = :own, other_model = CAST(:other AS text),
        embedding_model = :model, embedding_dim = :dim, update_time = now()
    WHERE project_id = :project AND id = :id
    """
)
_SETTLE = text(
    "UPDATE archival.archives SET other_model = NULL WHERE project_id = :project AND id = :id"
)


@dataclass(frozen=True, slots=True)
class Home:
    """The models under which the passages of an archive are indexed; empty is the default.

    Attributes:
        asked: The one that is searched.
        other: The one that is written beside it; None if there is none.
    """

    asked: str = ""
    other: str | None = None

    @property
    def written(self) -> tuple[str, ...]:
        """Both, the one that is searched first."""
        return (self.asked,) if self.other is None else (self.asked, self.other)


class EmbeddingAssignments:
    """See the module.

    Args:
        database: Connects as the service's service role.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def of(self, project_id: str, archive_ids: Collection[str]) -> Mapping[str, Home]:
        """Returns the homes of those of some archives that there are."""
        values = {"project": project_id, "ids": list(archive_ids)}
        async with self._database.transaction(project_id=project_id, read_only=True) as connection:
            rows = await connection.execute(_WRITTEN, values)
            return {row.id: Home(row.own_model, row.other_model) for row in rows}

    async def start(
        self,
        archive_id: str,
        model: str,
        request_id: str,
        generation_of: Callable[[str], Serving],
        default: Serving,
    ) -> Reindex:
        """Begins to rebuild an archive of the current project.

        Args:
            archive_id: The archive.
            model: Its new model; empty keeps the one it has, and writes its vectors anew.
            request_id: A repeated one gives the first answer.
            generation_of: The generation of archives with a model of their own.
            default: The generation of those without.

        Raises:
            NotFoundError: ``ARCHIVE_NOT_FOUND``.
            FailedPreconditionError: ``IN_USE``: it is rebuilt already.
            AlreadyExistsError: ``REQUEST_ID_REUSED``.
        """
        project = current_project()
        async with self._database.transaction() as connection:
            found = await connection.execute(_LOCK, {"project": project, "id": archive_id})
            row = found.one_or_none()
            if row is None:
                raise missing_archive(archive_id)
            if request_id:
                again = await repeated_reindex(connection, SCHEMA, project, request_id)
                if again is not None:
                    return _same(again, archive_id, model, request_id)
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
            found = await connection.execute(_WRITTEN, {"project": project, "ids": [archive_id]})
            if found.one_or_none() is None:
                raise missing_archive(archive_id)
            job = await read_reindex(connection, SCHEMA, project, SLOT, archive_id)
        if job is None:
            raise no_reindex(archive_id)
        return job

    async def move(self, job: Reindex, phase: Phase, note: str, share: Share) -> Reindex:
        """Brings a rebuild into another phase, and its archive to the model that serves then.

        Raises:
            FailedPreconditionError: It is in another phase by now.
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
    """Returns the model of an archive whose vectors are there; empty for the default."""
    return generation.slot.partition(":")[2]


def _same(job: Reindex, archive_id: str, model: str, request_id: str) -> Reindex:
    if job.archive_id == archive_id and model in ("", job.target.model):
        return job
    raise AlreadyExistsError(
        f"The request_id {request_id!r} was used before for something else.",
        reason=Reason.REQUEST_ID_REUSED,
        metadata={"request_id": request_id},
    )
