"""Passages in PostgreSQL, which is the truth; the index is derived from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Row, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

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
from strata.archival.store.rows import (
    PASSAGE_COLUMNS,
    RECORD,
    archive_values,
    to_passage,
    to_records,
)
from strata.archival.store.words import storable, wanted_sql
from strata.shared.context import current_project
from strata.shared.db import Database
from strata.shared.errors import AbortedError, AlreadyExistsError, NotFoundError, Reason

_RESOLVE = text(
    f"""
    SELECT (SELECT id FROM archival.archives WHERE project_id = :project
             AND CASE WHEN :archive <> '' THEN id = :archive
                      ELSE own_agent_id = :agent AND own_agent_id <> '' END) AS home, p.*
    FROM (SELECT 1) AS one LEFT JOIN (
        SELECT {PASSAGE_COLUMNS}, content_hash FROM archival.passages
        WHERE project_id = :project AND request_id = :request AND request_id <> '') p ON true
    """
)
_OWN_ARCHIVE = text(
    f"""
    WITH made AS ({INSERT_ARCHIVE}
        ON CONFLICT (project_id, own_agent_id) WHERE own_agent_id <> '' DO NOTHING RETURNING id)
    INSERT INTO archival.agent_archives (project_id, agent_id, archive_id)
    SELECT :project, :own, id FROM made
    """
)
_INSERT = text(
    f"""
    WITH added AS (
        INSERT INTO archival.passages (
            project_id, archive_id, id, text, tags, metadata, origin, content_hash, token_count,
            create_time, update_time, request_id, revision, indexed_revision, deleted, purge)
        SELECT :project, :archive, r.id, r.text, r.tags, r.metadata, r.origin, r.content_hash,
               r.token_count, r.create_time, r.create_time, :request, 1, 0, false, false
        FROM jsonb_to_recordset(CAST(:records AS jsonb)) AS r({RECORD})
        ON CONFLICT DO NOTHING RETURNING id, tags
    ), counted AS (
        UPDATE archival.archives SET passage_count = passage_count + (SELECT count(*) FROM added)
        WHERE project_id = :project AND id = :archive
    ), tagged AS (
        INSERT INTO archival.archive_tags (project_id, archive_id, tag, count)
        SELECT :project, :archive, tag, count(*) FROM added, unnest(added.tags) AS tag
        GROUP BY tag ORDER BY tag
        ON CONFLICT (project_id, archive_id, tag)
        DO UPDATE SET count = archive_tags.count + excluded.count
    )
    SELECT id FROM added
    """
)
_SAME = text(
    f"""
    SELECT {PASSAGE_COLUMNS}, content_hash FROM archival.passages
    WHERE project_id = :project AND archive_id = :archive AND NOT deleted
      AND content_hash = ANY(CAST(:hashes AS text[]))
    """
)
_GET = text(
    f"SELECT {PASSAGE_COLUMNS} FROM archival.passages"
    " WHERE project_id = :project AND id = :id AND NOT purge"
)
_LOCK = text(
    f"SELECT {PASSAGE_COLUMNS}, change_request_id FROM archival.passages"
    " WHERE project_id = :project AND id = :id AND NOT deleted FOR UPDATE"
)
_RETAG = """
    INSERT INTO archival.archive_tags (project_id, archive_id, tag, count)
    SELECT :project, c.archive_id, change.tag, sum(change.count)
    FROM changed c, (
        SELECT unnest(CAST(:new_tags AS text[])) AS tag, 1 AS count
        UNION ALL SELECT unnest(CAST(:old_tags AS text[])), -1) AS change
    GROUP BY c.archive_id, change.tag ORDER BY change.tag
    ON CONFLICT (project_id, archive_id, tag)
    DO UPDATE SET count = archive_tags.count + excluded.count
