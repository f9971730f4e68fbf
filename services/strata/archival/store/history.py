"""Changes passages in PostgreSQL, and keeps their versions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import asyncpg

from strata.archival.domain.history import (
    Author,
    Operation,
    PassageChange,
    PassageVersion,
)
from strata.archival.domain.near_duplicates import signature_of
from strata.archival.domain.passages import Cursor, NewPassage, NewText, Passage, hash_of
from strata.archival.store.destruction import destroy_expired_same, destroy_sql
from strata.archival.store.insertion import same_texts
from strata.archival.store.near_duplicates import near_sql, put_signature_sql
from strata.archival.store.passages import missing_passage
from strata.archival.store.receipts import RECEIPTS
from strata.archival.store.rows import (
    LOCK_PASSAGES,
    PASSAGE_COLUMNS,
    PASSAGES,
    RECORD,
    UNEXPIRED,
    VERSION_COLUMNS,
    change_from_json,
    change_to_json,
    content_values,
    origin_from_json,
    taint_of_change,
    to_passage,
    to_records,
    version_columns,
)
from strata.protocol.errors import (
    AbortedError,
    AlreadyExistsError,
    NotFoundError,
    Reason,
    UnavailableError,
)
from strata.shared.context import current_project
from strata.shared.db import Database, DatabaseConnection, Row, sql
from strata.shared.idempotency.keys import RequestKey, check_same_request, request_id_reused
from strata.shared.text_work import run_text_work

_LOCK = sql(
    f"""
    SELECT {PASSAGE_COLUMNS}, p.change_request_id, p.change_digest, a.time_to_live
    FROM {PASSAGES}
    WHERE p.project_id = :project AND p.id = :id AND NOT p.purge AND {UNEXPIRED}
    {LOCK_PASSAGES}
    """
)
_ANSWERED = sql(
    f"""
    SELECT revision, {VERSION_COLUMNS}, deleted, request_digest, create_time
    FROM archival.passage_versions
    WHERE project_id = :project AND passage_id = :id AND request_id = :request
    """
)
_VERSION = sql(
    f"""
    SELECT {VERSION_COLUMNS} FROM archival.passages
    WHERE project_id = :project AND id = :id AND revision = :revision
    UNION ALL
    SELECT {VERSION_COLUMNS} FROM archival.passage_versions
    WHERE project_id = :project AND passage_id = :id AND revision = :revision
    """
)
# Copies the old state to the versions and updates counters; the new revision is pending.
_CHANGE = sql(
    f"""
    WITH old_version AS (
        INSERT INTO archival.passage_versions (
            project_id, passage_id, revision, {VERSION_COLUMNS},
            request_id, request_digest, deleted, create_time)
        SELECT project_id, id, revision, {VERSION_COLUMNS},
               change_request_id, change_digest, deleted, update_time
        FROM archival.passages WHERE project_id = :project AND id = :id
    ), changed AS (
        UPDATE archival.passages p SET
            text = :text, token_count = :tokens, content_hash = :hash,
            tags = CAST(:tags AS text[]), metadata = CAST(:metadata AS jsonb),
            deleted = :deleted, revision = p.revision + 1, update_time = :now,
            origin = (p.origin - 'taint') || CAST(:mark AS jsonb),
            change = CAST(:change AS jsonb), change_request_id = :request, change_digest = :digest
        WHERE p.project_id = :project AND p.id = :id RETURNING {PASSAGE_COLUMNS}
    ), counted AS (
        UPDATE archival.archives a SET passage_count = a.passage_count + :count FROM changed c
        WHERE a.project_id = :project AND a.id = c.archive_id AND :count <> 0
    ), tagged AS (
        INSERT INTO archival.archive_tags (project_id, archive_id, tag, count)
        SELECT :project, c.archive_id, change.tag, sum(change.count)
        FROM changed c, (
            SELECT unnest(CAST(:more_tags AS text[])) AS tag, 1 AS count
            UNION ALL SELECT unnest(CAST(:fewer_tags AS text[])), -1) AS change
        GROUP BY c.archive_id, change.tag ORDER BY change.tag
        ON CONFLICT (project_id, archive_id, tag)
        DO UPDATE SET count = archive_tags.count + excluded.count
    )
    SELECT * FROM changed
    """
)
# A new text gets new near-duplicates, and loses the supplied vector of the old text.
_NEW_TEXT = sql(
    f"""
    WITH record AS MATERIALIZED (
        SELECT * FROM jsonb_to_recordset(CAST(:records AS jsonb)) AS r({RECORD})
    ), signature AS ({put_signature_sql("record r")}
    ), without_vector AS (
        DELETE FROM archival.passage_vectors WHERE project_id = :project AND passage_id = :id
    )
    UPDATE archival.passages q SET near_ids = {near_sql("r")} FROM record r
    WHERE q.project_id = :project AND q.id = :id
    """
)
_PURGE = destroy_sql(f"p.id = :id AND {UNEXPIRED}")
_IS_THERE = sql(
    f"SELECT 1 FROM {PASSAGES}"
    f" WHERE p.project_id = :project AND p.id = :id AND NOT p.purge AND {UNEXPIRED}"
)
_VERSIONS = sql(
    f"""
    SELECT * FROM (
        SELECT revision, {VERSION_COLUMNS}, update_time AS create_time, origin
        FROM archival.passages
        WHERE project_id = :project AND id = :id AND NOT purge AND revision < :before
        UNION ALL
        SELECT v.revision, {version_columns("v")}, v.create_time, p.origin
        FROM archival.passage_versions v
        JOIN archival.passages p ON p.project_id = v.project_id AND p.id = v.passage_id
        WHERE v.project_id = :project AND v.passage_id = :id AND v.revision < :before) every
    ORDER BY revision DESC LIMIT :count
    """
)
_BEFORE_ALL = 2**62
# The key of the revision in the stored answer of a request that changed nothing.
_UNCHANGED = "unchanged"


class PostgresPassageHistory:
    """Implements `PassageHistory`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def update(self, passage_id: str, change: PassageChange, now: datetime) -> Passage:
        """Changes a passage, with its row locked."""
        async with self._database.transaction() as connection:
            row = await _lock(connection, passage_id)
            stored_answer = await _answered(connection, row, change.request)
            if stored_answer is not None:
                return stored_answer
            old = to_passage(row)
            if old.deleted:
                raise missing_passage(passage_id)
            new = _labelled(
                replace(
                    old,
                    text=old.text if change.text is None else change.text.text,
                    token_count=old.token_count if change.text is None else change.text.token_count,
                    tags=old.tags if change.tags is None else change.tags,
                    metadata=old.metadata if change.metadata is None else change.metadata,
                ),
                old,
                change,
            )
            if new == old:
                _check_revision(old, change)
                await _answer_unchanged(connection, old, change.request)
                return old
            return await _apply(connection, row, new, change, Operation.UPDATE, now)

    async def add_tags(
        self, passage_id: str, tags: Sequence[str], author: Author, now: datetime
    ) -> Passage:
        """Adds tags to a passage, with its row locked."""
        values = {"project": current_project(), "id": passage_id}
        async with self._database.transaction() as connection:
            row = (await connection.execute(_LOCK, values)).one_or_none()
            if row is None or row.deleted:
                raise UnavailableError("Send the passage again.", retry_after=0.0)
            old = to_passage(row)
            change = PassageChange(author)
            new = _labelled(replace(old, tags=tuple(sorted({*old.tags, *tags}))), old, change)
            if new == old:
                return old
            return await _apply(connection, row, new, change, Operation.UPDATE, now)

    async def delete(self, passage_id: str, author: Author, now: datetime) -> None:
        """Hides a passage, with its row locked."""
        async with self._database.transaction() as connection:
            row = await _lock(connection, passage_id)
            if not row.deleted:
                new = replace(to_passage(row), deleted=True)
                await _apply(connection, row, new, PassageChange(author), Operation.DELETE, now)

    async def restore(
        self, passage_id: str, revision: int, change: PassageChange, now: datetime
    ) -> Passage:
        """Restores a deleted passage or a version, with its row locked."""
        async with self._database.transaction() as connection:
            row = await _lock(connection, passage_id)
            stored_answer = await _answered(connection, row, change.request)
            if stored_answer is not None:
                return stored_answer
            old = to_passage(row)
            new = replace(old, deleted=False)
            if revision:
                new = await _as_it_was(connection, new, revision)
            if new == old:
                _check_revision(old, change)
                await _answer_unchanged(connection, old, change.request)
                return old
            return await _apply(connection, row, new, change, Operation.RESTORE, now)

    async def purge(self, passage_id: str, request: RequestKey) -> int:
        """Destroys a passage with its versions."""
        async with self._database.transaction() as connection:
            stored_answer = await RECEIPTS.claim(connection, request)
            if stored_answer is not None:
                return int(stored_answer)
            values = {"project": current_project(), "id": passage_id}
            purged = (await connection.execute(_PURGE, values)).one()
            if not purged.passages:
                raise missing_passage(passage_id)
            versions = int(purged.versions) + 1
            await RECEIPTS.answer(connection, request, versions)
            return versions

    async def versions(
        self, passage_id: str, count: int, cursor: Cursor | None
    ) -> list[PassageVersion]:
        """Returns versions after a cursor, including the current one."""
        values = {
            "project": current_project(),
            "id": passage_id,
            "before": cursor[0] if cursor else _BEFORE_ALL,
            "count": count,
        }
        async with self._database.transaction(read_only=True) as connection:
            if (await connection.execute(_IS_THERE, values)).one_or_none() is None:
                raise missing_passage(passage_id)
            rows = (await connection.execute(_VERSIONS, values)).all()
        return [_to_version(passage_id, row) for row in rows]


