"""Passages in PostgreSQL, which is the truth; the index is derived from it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from sqlalchemy import Row, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from strata.archival.domain.history import Progress
from strata.archival.domain.passages import (
    Archive,
    Cursor,
    Filter,
    Inserted,
    NewPassage,
    Page,
    Passage,
    Place,
    Request,
    TagMatch,
    Uploaded,
)
from strata.archival.store import receipts
from strata.archival.store.archives import (
    INSERT_ARCHIVE,
    is_unknown_agent,
    missing_agent,
    missing_archive,
)
from strata.archival.store.destroying import destroy_expired_same
from strata.archival.store.nearness import near_sql, put_likeness_sql
from strata.archival.store.rows import (
    PASSAGE_COLUMNS,
    PASSAGES,
    RECORD,
    UNEXPIRED,
    archive_values,
    to_passage,
    to_records,
)
from strata.archival.store.words import (
    MOST_RANKED,
    pairs_of,
    pairs_sql,
    storable,
    wanted_sql,
)
from strata.shared.context import current_project
from strata.shared.db import Database
from strata.shared.errors import (
    FieldViolation,
    InvalidArgumentError,
    NotFoundError,
    Reason,
    UnavailableError,
)

_MOST_VIOLATIONS = 20
_NEAR_CHARS = 500
_RESOLVE = text(
    f"""
    SELECT now() AS now, h.*, p.* FROM (SELECT 1) AS one
    LEFT JOIN (
        SELECT id AS home, coalesce(s.model, embedding_model) AS model,
               coalesce(s.dim, embedding_dim) AS dim, time_to_live
        FROM archival.archives a LEFT JOIN archival.serving_indexes s
          ON s.project_id = '' AND s.slot = 'passages' AND a.own_model = ''
        WHERE a.project_id = :project
          AND CASE WHEN :archive <> '' THEN id = :archive
                   ELSE own_agent_id = :agent AND own_agent_id <> '' END) h ON true
    LEFT JOIN (
        SELECT {PASSAGE_COLUMNS}, p.content_hash FROM archival.passages p
        WHERE p.project_id = :project AND p.request_id = :request AND p.request_id <> '') p ON true
    """
)
# Of two at the same time one makes it; which of its keys the other one meets is left open.
_OWN_ARCHIVE = text(
    f"""
    WITH made AS ({INSERT_ARCHIVE} ON CONFLICT DO NOTHING RETURNING id)
    INSERT INTO archival.agent_archives (project_id, agent_id, archive_id)
    SELECT :project, :own, id FROM made
    """
)
_INSERT = text(
    f"""
    WITH record AS MATERIALIZED (
        SELECT * FROM jsonb_to_recordset(CAST(:records AS jsonb)) AS r({RECORD})
    ), added AS (
        INSERT INTO archival.passages (
            project_id, archive_id, id, text, tags, metadata, origin, content_hash, token_count,
            create_time, update_time, change, near_ids, request_id, revision, indexed_revision,
            deleted, purge)
        SELECT :project, :archive, r.id, r.text, r.tags, r.metadata, r.origin, r.content_hash,
               r.token_count, r.create_time, r.store_time, r.change, {near_sql("r")}, :request,
               1, 0, false, false
        FROM record r
        ON CONFLICT DO NOTHING RETURNING id, tags, near_ids
    ), counted AS (
        UPDATE archival.archives SET passage_count = passage_count + (SELECT count(*) FROM added)
        WHERE project_id = :project AND id = :archive
    ), tagged AS (
        INSERT INTO archival.archive_tags (project_id, archive_id, tag, count)
        SELECT :project, :archive, tag, count(*) FROM added, unnest(added.tags) AS tag
        GROUP BY tag ORDER BY tag
        ON CONFLICT (project_id, archive_id, tag)
        DO UPDATE SET count = archive_tags.count + excluded.count
    ), likened AS (
        {put_likeness_sql("record r JOIN added ON added.id = r.id")}
    ), placed AS (
        INSERT INTO archival.passage_vectors (project_id, passage_id, model, vector)
        SELECT :project, r.id, r.model, decode(r.vector, 'base64')
        FROM record r JOIN added ON added.id = r.id WHERE r.vector IS NOT NULL
    )
    SELECT id, near_ids, ARRAY(
        SELECT left(n.text, {_NEAR_CHARS})
        FROM unnest(a.near_ids) WITH ORDINALITY AS near (id, place)
        JOIN archival.passages n ON n.project_id = :project AND n.id = near.id
        ORDER BY near.place) AS near_texts
    FROM added a
    """
)
_SAME = text(
    f"""
    SELECT {PASSAGE_COLUMNS}, p.content_hash FROM archival.passages p
    WHERE p.project_id = :project AND p.archive_id = :archive AND NOT p.deleted
      AND p.content_hash = ANY(CAST(:hashes AS text[]))
    """
)
_GET = text(
    f"SELECT {PASSAGE_COLUMNS} FROM {PASSAGES}"
    f" WHERE p.project_id = :project AND p.id = :id AND NOT p.purge AND {UNEXPIRED}"
)
_ARCHIVES = text(
    "SELECT archive_id FROM archival.agent_archives"
    " WHERE project_id = :project AND agent_id = :agent ORDER BY archive_id"
)


class PostgresPassageStore:
    """Implements `PassageStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def insert(
        self, place: Place, passages: Sequence[NewPassage], template: Archive, request_id: str
    ) -> list[Inserted]:
        """Stores passages, making the agent's own archive at the first."""
        async with self._database.transaction() as connection:
            return await self._insert(connection, place, passages, template, request_id)

    async def finish_upload(
        self,
        place: Place,
        passages: Sequence[NewPassage],
        template: Archive,
        request: Request,
        before: Uploaded,
    ) -> Uploaded:
        """Stores the last passages of an upload together with its answer."""
        async with self._database.transaction() as connection:
            known = await receipts.take(connection, request)
            if known is not None:
                return Uploaded(**known)
            stored = await self._insert(connection, place, passages, template, "")
            counts = before.plus(stored)
            await receipts.answer(connection, request, asdict(counts))
            return counts

    async def upload_answer(self, request: Request) -> Uploaded | None:
        """Returns what a finished upload was answered."""
        async with self._database.transaction(read_only=True) as connection:
            known = await receipts.answered(connection, request)
        return None if known is None else Uploaded(**known)

    async def is_answered(self, request_id: str) -> bool:
        """Says whether a request of this id was answered."""
        if not request_id:
            return False
        async with self._database.transaction(read_only=True) as connection:
            return await receipts.is_answered(connection, request_id)

    async def progress(self, request: Request) -> Progress:
        """Returns how far an upload is."""
        if not request.id:
            return Progress()
        async with self._database.transaction(read_only=True) as connection:
            known = await receipts.answered(connection, request)
        return Progress() if known is None else Progress(**known)

    async def upload(
        self,
        place: Place,
        passages: Sequence[NewPassage],
        template: Archive,
        request: Request,
        seen: Progress,
        said: str,
    ) -> Progress:
        """Stores the next passages of an upload together with how far it is then."""
        async with self._database.transaction() as connection:
            state = await self._state(connection, request, seen)
            fresh = passages[state.received - seen.received :]
            if state.complete and fresh:
                raise receipts.reused(request.id)
            if not fresh:
                return state
            stored = await self._insert(connection, place, fresh, template, "")
            state = state.plus(stored, said)
            await receipts.answer(connection, request, asdict(state))
            return state

    async def complete(self, request: Request, seen: Progress) -> Progress:
        """Notes that nothing more comes of an upload."""
        async with self._database.transaction() as connection:
            state = await self._state(connection, request, seen)
            done = replace(state, complete=True)
            await receipts.answer(connection, request, asdict(done))
            return done

    async def _state(
        self, connection: AsyncConnection, request: Request, seen: Progress
    ) -> Progress:
        if not request.id:
            return seen
        known = await receipts.take(connection, request, lock=True)
        state = Progress() if known is None else Progress(**known)
        if state.received < seen.received:
            raise UnavailableError(
                "What was known of this upload is forgotten: send it again.", retry_after=0.0
            )
        return state

    async def get(self, passage_id: str, *, show_deleted: bool = False) -> Passage:
        """Returns a passage."""
        async with self._database.transaction(read_only=True) as connection:
            found = await connection.execute(_GET, {"project": current_project(), "id": passage_id})
            row = found.one_or_none()
        if row is None or (row.deleted and not show_deleted):
            raise missing_passage(passage_id)
        return to_passage(row)

    async def page(self, within: Filter, limit: int, cursor: Cursor | None) -> Page:
        """Returns a page by time."""
        conditions = _conditions(within)
        values: dict[str, Any] = {**_filter_values(within), "limit": limit + 1}
        if cursor is not None:
            conditions.append("(p.create_time, p.id) > (:after_time, :after_id)")
            values["after_time"], values["after_id"] = cursor
        statement = text(
            f"SELECT {PASSAGE_COLUMNS} FROM {PASSAGES}"
            f" WHERE {' AND '.join(conditions)} ORDER BY p.create_time, p.id LIMIT :limit"
        )
        async with self._database.transaction(read_only=True) as connection:
            rows = (await connection.execute(statement, values)).all()
        passages = [to_passage(row) for row in rows[:limit]]
        if len(rows) <= limit:
            return Page(passages)
        return Page(passages, (passages[-1].create_time, passages[-1].id))

    async def archive_ids(self, agent_id: str) -> list[str]:
        """Returns the archives of an agent."""
        async with self._database.transaction(read_only=True) as connection:
            rows = await connection.execute(
                _ARCHIVES, {"project": current_project(), "agent": agent_id}
            )
            return [row.archive_id for row in rows]

    async def matching(
        self, ids: Sequence[str], words: str, within: Filter, limit: int, *, all_words: bool
    ) -> tuple[list[Passage], list[tuple[Passage, float]]]:
        """Returns passages by id and by words, in one statement, all under the conditions."""
        conditions = " AND ".join(_conditions(within))
        pending = "" if all_words else "AND p.indexed_revision < p.revision"
        statement = text(
            f"""
            WITH wanted AS ({wanted_sql("english", "simple")}), matches AS (
                SELECT p.*, wanted.query, {pairs_sql("p.text")} AS held
                FROM {PASSAGES}, wanted
                WHERE {conditions} {pending} AND
                    (p.search_vector @@ wanted.query OR {pairs_sql("p.text")} > 0)
                ORDER BY p.create_time DESC, p.id DESC LIMIT {MOST_RANKED}
            ), found AS (
                SELECT m.*, CAST(ts_rank_cd(search_vector, query) AS float8) + held AS rank
                FROM matches m ORDER BY rank DESC, id LIMIT :limit
            )
            SELECT {PASSAGE_COLUMNS}, CAST(NULL AS float8) AS rank FROM {PASSAGES}
            WHERE {conditions} AND p.id = ANY(CAST(:ids AS text[]))
            UNION ALL
            SELECT {PASSAGE_COLUMNS}, rank FROM found p
            """
        )
        values = {
            **_filter_values(within),
            "ids": list(ids),
            "words": storable(words),
            "pairs": pairs_of(words),
            "limit": limit,
        }
        async with self._database.transaction(read_only=True) as connection:
            rows = (await connection.execute(statement, values)).all()
        by_id = [to_passage(row) for row in rows if row.rank is None]
        by_words = [(to_passage(row), row.rank) for row in rows if row.rank is not None]
        return by_id, sorted(by_words, key=lambda found: (-found[1], found[0].id))

    async def _insert(
        self,
        connection: AsyncConnection,
        place: Place,
        passages: Sequence[NewPassage],
        template: Archive,
        request_id: str,
    ) -> list[Inserted]:
        project = current_project()
        values = {
            "project": project,
            "archive": place.archive_id,
            "agent": place.agent_id,
            "request": request_id,
        }
        row = (await connection.execute(_RESOLVE, values)).one()
        if row.id is not None:
            return [_repeated(row, passages, request_id)]
        if row.home is None:
            row = await self._own_archive(connection, values, template)
        check_home(row, passages)
        values["archive"] = row.home
        if row.time_to_live:
            hashes = [item.content_hash for item in passages]
            await destroy_expired_same(connection, project, row.home, hashes)
        return await self._store(connection, values, passages)

    async def _store(
        self, connection: AsyncConnection, values: dict[str, Any], passages: Sequence[NewPassage]
    ) -> list[Inserted]:
        home = values["archive"]
        # The records of a large batch would hold up the event loop.
        records = await asyncio.to_thread(to_records, passages, home)
        rows = await connection.execute(_INSERT, {**values, "records": records})
        added = {row.id: row for row in rows}
        known = await same_texts(
            connection, home, [item.content_hash for item in passages if item.id not in added]
        )
        stored = []
        for item in passages:
            if item.id in added:
                row = added[item.id]
                passage = _as_stored(item, home, tuple(row.near_ids))
                stored.append(Inserted(passage, duplicate=False, near_texts=tuple(row.near_texts)))
            elif item.content_hash in known:
                stored.append(Inserted(known[item.content_hash], duplicate=True))
            else:
                # What stood in the way has gone in this moment.
                raise UnavailableError("Send the passages again.", retry_after=0.0)
        return stored

    async def _own_archive(
        self, connection: AsyncConnection, values: dict[str, Any], template: Archive
    ) -> Row[Any]:
        if values["archive"]:
            raise missing_archive(values["archive"])
        made = {**archive_values(template), "project": values["project"], "request": ""}
        # Somebody may have given the name to another archive.
        for name in (template.name, f"{template.name} ({template.id})"):
            try:
                await connection.execute(_OWN_ARCHIVE, {**made, "name": name})
            except IntegrityError as error:
                if is_unknown_agent(error):
                    raise missing_agent(values["agent"]) from error
                raise
            # Another transaction may have made it at the same time: ask, do not assume.
            row = (await connection.execute(_RESOLVE, values)).one()
            if row.home is not None:
                return row
        raise UnavailableError("Send the passages again.", retry_after=0.0)


async def same_texts(
    connection: AsyncConnection, archive_id: str, hashes: Sequence[str]
) -> dict[str, Passage]:
    """Returns the passages of an archive with the very same texts, by their hash."""
    if not hashes:
        return {}
    values = {"project": current_project(), "archive": archive_id, "hashes": list(hashes)}
    rows = await connection.execute(_SAME, values)
    return {row.content_hash: to_passage(row) for row in rows}


def check_home(home: Row[Any], passages: Sequence[NewPassage]) -> None:
    """Refuses passages that the archive cannot hold.

    Raises:
        InvalidArgumentError: A vector is not of its model, or a passage is too old for it.
    """
    violations = []
    for index, item in enumerate(passages):
        place = f"passages[{index}]" if len(passages) > 1 else "passage"
        age = (home.now - item.create_time).total_seconds()
        if home.time_to_live and age >= home.time_to_live:
            told = f"is older than the {home.time_to_live} seconds that the archive keeps passages"
            violations.append(FieldViolation(f"{place}.create_time", told))
        if item.vector is None:
            continue
        if item.vector.model != home.model:
            told = f"must be {home.model!r}, the model of the archive"
            violations.append(FieldViolation(f"{place}.embedding_model", told))
        elif len(item.vector.values) != home.dim:
            told = f"must have {home.dim} numbers, the dimension of the archive"
            violations.append(FieldViolation(f"{place}.embedding", told))
    if violations:
        raise InvalidArgumentError(
            "The archive cannot hold these passages.", violations=violations[:_MOST_VIOLATIONS]
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


def _as_stored(new: NewPassage, archive_id: str, near: tuple[str, ...]) -> Passage:
    return Passage(
        id=new.id,
        archive_id=archive_id,
        text=new.content.text,
        tags=new.tags,
        metadata=dict(new.metadata),
        origin=replace(new.origin),
        token_count=new.content.token_count,
        revision=1,
        indexed=False,
        create_time=new.create_time,
        update_time=new.store_time,
        near_duplicate_ids=near,
    )


def _repeated(row: Any, passages: Sequence[NewPassage], request_id: str) -> Inserted:
    # A passage that was changed since no longer tells what the request had said.
    if row.revision == 1 and [row.content_hash] != [item.content_hash for item in passages]:
        raise receipts.reused(request_id)
    return Inserted(to_passage(row), duplicate=False)


def missing_passage(passage_id: str) -> NotFoundError:
    """Returns the error for a passage that the project does not have, or not any more."""
    return NotFoundError(
        f"Passage {passage_id} does not exist.",
        reason=Reason.PASSAGE_NOT_FOUND,
        metadata={"id": passage_id},
    )