"""
_UPDATE = text(
    f"""
    WITH changed AS (
        UPDATE archival.passages SET
            text = :text, token_count = :tokens, content_hash = :hash,
            tags = CAST(:new_tags AS text[]), revision = revision + 1, update_time = :now,
            change_request_id = :request
        WHERE project_id = :project AND id = :id RETURNING {PASSAGE_COLUMNS}
    ), tagged AS ({_RETAG})
    SELECT * FROM changed
    """
)
_DELETE = text(
    f"""
    WITH changed AS (
        UPDATE archival.passages SET deleted = true, revision = revision + 1, update_time = :now
        WHERE project_id = :project AND id = :id RETURNING archive_id
    ), counted AS (
        UPDATE archival.archives a SET passage_count = passage_count - 1 FROM changed c
        WHERE a.project_id = :project AND a.id = c.archive_id
    ), tagged AS ({_RETAG})
    SELECT 1 FROM changed
    """
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

    async def get(self, passage_id: str) -> Passage:
        """Returns a passage."""
        async with self._database.transaction(read_only=True) as connection:
            found = await connection.execute(_GET, {"project": current_project(), "id": passage_id})
            row = found.one_or_none()
        if row is None or row.deleted:
            raise _missing(passage_id)
        return to_passage(row)

    async def update(
        self,
        passage_id: str,
        text: tuple[str, int] | None,
        tags: tuple[str, ...] | None,
        expected_revision: int,
        now: datetime,
        request_id: str = "",
    ) -> Passage:
        """Changes text or tags under the row's lock."""
        async with self._database.transaction() as connection:
            row = await self._lock(connection, passage_id)
            old = to_passage(row)
            if request_id and row.change_request_id == request_id:
                return old
            if expected_revision not in {0, old.revision}:
                raise AbortedError(
                    "The passage has changed since it was read.",
                    metadata={"expected": expected_revision, "current": old.revision},
                )
            words, tokens = text or (old.text, old.token_count)
            new = NewPassage(old.id, words, tokens, now, old.tags if tags is None else tags)
            same = await self._same(connection, current_project(), old.archive_id, [new])
            if any(item.id != old.id for item in same.values()):
                raise AlreadyExistsError("The archive holds this very text already.")
            changed = await connection.execute(
                _UPDATE,
                {
                    "project": current_project(),
                    "id": passage_id,
                    "text": new.text,
                    "tokens": new.token_count,
                    "hash": new.content_hash,
                    "new_tags": list(new.tags),
                    "old_tags": list(old.tags),
                    "now": now,
                    "request": request_id,
                },
            )
            return to_passage(changed.one())

    async def delete(self, passage_id: str, now: datetime) -> None:
        """Deletes a passage."""
        async with self._database.transaction() as connection:
            values = {"project": current_project(), "id": passage_id}
            seen = (await connection.execute(_GET, values)).one_or_none()
            if seen is not None and seen.deleted:
                return
            old = to_passage(await self._lock(connection, passage_id))
            await connection.execute(
                _DELETE, {**values, "now": now, "new_tags": [], "old_tags": list(old.tags)}
            )

    async def page(
        self,
        archive_id: str,
        agent_id: str,
        tags: Sequence[str],
        limit: int,
        cursor: Cursor | None,
    ) -> Page:
        """Returns a page by time."""
        archives = [archive_id] if archive_id else await self.archive_ids(agent_id)
        conditions = [*_conditions(Filter(tuple(archives), tuple(tags), TagMatch.ALL))]
        values: dict[str, Any] = {
            **_filter_values(Filter(tuple(archives), tuple(tags), TagMatch.ALL)),
            "limit": limit + 1,
        }
        if cursor is not None:
            conditions.append("(p.create_time, p.id) > (:after_time, :after_id)")
            values["after_time"], values["after_id"] = cursor
        statement = text(
            f"SELECT {PASSAGE_COLUMNS} FROM archival.passages p"
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
            WITH wanted AS ({wanted_sql("english", "simple")}), found AS (
                SELECT p.*, CAST(ts_rank_cd(p.search_vector, wanted.query) AS float8) AS rank
                FROM archival.passages p, wanted
                WHERE {conditions} {pending} AND p.search_vector @@ wanted.query
                ORDER BY rank DESC, p.id LIMIT :limit
            )
            SELECT {PASSAGE_COLUMNS}, CAST(NULL AS float8) AS rank FROM archival.passages p
            WHERE {conditions} AND p.id = ANY(CAST(:ids AS text[]))
            UNION ALL
            SELECT {PASSAGE_COLUMNS}, rank FROM found
            """
        )
        values = {
            **_filter_values(within),
            "ids": list(ids),
            "words": storable(words),
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
        home = row.home or await self._own_archive(connection, values, template)
        values |= {"archive": home, "records": to_records(passages)}
        added = {row.id for row in await connection.execute(_INSERT, values)}
        known = await self._same(
            connection, project, home, [item for item in passages if item.id not in added]
        )
        stored = {item.id: _as_stored(item, home) for item in passages if item.id in added}
        return [
            Inserted(stored[item.id], duplicate=False)
            if item.id in stored
            else Inserted(known[item.content_hash], duplicate=True)
            for item in passages
        ]

    async def _own_archive(
        self, connection: AsyncConnection, values: dict[str, Any], template: Archive
    ) -> str:
        if values["archive"]:
            raise missing_archive(values["archive"])
        try:
            await connection.execute(
                _OWN_ARCHIVE,
                {**archive_values(template), "project": values["project"], "request": ""},
            )
        except IntegrityError as error:
            if is_unknown_agent(error):
                raise missing_agent(values["agent"]) from error
            raise
        # Another transaction may have made it at the same time: ask, do not assume.
        return str((await connection.execute(_RESOLVE, values)).one().home)

    async def _same(
        self, connection: AsyncConnection, project: str, archive_id: str, new: Sequence[NewPassage]
    ) -> dict[str, Passage]:
        if not new:
            return {}
        rows = await connection.execute(
            _SAME,
            {
                "project": project,
                "archive": archive_id,
                "hashes": [item.content_hash for item in new],
            },
        )
        return {row.content_hash: to_passage(row) for row in rows}

    async def _lock(self, connection: AsyncConnection, passage_id: str) -> Row[Any]:
        found = await connection.execute(_LOCK, {"project": current_project(), "id": passage_id})
        row = found.one_or_none()
        if row is None:
            raise _missing(passage_id)
        return row


def _conditions(within: Filter) -> list[str]:
    conditions = [
        "p.project_id = :project",
        "NOT p.deleted",
        "p.archive_id = ANY(CAST(:archives AS text[]))",
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
    return values


def _as_stored(new: NewPassage, archive_id: str) -> Passage:
    return Passage(
        id=new.id,
        archive_id=archive_id,
        text=new.text,
        tags=new.tags,
        metadata=dict(new.metadata),
        origin=replace(new.origin),
        token_count=new.token_count,
        revision=1,
        indexed=False,
        create_time=new.create_time,
        update_time=new.create_time,
    )


def _repeated(row: Any, passages: Sequence[NewPassage], request_id: str) -> Inserted:
    # A passage that was changed since no longer tells what the request had said.
    if row.revision == 1 and [row.content_hash] != [item.content_hash for item in passages]:
        raise AlreadyExistsError(
            f"The request_id {request_id!r} was used before for something else.",
            reason=Reason.REQUEST_ID_REUSED,
            metadata={"request_id": request_id},
        )
    return Inserted(to_passage(row), duplicate=False)


def _missing(passage_id: str) -> NotFoundError:
    return NotFoundError(
        f"Passage {passage_id} does not exist.",
        reason=Reason.PASSAGE_NOT_FOUND,
        metadata={"id": passage_id},
    )
