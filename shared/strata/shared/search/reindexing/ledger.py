"""The stored state of indexes in PostgreSQL: serving generations and rebuilds."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import asyncpg

from strata.protocol.errors import FailedPreconditionError, NotFoundError, Reason
from strata.shared.db import Database, DatabaseConnection, Row, sql
from strata.shared.idempotency.request_table import answered_or
from strata.shared.ids import new_id
from strata.shared.search.indexing.generations import Serving
from strata.shared.search.reindexing.state import CopyProgress, FoundCounts, Phase, Reindex

_NOTHING = sql("SELECT 1")
_AWAKE_S = 20.0
_ACTIVE = "('building', 'checking', 'switched')"


class Ledger:
    """The index tables of one service; see `schema`.

    Args:
        worker: Connects as the service's worker role.
        schema: The service's schema.
    """

    def __init__(self, worker: Database, schema: str) -> None:
        self._worker = worker
        self._sql = _Statements(schema)

    async def serving(self, slot: str) -> Serving | None:
        """Returns the serving generation of a slot; None if it was never stored."""
        rows = await self._worker.system_query(self._sql.serving, {"slot": slot})
        return _serving(rows[0]) if rows else None

    async def slots(self, prefix: str) -> list[Serving]:
        """Returns the serving generations of all slots with the prefix."""
        values = {"low": prefix, "high": prefix + "~"}
        return [_serving(row) for row in await self._worker.system_query(self._sql.slots, values)]

    async def written(self, slot: str) -> list[Serving]:
        """Returns the generations to write, the serving one first; empty if never stored."""
        rows = await self._worker.system_query(self._sql.written, {"slot": slot})
        if not rows:
            return []
        row = rows[0]
        generations = [_serving(row)]
        for stored in (row.source, row.target):
            if stored is not None and (other := _from_json(stored)) != generations[0]:
                generations.append(other)
        return generations

    async def keep(self, serving: Serving) -> Serving:
        """Stores the serving generation unless one is stored; returns the stored one."""
        async with self._worker.system_transaction() as connection:
            await connection.execute(self._sql.keep, asdict(serving))
            row = (await connection.execute(self._sql.serving, {"slot": serving.slot})).one()
        return _serving(row)

    async def start(self, source: Serving, target: Serving, total: int, request_id: str) -> Reindex:
        """Starts to rebuild a whole collection.

        Args:
            source: The serving generation, if none was stored.
            target: The generation to build; its name gets an unused number.
            total: Documents to copy.
            request_id: A repeated request returns the rebuild of the first.

        Raises:
            FailedPreconditionError: ``IN_USE``: another rebuild is not finished.
        """

        async def find_answer() -> Reindex | None:
            if not request_id:
                return None
            async with self._worker.system_transaction(read_only=True) as connection:
                return await repeated_reindex(connection, self._sql.schema, "", request_id)

        existing = await find_answer()
        if existing is not None:
            return existing
        return await answered_or(self._start(source, target, total, request_id), find_answer)

    async def _start(
        self, source: Serving, target: Serving, total: int, request_id: str
    ) -> Reindex:
        async with self._worker.system_transaction() as connection:
            await connection.execute(self._sql.keep, asdict(source))
            row = (await connection.execute(self._sql.number, {"slot": source.slot})).one()
            numbered = f"{target.generation}-r{row.rebuilds}"
            serving = Serving(target.slot, numbered, target.model, target.dim, target.normalized)
            return await insert_reindex(
                connection,
                self._sql.schema,
                ("", source.slot, ""),
                (_serving(row), serving),
                total,
                request_id,
            )

    async def latest(self, slot: str, project_id: str = "", archive_id: str = "") -> Reindex | None:
        """Returns the newest rebuild of a collection or of an archive."""
        values = {"project": project_id, "slot": slot, "archive": archive_id}
        rows = await self._worker.system_query(self._sql.latest, values)
        return _reindex(rows[0]) if rows else None

    @asynccontextmanager
    async def claim(self, slots: Sequence[str], grace: float) -> AsyncIterator[Reindex | None]:
        """Claims a rebuild that has work to do, for the duration of the block.

        Args:
            slots: The collections to consider.
            grace: Seconds after a switch until the rebuild has work again.
        """
        values = {"slots": list(slots), "grace": timedelta(seconds=grace)}
        async with self._worker.system_transaction(read_only=True) as connection:
            row = (await connection.execute(self._sql.claim, values)).one_or_none()
            async with _kept_awake(connection):
                yield None if row is None else _reindex(row)

    async def advance(self, job: Reindex, progress: CopyProgress) -> None:
        """Stores the progress of the copy, unless the rebuild has ended meanwhile."""
        values = {
            "project": job.project_id,
            "id": job.id,
            "cursor": list(progress.cursor),
            "done": progress.done,
            "sample": json.dumps([list(key) for key in progress.sample]),
        }
        async with self._worker.system_transaction() as connection:
            await connection.execute(self._sql.advance, values)

    async def move(
        self, job: Reindex, phase: Phase, *, note: str = "", share: FoundCounts | None = None
    ) -> Reindex:
        """Moves the rebuild of a whole collection to another phase, and sets what then serves.

        Raises:
            FailedPreconditionError: The rebuild is no longer in the phase of ``job``.
        """
        async with self._worker.system_transaction() as connection:
            moved = await move_reindex(
                connection, self._sql.schema, job, phase, note=note, share=share
            )
            if moved.phase.new_serves != job.phase.new_serves:
                await connection.execute(self._sql.serve, asdict(moved.serving))
        return moved

    async def cleaned(self, job: Reindex) -> None:
        """Stores that the unneeded generation has been removed."""
        async with self._worker.system_transaction() as connection:
            await connection.execute(self._sql.cleaned, {"project": job.project_id, "id": job.id})


@asynccontextmanager
async def _kept_awake(connection: DatabaseConnection) -> AsyncIterator[None]:
    """Prevents PostgreSQL from ending an idle transaction that holds a lock for a long step."""
    over = asyncio.Event()

    async def keep() -> None:
        while not over.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_AWAKE_S):
                    await over.wait()
                return
            await connection.execute(_NOTHING)

    keeper = asyncio.create_task(keep())
    try:
        yield
    finally:
        over.set()
        await asyncio.wait([keeper])


async def insert_reindex(
    connection: DatabaseConnection,
    schema: str,
    where: tuple[str, str, str],
    generations: tuple[Serving, Serving],
    total: int,
    request_id: str,
) -> Reindex:
    """Stores a new rebuild.

    Args:
        connection: Connection of a tenant or worker.
        schema: The service's schema.
        where: Project, slot and archive; project and archive are empty for a whole collection.
        generations: The source and the target.
        total: Documents to copy.
        request_id: Id of the request that starts it.

    Raises:
        FailedPreconditionError: ``IN_USE``: another rebuild is not finished.
    """
    project_id, slot, archive_id = where
    source, target = generations
    values = {
        "project": project_id,
        "id": new_id("reindex"),
        "slot": slot,
        "archive": archive_id,
        "request": request_id,
        "source": json.dumps(asdict(source)),
        "target": json.dumps(asdict(target)),
        "total": total,
    }
    try:
        row = (await connection.execute(_Statements(schema).insert, values)).one()
    except asyncpg.IntegrityConstraintViolationError as error:
        raise FailedPreconditionError(
            "another rebuild is running, or the last one is being cleaned up; try again later",
            reason=Reason.IN_USE,
            metadata={"used_by": archive_id or slot},
        ) from error
    return _reindex(row)


async def move_reindex(
    connection: DatabaseConnection,
    schema: str,
    job: Reindex,
    phase: Phase,
    *,
    note: str = "",
    share: FoundCounts | None = None,
) -> Reindex:
    """Moves a rebuild from its phase to another.

    Raises:
        FailedPreconditionError: The rebuild has moved to another phase meanwhile.
    """
    new_share = share or job.share
    values = {
        "project": job.project_id,
        "id": job.id,
        "from": job.phase.value,
        "to": phase.value,
        "note": note,
        "share": json.dumps([new_share.asked, new_share.old, new_share.new]),
    }
    row = (await connection.execute(_Statements(schema).move, values)).one_or_none()
    if row is None:
        raise not_in_phase(job)
    return _reindex(row)


async def read_reindex(
    connection: DatabaseConnection, schema: str, project_id: str, slot: str, archive_id: str
) -> Reindex | None:
    """Returns the newest rebuild; for a connection of a tenant."""
    values = {"project": project_id, "slot": slot, "archive": archive_id}
    row = (await connection.execute(_Statements(schema).latest, values)).one_or_none()
    return None if row is None else _reindex(row)


async def repeated_reindex(
    connection: DatabaseConnection, schema: str, project_id: str, request_id: str
) -> Reindex | None:
    """Returns the rebuild that a request started."""
    values = {"project": project_id, "request": request_id}
    row = (await connection.execute(_Statements(schema).repeated, values)).one_or_none()
    return None if row is None else _reindex(row)


def not_in_phase(job: Reindex) -> FailedPreconditionError:
    """Returns the error for a step that does not fit the phase of the rebuild."""
    return FailedPreconditionError(
        f"the rebuild is in phase {job.phase.value}, or has just left it",
        reason=Reason.IN_USE,
        metadata={"used_by": job.id, "phase": job.phase.value},
    )


def no_reindex(slot: str) -> NotFoundError:
    """Returns the error for a collection that is not being rebuilt."""
    return NotFoundError(
        f"{slot} is not being rebuilt.", reason=Reason.REINDEX_NOT_FOUND, metadata={"id": slot}
    )


class _Statements:
    """The SQL statements of one service; queries for open rebuilds use partial indexes."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        indexes, jobs = f"{schema}.serving_indexes", f"{schema}.reindexes"
        columns = "slot, generation, model, dim, normalized"
        self.serving = sql(
            f"SELECT {columns} FROM {indexes} WHERE project_id = '' AND slot = :slot"
        )
        self.slots = sql(
            f"SELECT {columns} FROM {indexes}"
            " WHERE project_id = '' AND slot >= :low AND slot < :high ORDER BY slot"
        )
        self.written = sql(
            f"""
            SELECT s.slot, s.generation, s.model, s.dim, s.normalized, j.source, j.target
            FROM {indexes} s LEFT JOIN {jobs} j
              ON j.project_id = '' AND j.slot = s.slot AND j.archive_id = ''
             AND NOT j.cleaned AND j.phase IN {_ACTIVE}
            WHERE s.project_id = '' AND s.slot = :slot
            """
        )
        self.keep = sql(
            f"INSERT INTO {indexes} (project_id, {columns})"
            " VALUES ('', :slot, :generation, :model, :dim, :normalized) ON CONFLICT DO NOTHING"
        )
        self.serve = sql(
            f"UPDATE {indexes} SET generation = :generation, model = :model, dim = :dim,"
            " normalized = :normalized, update_time = now()"
            " WHERE project_id = '' AND slot = :slot"
        )
        self.number = sql(
            f"UPDATE {indexes} SET rebuilds = rebuilds + 1"
            f" WHERE project_id = '' AND slot = :slot RETURNING {columns}, rebuilds"
        )
        self.insert = sql(
            f"""
            INSERT INTO {jobs}
                (project_id, id, slot, archive_id, request_id, source, target, phase, total)
            VALUES (:project, :id, :slot, :archive, :request, CAST(:source AS jsonb),
                    CAST(:target AS jsonb), 'building', :total)
            RETURNING *
            """
        )
        self.repeated = sql(
            f"SELECT * FROM {jobs} WHERE project_id = :project AND request_id = :request"
        )
        self.latest = sql(
            f"SELECT * FROM {jobs} WHERE project_id = :project AND slot = :slot"
            " AND archive_id = :archive ORDER BY create_time DESC LIMIT 1"
        )
        self.claim = sql(
            f"""
            WITH waiting AS MATERIALIZED (
                SELECT * FROM {jobs} WHERE NOT cleaned AND slot = ANY(CAST(:slots AS text[]))
                  AND (phase <> 'switched' OR phase_time < now() - CAST(:grace AS interval))
                ORDER BY phase_time LIMIT 16
            )
            SELECT * FROM waiting WHERE pg_try_advisory_xact_lock(hashtextextended(id, 2)) LIMIT 1
            """
        )
        self.advance = sql(
            f"UPDATE {jobs} SET cursor = CAST(:cursor AS text[]), done = :done,"
            " sample = CAST(:sample AS jsonb)"
            " WHERE project_id = :project AND id = :id AND phase = 'building'"
        )
        self.move = sql(
            f"""
            UPDATE {jobs} SET phase = :to, note = :note, share = CAST(:share AS jsonb),
                phase_time = now()
            WHERE project_id = :project AND id = :id AND phase = :from RETURNING *
            """
        )
        self.cleaned = sql(
            f"UPDATE {jobs} SET cleaned = true WHERE project_id = :project AND id = :id"
        )


def _serving(row: Row) -> Serving:
    return Serving(row.slot, row.generation, row.model, row.dim, row.normalized)


def _from_json(stored: Any) -> Serving:
    return Serving(**_loaded(stored))


def _loaded(stored: Any) -> Any:
    return json.loads(stored) if isinstance(stored, str) else stored


def _reindex(row: Row) -> Reindex:
    return Reindex(
        id=row.id,
        slot=row.slot,
        project_id=row.project_id,
        archive_id=row.archive_id,
        source=_from_json(row.source),
        target=_from_json(row.target),
        phase=Phase(row.phase),
        create_time=row.create_time,
        phase_time=row.phase_time,
        progress=CopyProgress(
            tuple(row.cursor), row.done, [(key[0], key[1]) for key in _loaded(row.sample)]
        ),
        total=row.total,
        share=FoundCounts(*_loaded(row.share)),
        note=row.note,
        cleaned=row.cleaned,
    )
