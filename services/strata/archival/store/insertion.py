"""Inserts passages into PostgreSQL, with detection of duplicates and near-duplicates."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import asyncpg

from strata.archival.domain.passages import (
    Archive,
    ArchiveRef,
    InsertedPassage,
    NewPassage,
    Passage,
)
from strata.archival.store.archives import (
    is_unknown_agent,
    missing_agent,
    missing_archive,
)
from strata.archival.store.destruction import destroy_expired_same
from strata.archival.store.near_duplicates import near_sql, put_signature_sql
from strata.archival.store.rows import (
    INSERT_ARCHIVE,
    INSERT_COLUMNS,
    PASSAGE_COLUMNS,
    RECORD,
    RECORD_COLUMNS,
    archive_values,
    to_passage,
    to_records,
)
from strata.protocol.errors import FieldViolation, InvalidArgumentError, UnavailableError
from strata.shared.context import current_project
from strata.shared.db import Database, DatabaseConnection, Row, sql
from strata.shared.idempotency.keys import RequestKey, check_same_request, request_id_reused
from strata.shared.text_work import run_text_work

_MOST_VIOLATIONS = 20
_NEAR_CHARS = 500
_RESOLVE = sql(
    f"""
    SELECT now() AS now, a.*, p.* FROM (SELECT 1) AS one
    LEFT JOIN (
        SELECT id AS target_archive_id, coalesce(s.model, embedding_model) AS model,
               coalesce(s.dim, embedding_dim) AS dim, time_to_live
        FROM archival.archives a LEFT JOIN archival.serving_indexes s
          ON s.project_id = '' AND s.slot = 'passages' AND a.own_model = ''
        WHERE a.project_id = :project
          AND CASE WHEN :archive <> '' THEN id = :archive
                   ELSE own_agent_id = :agent AND own_agent_id <> '' END) a ON true
    LEFT JOIN (
        SELECT {PASSAGE_COLUMNS}, p.content_hash,
               CASE WHEN p.revision = 1 THEN p.change_digest ELSE (
                   SELECT v.request_digest FROM archival.passage_versions v
                   WHERE v.project_id = :project AND v.passage_id = p.id AND v.revision = 1
               ) END AS insert_digest
        FROM archival.passages p
        WHERE p.project_id = :project AND p.request_id = :request AND p.request_id <> '') p ON true
    """
)
# Concurrent transactions may violate any of the archive's keys, so no constraint is named.
_OWN_ARCHIVE = sql(
    f"""
    WITH created AS ({INSERT_ARCHIVE} ON CONFLICT DO NOTHING RETURNING id)
    INSERT INTO archival.agent_archives (project_id, agent_id, archive_id)
    SELECT :project, :own_agent_id, id FROM created
    """
)
# The archive is locked against its deletion, and before the passage, as `LOCK_PASSAGES` does.
_TARGET = """, target AS MATERIALIZED (
        SELECT FROM archival.archives
        WHERE project_id = :project AND id = :archive AND time_to_live = 0
          AND (CAST(:agent AS text) = '' OR own_agent_id = CAST(:agent AS text))
        FOR KEY SHARE
    )"""


def _insert_sql(*, alone: bool) -> str:
    """Returns the statement that inserts passages which are not stored yet.

    Args:
        alone: Whether it is the only statement of its transaction. It then inserts nothing if the
            archive is missing, is not the agent's own one, or has a time-to-live.
    """
    return f"""
    WITH record AS MATERIALIZED (
        SELECT * FROM jsonb_to_recordset(CAST(:records AS jsonb)) AS r({RECORD})
    ){_TARGET if alone else ""}, added AS (
        INSERT INTO archival.passages (
            {INSERT_COLUMNS}, update_time, near_ids, request_id, change_digest, revision,
            indexed_revision, deleted, purge)
        SELECT :project, :archive, {RECORD_COLUMNS}, r.store_time, {near_sql("r")}, :request,
               :digest, 1, 0, false, false
        FROM record r{" CROSS JOIN target" if alone else ""}
        ON CONFLICT DO NOTHING RETURNING id, tags, near_ids
    ), counted AS (
        UPDATE archival.archives SET passage_count = passage_count + (SELECT count(*) FROM added)
        WHERE project_id = :project AND id = :archive AND EXISTS (SELECT FROM added) RETURNING id
    ), tagged AS (
        INSERT INTO archival.archive_tags (project_id, archive_id, tag, count)
        SELECT :project, :archive, tag, count(*) FROM added, unnest(added.tags) AS tag
        GROUP BY tag ORDER BY tag
        ON CONFLICT (project_id, archive_id, tag)
        DO UPDATE SET count = archive_tags.count + excluded.count
    ), signatures AS (
        {put_signature_sql("record r JOIN added ON added.id = r.id")}
    ), vectors AS (
        INSERT INTO archival.passage_vectors (project_id, passage_id, model, vector)
        SELECT :project, r.id, r.model, decode(r.vector, 'base64')
        FROM record r JOIN added ON added.id = r.id WHERE r.vector IS NOT NULL
    )
    SELECT a.id, a.near_ids, EXISTS (SELECT FROM counted) AS archive_exists, near_texts, near_taints
    FROM added a CROSS JOIN LATERAL (
        SELECT coalesce(array_agg(left(n.text, {_NEAR_CHARS}) ORDER BY place), '{{}}')
                   AS near_texts,
               coalesce(array_agg(coalesce(n.origin ->> 'taint', '[]') ORDER BY place), '{{}}')
                   AS near_taints
        FROM unnest(a.near_ids) WITH ORDINALITY AS near (near_id, place)
        CROSS JOIN LATERAL (
            SELECT text, origin FROM archival.passages
            WHERE project_id = :project AND id = near_id OFFSET 0) n
    ) near
    """


_INSERT = sql(_insert_sql(alone=False))
_INSERT_ALONE = sql(_insert_sql(alone=True))
_SAME = sql(
    f"""
    SELECT {PASSAGE_COLUMNS}, p.content_hash FROM archival.passages p
    WHERE p.project_id = :project AND p.archive_id = :archive AND NOT p.deleted
      AND p.content_hash = ANY(CAST(:hashes AS text[]))
    """
)


async def insert_alone(
    database: Database,
    archive_id: str,
    own_agent_id: str,
    passage: NewPassage,
    request: RequestKey,
) -> InsertedPassage | None:
    """Stores a passage with one statement, which is the whole transaction.

    Args:
        database: The database.
        archive_id: The archive.
        own_agent_id: The agent whose own archive it must be; empty for any archive.
        passage: The passage, without a vector.
        request: The request.

    Returns:
        The new passage. None if nothing was stored, for any reason; `insert_passages` then finds
        the reason, or stores the passage.
    """
    values = {
        "project": current_project(),
        "archive": archive_id,
        "agent": own_agent_id,
        "records": await _records([passage], archive_id),
        "request": request.id,
        "digest": request.digest,
    }
    row = (await database.execute(_INSERT_ALONE, values)).one_or_none()
    return None if row is None else _inserted(passage, archive_id, row)


async def insert_passages(
    connection: DatabaseConnection,
    archive_ref: ArchiveRef,
    passages: Sequence[NewPassage],
    template: Archive,
    request: RequestKey,
) -> list[InsertedPassage]:
    """Stores passages in the caller's transaction; creates the agent's own archive if needed.

    Args:
        connection: The transaction.
        archive_ref: The archive, or the agent whose own archive is used.
        passages: The passages.
        template: The agent's own archive, if it must be created.
        request: The request, for a single passage; with an empty id for several.

    Returns:
        For each passage, in order: the passage, or the existing one with the same text.

    Raises:
        NotFoundError: ``ARCHIVE_NOT_FOUND``, ``AGENT_NOT_FOUND``.
        InvalidArgumentError: The archive cannot hold a passage.
        AlreadyExistsError: ``REQUEST_ID_REUSED``: the request id was used for another request.
        UnavailableError: Concurrent changes of the same passages; send them again.
    """
    project = current_project()
    values = {
        "project": project,
        "archive": archive_ref.archive_id,
        "agent": archive_ref.agent_id,
        "request": request.id,
        "digest": request.digest,
    }
    row = (await connection.execute(_RESOLVE, values)).one()
    if row.id is not None:
        return [_repeated(row, passages, request)]
    if row.target_archive_id is None:
        row = await _own_archive(connection, values, template)
    _check_passages(row, passages)
    values["archive"] = row.target_archive_id
    if row.time_to_live:
        hashes = [item.content_hash for item in passages]
        await destroy_expired_same(connection, project, row.target_archive_id, hashes)
    return await _store(connection, values, passages, request)


async def _store(
    connection: DatabaseConnection,
    values: dict[str, Any],
    passages: Sequence[NewPassage],
    request: RequestKey,
) -> list[InsertedPassage]:
    """Stores new passages in an existing archive.

    Raises:
        NotFoundError: ``ARCHIVE_NOT_FOUND``, ``AGENT_NOT_FOUND``.
        UnavailableError: A passage with the same text was deleted meanwhile.
    """
    archive_id = values["archive"]
    records = await _records(passages, archive_id)
    rows = await connection.execute(_INSERT, {**values, "records": records})
    rows_by_id = {row.id: row for row in rows}
    if not all(row.archive_exists for row in rows_by_id.values()):
        # It was deleted after it was read.
        raise missing_agent(values["agent"]) if values["agent"] else missing_archive(archive_id)
    if request.id and not rows_by_id:
        # A concurrent call with the same id may have stored a passage since the first look.
        row = (await connection.execute(_RESOLVE, values)).one()
        if row.id is not None:
            return [_repeated(row, passages, request)]
    stored_ids = await same_texts(
        connection,
        archive_id,
        [item.content_hash for item in passages if item.id not in rows_by_id],
    )
    inserted = []
    for item in passages:
        if item.id in rows_by_id:
            inserted.append(_inserted(item, archive_id, rows_by_id[item.id]))
        elif item.content_hash in stored_ids:
            inserted.append(InsertedPassage(stored_ids[item.content_hash], duplicate=True))
        else:
            # The conflicting passage was deleted concurrently.
            raise UnavailableError("Send the passages again.", retry_after=0.0)
    return inserted


async def _records(passages: Sequence[NewPassage], archive_id: str) -> str:
    """Returns the records in the order of their hashes, in which the statement inserts them.

    An insertion waits for a concurrent transaction that has inserted the same text. Transactions
    with the same texts therefore need one order, or they could wait for each other.
    """

    def records() -> str:
        return to_records(sorted(passages, key=lambda item: item.content_hash), archive_id)

    return await run_text_work((item.content.text for item in passages), records)


def _inserted(item: NewPassage, archive_id: str, row: Row) -> InsertedPassage:
    passage = _as_stored(item, archive_id, tuple(row.near_ids))
    taints = tuple(tuple(json.loads(mark)) for mark in row.near_taints)
    return InsertedPassage(passage, False, tuple(row.near_texts), taints)


async def _own_archive(
    connection: DatabaseConnection, values: dict[str, Any], template: Archive
) -> Row:
    if values["archive"]:
        raise missing_archive(values["archive"])
    archive_parameters = {**archive_values(template), "project": values["project"], "request": ""}
    # Another archive may have the name.
    for name in (template.name, f"{template.name} ({template.id})"):
        try:
            await connection.execute(_OWN_ARCHIVE, {**archive_parameters, "name": name})
        except asyncpg.IntegrityConstraintViolationError as error:
            if is_unknown_agent(error):
                raise missing_agent(values["agent"]) from error
            raise
        # A concurrent transaction may have created it, so read it again.
        row = (await connection.execute(_RESOLVE, values)).one()
        if row.target_archive_id is not None:
            return row
    raise UnavailableError("Send the passages again.", retry_after=0.0)


async def same_texts(
    connection: DatabaseConnection, archive_id: str, hashes: Sequence[str]
) -> dict[str, Passage]:
    """Returns the passages of an archive with the same texts, by hash."""
    if not hashes:
        return {}
    values = {"project": current_project(), "archive": archive_id, "hashes": list(hashes)}
    rows = await connection.execute(_SAME, values)
    return {row.content_hash: to_passage(row) for row in rows}


def _check_passages(archive: Row, passages: Sequence[NewPassage]) -> None:
    """Raises if the archive cannot hold one of the passages.

    Raises:
        InvalidArgumentError: A vector is of another model, or a passage has expired already.
    """
    violations = []
    for item in passages:
        age = (archive.now - item.create_time).total_seconds()
        if archive.time_to_live and age >= archive.time_to_live:
            problem = (
                f"is older than the {archive.time_to_live} seconds that the archive keeps passages"
            )
            violations.append(FieldViolation(f"{item.field}.create_time", problem))
        if item.vector is None:
            continue
        if item.vector.model != archive.model:
            problem = f"must be {archive.model!r}, the model of the archive"
            violations.append(FieldViolation(f"{item.field}.embedding_model", problem))
        elif item.vector.dim != archive.dim:
            problem = f"must have {archive.dim} numbers, the dimension of the archive"
            violations.append(FieldViolation(f"{item.field}.embedding", problem))
    if violations:
        raise InvalidArgumentError(
            "The archive cannot hold these passages.", violations=violations[:_MOST_VIOLATIONS]
        )


def _as_stored(new: NewPassage, archive_id: str, near_duplicate_ids: tuple[str, ...]) -> Passage:
    return Passage(
        id=new.id,
        archive_id=archive_id,
        text=new.content.text,
        tags=new.tags,
        metadata=dict(new.metadata),
        origin=new.origin,
        token_count=new.content.token_count,
        revision=1,
        indexed=False,
        create_time=new.create_time,
        update_time=new.store_time,
        near_duplicate_ids=near_duplicate_ids,
    )


def _repeated(row: Any, passages: Sequence[NewPassage], request: RequestKey) -> InsertedPassage:
    if row.insert_digest:
        check_same_request(request.id, row.insert_digest, request.digest)
    # An earlier release stored no digest, and a changed passage no longer has the text to compare.
    elif row.revision == 1 and [row.content_hash] != [item.content_hash for item in passages]:
        raise request_id_reused(request.id)
    return InsertedPassage(to_passage(row), duplicate=False)