async def _lock(connection: DatabaseConnection, passage_id: str) -> Row:
    result = await connection.execute(_LOCK, {"project": current_project(), "id": passage_id})
    row = result.one_or_none()
    if row is None:
        raise missing_passage(passage_id)
    return row


async def _answered(
    connection: DatabaseConnection, row: Row, request: RequestKey
) -> Passage | None:
    """Returns the passage after the first run of a repeated request; None if it is new."""
    if not request.id:
        return None
    passage = to_passage(row)
    if row.change_request_id == request.id:
        digest = row.change_digest
    else:
        values = {"project": current_project(), "id": passage.id, "request": request.id}
        version = (await connection.execute(_ANSWERED, values)).one_or_none()
        if version is None:
            # The same id may belong to a change of another passage.
            kept = await RECEIPTS.keep(connection, request, passage.id)
            if kept is None:
                raise request_id_reused(request.id)
            return await _unchanged(connection, passage, kept)
        digest = version.request_digest
        passage = replace(
            _with_version(passage, version),
            revision=version.revision,
            deleted=version.deleted,
            update_time=version.create_time,
        )
    check_same_request(request.id, digest, request.digest)
    return passage


async def _answer_unchanged(
    connection: DatabaseConnection, passage: Passage, request: RequestKey
) -> None:
    """Stores the answer of a request that changed nothing: there is no version with its id."""
    await RECEIPTS.answer(connection, request, {_UNCHANGED: passage.revision})


