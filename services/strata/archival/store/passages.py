"""Stores passages in PostgreSQL, from which the index is derived."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

from strata.archival.domain.history import UploadProgress
from strata.archival.domain.passages import (
    Archive,
    ArchiveRef,
    Cursor,
    Filter,
    InsertedPassage,
    NewPassage,
    Passage,
    TagMatch,
)
from strata.archival.domain.store import NOT_REPEATABLE
from strata.archival.store.archives import missing_agent, missing_archive
from strata.archival.store.insertion import insert_alone, insert_passages
from strata.archival.store.receipts import RECEIPTS
from strata.archival.store.rows import (
    PASSAGE_COLUMNS,
    PASSAGES,
    UNEXPIRED,
    joined_archive,
    to_passage,
)
from strata.archival.store.words import (
    MOST_RANKED,
    pairs_of,
    pairs_sql,
    query_sql,
    storable,
)
from strata.protocol.errors import NotFoundError, Reason, UnavailableError
from strata.shared.context import current_project
from strata.shared.db import Database, DatabaseConnection, SqlStatement, sql
from strata.shared.idempotency.keys import RequestKey, request_id_reused
from strata.shared.search.result_merge import DatabaseSnapshot
from strata.shared.search.vectors.stop_words import without_stop_words

_GET = sql(
    f"SELECT {PASSAGE_COLUMNS} FROM {PASSAGES}"
    f" WHERE p.project_id = :project AND p.id = :id AND NOT p.purge AND {UNEXPIRED}"
)
# One row without an archive for an agent that has none, and no row if there is no such agent.
_ARCHIVES = sql(
    """
    SELECT x.archive_id FROM archival.agents a LEFT JOIN archival.agent_archives x
        ON x.project_id = :project AND x.agent_id = a.agent_id
    WHERE a.project_id = :project AND a.agent_id = :agent ORDER BY x.archive_id
    """
)
_MISSING_ARCHIVE = sql(
    """
    SELECT named.id FROM unnest(CAST(:ids AS text[])) WITH ORDINALITY AS named(id, place)
    WHERE NOT EXISTS (
        SELECT FROM archival.archives a WHERE a.project_id = :project AND a.id = named.id)
    ORDER BY named.place LIMIT 1
    """
)
_WAITING = "p.indexed_revision < p.revision"
_MOST_OWN_ARCHIVES = 1000


class PostgresPassageStore:
    """Implements `PassageStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        # By project and agent. It may be outdated: the statement that uses it verifies it.
        self._own_archives: OrderedDict[tuple[str, str], str] = OrderedDict()

    async def insert(
        self,
        archive_ref: ArchiveRef,
        passages: Sequence[NewPassage],
        template: Archive,
        request: RequestKey = NOT_REPEATABLE,
    ) -> list[InsertedPassage]:
        """Stores passages; creates the agent's own archive if needed."""
        agent_id = archive_ref.agent_id
        owner = (current_project(), agent_id)
        archive_id = archive_ref.archive_id or self._own_archives.get(owner, "")
        if archive_id and len(passages) == 1 and passages[0].vector is None:
            new = await insert_alone(self._database, archive_id, agent_id, passages[0], request)
            if new is not None:
                self._remember(archive_ref, new)
                return [new]
        async with self._database.transaction() as connection:
            inserted = await insert_passages(connection, archive_ref, passages, template, request)
        if inserted:
            self._remember(archive_ref, inserted[0])
        return inserted

    def _remember(self, archive_ref: ArchiveRef, stored: InsertedPassage) -> None:
        """Keeps the archive of an agent's passage as its own one, and as the last one used."""
        if not archive_ref.agent_id:
            return
        owner = (current_project(), archive_ref.agent_id)
        self._own_archives[owner] = stored.passage.archive_id
        self._own_archives.move_to_end(owner)
        if len(self._own_archives) > _MOST_OWN_ARCHIVES:
            self._own_archives.popitem(last=False)

    async def progress(self, request: RequestKey) -> UploadProgress:
        """Returns the stored progress of an upload."""
        if not request.id:
            return UploadProgress()
        async with self._database.transaction(read_only=True) as connection:
            stored_answer = await RECEIPTS.find(connection, request)
        return UploadProgress() if stored_answer is None else _progress_from_json(stored_answer)

    async def upload(
        self,
        archive_ref: ArchiveRef,
        passages: Sequence[NewPassage],
        template: Archive,
        request: RequestKey,
        progress: UploadProgress,
        digest: str,
    ) -> UploadProgress:
        """Stores the next passages of an upload, unless a concurrent stream has stored some."""
        async with self._database.transaction() as connection:
            state = await self._state(connection, request, progress)
            if state.received > progress.received:
                return state
            if state.complete:
                raise request_id_reused(request.id)
            inserted = await insert_passages(
                connection, archive_ref, passages, template, NOT_REPEATABLE
            )
            state = state.plus(inserted, digest)
            await RECEIPTS.answer(connection, request, _progress_to_json(state))
            return state

    async def complete(self, request: RequestKey, progress: UploadProgress) -> UploadProgress:
        """Records the end of an upload."""
        async with self._database.transaction() as connection:
            state = await self._state(connection, request, progress)
            completed = replace(state, complete=True)
            await RECEIPTS.answer(connection, request, _progress_to_json(completed))
            return completed

    async def _state(
        self, connection: DatabaseConnection, request: RequestKey, progress: UploadProgress
    ) -> UploadProgress:
        if not request.id:
            return progress
        stored_answer = await RECEIPTS.claim(connection, request, lock=True)
        state = UploadProgress() if stored_answer is None else _progress_from_json(stored_answer)
        if state.received < progress.received:
            raise UnavailableError(
                "The progress of this upload has expired: send it again.", retry_after=0.0
            )
        return state

    async def get(self, passage_id: str, *, show_deleted: bool = False) -> Passage:
        """Returns a passage."""
        async with self._database.transaction(read_only=True) as connection:
            result = await connection.execute(
                _GET, {"project": current_project(), "id": passage_id}
            )
            row = result.one_or_none()
        if row is None or (row.deleted and not show_deleted):
            raise missing_passage(passage_id)
        return to_passage(row)

    async def page(self, within: Filter, count: int, cursor: Cursor | None) -> list[Passage]:
        """Returns passages by time, after a cursor."""
        conditions = _conditions(within)
        values: dict[str, Any] = {**_filter_values(within), "count": count}
        if cursor is not None:
            conditions.append("(p.create_time, p.id) > (:after_time, :after_id)")
            values["after_time"], values["after_id"] = cursor
        statement = sql(
            f"SELECT {PASSAGE_COLUMNS} FROM {PASSAGES}"
            f" WHERE {' AND '.join(conditions)} ORDER BY p.create_time, p.id LIMIT :count"
        )
        async with self._database.transaction(read_only=True) as connection:
            rows = (await connection.execute(statement, values)).all()
        # In a thread, since converting a page of 500 passages would block the event loop.
        return await asyncio.to_thread(lambda: [to_passage(row) for row in rows])

    async def archive_ids(self, agent_id: str) -> list[str]:
        """Returns the ids of an agent's archives."""
        async with self._database.transaction(read_only=True) as connection:
            result = await connection.execute(
                _ARCHIVES, {"project": current_project(), "agent": agent_id}
            )
            rows = result.all()
        if not rows:
            raise missing_agent(agent_id)
        return [row.archive_id for row in rows if row.archive_id is not None]

    async def check_archives(self, archive_ids: Sequence[str]) -> None:
        """Refuses archives that do not exist."""
        values = {"project": current_project(), "ids": list(archive_ids)}
        async with self._database.transaction(read_only=True) as connection:
            missing_id = (await connection.execute(_MISSING_ARCHIVE, values)).scalar()
        if missing_id is not None:
            raise missing_archive(missing_id)

    @asynccontextmanager
    async def open_snapshot(
        self, words: str, within: Filter, limit: int, *, all_words: bool = False
    ) -> AsyncIterator[DatabaseSnapshot[Passage]]:
        """Opens a snapshot of the passages that meet the conditions."""
        async with self._database.transaction(snapshot=True, generic_plan=True) as connection:
            yield _Snapshot(connection, words, within, limit, () if all_words else (_WAITING,))

    async def by_words(self, words: str, within: Filter, limit: int) -> list[tuple[Passage, float]]:
        """Searches passages by words, under the conditions."""
        async with self._database.transaction(read_only=True) as connection:
            return await _find(connection, words, within, limit)


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """Implements `DatabaseSnapshot`."""

    connection: DatabaseConnection
    words: str
    within: Filter
    limit: int
    searched: tuple[str, ...]

    async def waiting(self) -> list[tuple[Passage, float]]:
        """Searches pending passages by words, or all passages if the index lacks a word."""
        return await _find(self.connection, self.words, self.within, self.limit, *self.searched)

    async def by_ids(self, ids: Sequence[str]) -> dict[str, Passage]:
        """Returns passages by id."""
        statement = _by_ids(tuple(_conditions(self.within)))
        values = {**_filter_values(self.within), "ids": list(ids)}
        rows = await self.connection.execute(statement, values)
        return {row.id: to_passage(row) for row in rows}


async def _find(
    connection: DatabaseConnection, words: str, within: Filter, limit: int, *more: str
) -> list[tuple[Passage, float]]:
    values = {
        **_filter_values(within),
        # The configuration "simple" has no stop words: every text with "the" would match.
        "words": without_stop_words(storable(words)),
        "pairs": pairs_of(words),
        "limit": limit,
    }
    statement = _by_words((*_conditions(within), *more))
    rows = (await connection.execute(statement, values)).all()
    return [(to_passage(row), row.rank) for row in rows]


# The cache has one statement for each combination of conditions; values are bound.
@cache
def _by_ids(conditions: tuple[str, ...]) -> SqlStatement:
    # Forces a lookup by id first, even if statistics of a growing table are outdated.
    return sql(
        f"""
        WITH by_id AS MATERIALIZED (
            SELECT * FROM archival.passages
            WHERE project_id = :project AND id = ANY(CAST(:ids AS text[]))
        )
        SELECT {PASSAGE_COLUMNS} FROM {joined_archive("by_id")} WHERE {" AND ".join(conditions)}
        """
    )


@cache
def _by_words(conditions: tuple[str, ...]) -> SqlStatement:
    return sql(
        f"""
        WITH search AS ({query_sql("english", "simple")}), matches AS (
            SELECT p.*, search.query, {pairs_sql("p.text")} AS matched_pairs
            FROM {PASSAGES}, search
            WHERE {" AND ".join(conditions)} AND
                (p.search_vector @@ search.query OR {pairs_sql("p.text")} > 0)
            ORDER BY p.create_time DESC, p.id DESC LIMIT {MOST_RANKED}
        ), ranked AS (
            SELECT m.*, CAST(ts_rank_cd(search_vector, query) AS float8) + matched_pairs AS rank
            FROM matches m
        )
        SELECT {PASSAGE_COLUMNS}, rank FROM ranked p ORDER BY rank DESC, p.id LIMIT :limit
        """
    )


def _conditions(within: Filter) -> list[str]:
    conditions = [
        "p.project_id = :project",
        "NOT p.purge",
        UNEXPIRED,
        "p.archive_id = ANY(CAST(:archives AS text[]))",
    ]
    if not within.show_deleted:
        conditions.append("NOT p.deleted")
    conditions += [
        f"p.{column} = :{column} AND p.{column} <> ''"
        for column in ("run_id", "message_id")
        if getattr(within, column)
    ]
    if within.tags:
        operator = "&&" if within.tag_match is TagMatch.ANY else "@>"
        conditions.append(f"p.tags {operator} CAST(:tags AS text[])")
    if within.start_time is not None:
        conditions.append("p.create_time >= :start")
    if within.end_time is not None:
        conditions.append("p.create_time < :until")
    return conditions


def _filter_values(within: Filter) -> dict[str, Any]:
    values: dict[str, Any] = {"project": current_project(), "archives": list(within.archive_ids)}
    if within.tags:
        values["tags"] = list(within.tags)
    if within.start_time is not None:
        values["start"] = within.start_time
    if within.end_time is not None:
        values["until"] = within.end_time
    for column in ("run_id", "message_id"):
        if getattr(within, column):
            values[column] = getattr(within, column)
    return values


def _progress_to_json(progress: UploadProgress) -> dict[str, Any]:
    values = asdict(progress)
    # The key in the database is older than the name of the field.
    values["said"] = values.pop("digest")
    return values


def _progress_from_json(fields: dict[str, Any]) -> UploadProgress:
    values = dict(fields)
    return UploadProgress(digest=values.pop("said"), **values)


def missing_passage(passage_id: str) -> NotFoundError:
    """Returns the error for a passage that the project does not have."""
    return NotFoundError(
        f"Passage {passage_id} does not exist.",
        reason=Reason.PASSAGE_NOT_FOUND,
        metadata={"id": passage_id},
    )