async def _unchanged(
    connection: DatabaseConnection, passage: Passage, answer: Any
) -> Passage | None:
    """Returns the passage after a request that changed nothing; None if the request is new."""
    if not isinstance(answer, dict):
        return None
    revision = int(answer[_UNCHANGED])
    if revision == passage.revision:
        return passage
    # It was not deleted then.
    was = await _as_it_was(connection, passage, revision)
    return replace(was, revision=revision, deleted=False)


async def _as_it_was(connection: DatabaseConnection, passage: Passage, revision: int) -> Passage:
    values = {"project": current_project(), "id": passage.id, "revision": revision}
    row = (await connection.execute(_VERSION, values)).one_or_none()
    if row is None:
        raise NotFoundError(
            f"Passage {passage.id} has no revision {revision}.",
            reason=Reason.VERSION_NOT_FOUND,
            metadata={"id": passage.id, "revision": revision},
        )
    taint = taint_of_change(row.change, passage.origin)
    was = _with_version(passage, row)
    return replace(was, origin=replace(passage.origin, taint=taint))


def _labelled(new: Passage, old: Passage, change: PassageChange) -> Passage:
    """Returns a passage after an update, with its taint labels.

    A new text of a person replaces the labels; every other change only adds those of its author.
    """
    had, origin = old.origin.taint, change.author.origin
    if change.text is not None and not origin.run_id:
        taint = origin.taint
    elif change.text is None and new == old:
        taint = had
    else:
        taint = had + tuple(label for label in origin.taint if label not in had)
    return replace(new, origin=replace(new.origin, taint=taint))


def _with_version(passage: Passage, row: Row) -> Passage:
    return replace(passage, **content_values(row))


def _check_revision(passage: Passage, change: PassageChange) -> None:
    if change.expected_revision not in {0, passage.revision}:
        raise AbortedError(
            f"The passage is at revision {passage.revision}, not {change.expected_revision}: read"
            " it again before you change it.",
            metadata={"expected": change.expected_revision, "current": passage.revision},
        )


async def _apply(
    connection: DatabaseConnection,
    row: Row,
    new: Passage,
    change: PassageChange,
    operation: Operation,
    now: datetime,
) -> Passage:
    old = to_passage(row)
    _check_revision(old, change)
    content_hash = hash_of(new.text)
    if not new.deleted:
        await _check_alone(connection, row, content_hash)
    if new.text != old.text:
        await _compare(connection, new, change.text, now)
    taint = new.origin.taint
    author = change.author
    before, after = () if old.deleted else old.tags, () if new.deleted else new.tags
    values = {
        "project": current_project(),
        "id": old.id,
        "text": new.text,
        "tokens": new.token_count,
        "hash": content_hash,
        "tags": list(new.tags),
        "metadata": json.dumps(dict(new.metadata), ensure_ascii=False),
        "deleted": new.deleted,
        "now": now,
        "mark": json.dumps({"taint": taint} if taint else {}),
        "change": json.dumps(change_to_json(operation, author, taint), ensure_ascii=False),
        "request": change.request.id,
        "digest": change.request.digest,
        "count": int(old.deleted) - int(new.deleted),
        "more_tags": list(after),
        "fewer_tags": list(before),
    }
    try:
        return to_passage((await connection.execute(_CHANGE, values)).one())
    except asyncpg.IntegrityConstraintViolationError as error:
        raise _same_text() from error


async def _check_alone(connection: DatabaseConnection, row: Row, content_hash: str) -> None:
    if row.time_to_live:
        project = current_project()
        await destroy_expired_same(connection, project, row.archive_id, [content_hash])
    same = await same_texts(connection, row.archive_id, [content_hash])
    if any(item.id != row.id for item in same.values()):
        raise _same_text()


async def _compare(
    connection: DatabaseConnection, new: Passage, content: NewText | None, now: datetime
) -> None:
    if content is None:
        signature = await run_text_work([new.text], lambda: signature_of(new.text))
        content = NewText(new.text, new.token_count, signature)
    record = NewPassage(new.id, content, new.create_time, now)
    values = {
        "project": current_project(),
        "id": new.id,
        "records": to_records([record], new.archive_id),
    }
    await connection.execute(_NEW_TEXT, values)


def _same_text() -> AlreadyExistsError:
    return AlreadyExistsError("The archive has a passage with this text already.")


def _to_version(passage_id: str, row: Row) -> PassageVersion:
    origin = origin_from_json(row.origin)
    operation, author = change_from_json(row.change, row.revision, origin)
    return PassageVersion(
        passage_id=passage_id,
        revision=row.revision,
        operation=operation,
        **content_values(row),
        author=author,
        create_time=row.create_time,
    )
