"""Converts archives, passages and chunks of files to rows and back."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from datetime import datetime
from typing import Any

from strata.archival.domain.chunks import FileChunk
from strata.archival.domain.history import Author, Operation
from strata.archival.domain.near_duplicates import BITS
from strata.archival.domain.passages import Archive, NewPassage, Origin, Passage
from strata.shared.db import Row


def columns_of(table: str, names: Iterable[str]) -> str:
    """Returns columns of a table, as in SQL.

    Args:
        table: The alias of the table in the statement.
        names: The names of the columns.
    """
    return ", ".join(f"{table}.{name}" for name in names)


def version_columns(table: str) -> str:
    """Returns `VERSION_COLUMNS` of a table with this alias."""
    return columns_of(table, _VERSION)


def chunk_columns(table: str) -> str:
    """Returns `CHUNK_COLUMNS` of a table with this alias."""
    return columns_of(table, _CHUNK)


def joined_archive(passages: str) -> str:
    """Returns SQL for passages ``p`` with their archives ``a``.

    Args:
        passages: The table or subquery of passages.
    """
    return f"""
        {passages} p
        JOIN archival.archives a ON a.project_id = p.project_id AND a.id = p.archive_id
    """


_ORIGIN = tuple(field.name for field in fields(Origin) if field.name != "taint")
PASSAGES = joined_archive("archival.passages")
"""Passages ``p`` with their archives ``a``, which `UNEXPIRED` needs."""
LOCK_PASSAGES = "FOR KEY SHARE OF a FOR UPDATE OF p"
"""Locks rows of `PASSAGES` for a change: the archive first, as its deletion does."""


def unexpired(passage: str, archive: str) -> str:
    """Returns SQL for the condition that a passage has not expired.

    Args:
        passage: The alias of the passage in the statement.
        archive: The alias of its archive.
    """
    return (
        f"({archive}.time_to_live = 0 OR {passage}.create_time >"
        f" now() - {archive}.time_to_live * interval '1 second')"
    )


UNEXPIRED = unexpired("p", "a")
# The columns that an archive is read from and stored with.
_ARCHIVE = (
    "id",
    "name",
    "description",
    "time_to_live",
    "own_agent_id",
    "own_model",
    "create_time",
    "update_time",
)
# Further columns that are stored; their values in a response depend on other rows.
_COMPUTED = ("embedding_model", "embedding_dim", "passage_count")
# The cutoff is computed beforehand, because with row security an expression with a column cannot
# use the index.
ARCHIVE = f"""
    SELECT {columns_of("a", _ARCHIVE)},
        coalesce(s.model, a.embedding_model) AS embedding_model,
        coalesce(s.dim, a.embedding_dim) AS embedding_dim,
        a.passage_count - CASE WHEN a.time_to_live = 0 THEN 0 ELSE (
            WITH expiry AS MATERIALIZED (
                SELECT now() - a.time_to_live * interval '1 second' AS cutoff)
            SELECT count(*) FROM archival.passages p, expiry
            WHERE p.project_id = a.project_id AND p.archive_id = a.id AND NOT p.purge
              AND NOT p.deleted AND p.create_time <= expiry.cutoff) END AS passage_count,
        ARRAY(SELECT agent_id FROM archival.agent_archives x
              WHERE x.project_id = a.project_id AND x.archive_id = a.id ORDER BY 1) AS agent_ids,
        (SELECT count(*) FROM archival.passages p
          WHERE p.project_id = a.project_id AND p.archive_id = a.id
            AND p.indexed_revision < p.revision AND NOT p.deleted) AS unindexed_count
    FROM archival.archives a LEFT JOIN archival.serving_indexes s
      ON s.project_id = '' AND s.slot = 'passages' AND a.own_model = ''
    WHERE a.project_id = :project
"""
"""Selects archives ``a`` of a project for `to_archive`; conditions can be appended.

Expired passages that are not destroyed yet do not count.
"""
INSERT_ARCHIVE = f"""
    INSERT INTO archival.archives (project_id, request_id, {", ".join(_ARCHIVE + _COMPUTED)})
    VALUES (:project, :request, {", ".join(f":{name}" for name in _ARCHIVE + _COMPUTED)})
"""
"""Stores a new archive; its parameters are `archive_values`, the project and the request id."""
# The columns that a passage and its versions share, with their types.
_CONTENT = {"text": "text", "tags": "text[]", "metadata": "jsonb", "token_count": "integer"}
# The columns that a new passage is stored with, with their types.
_NEW = {
    "id": "text",
    **_CONTENT,
    "origin": "jsonb",
    "content_hash": "text",
    "create_time": "timestamptz",
    "change": "jsonb",
}
_STATE = ("revision", "indexed_revision", "deleted", "create_time", "update_time")
PASSAGE_COLUMNS = f"""
    {columns_of("p", ("id", "archive_id", *_CONTENT, "origin", *_STATE))},
    ARRAY(SELECT n.id FROM unnest(p.near_ids) WITH ORDINALITY AS near (id, place)
          -- OFFSET: look up by id, even if the planner's statistics of a growing table are
          -- outdated.
          CROSS JOIN LATERAL (
              SELECT * FROM archival.passages
              WHERE project_id = p.project_id AND id = near.id OFFSET 0
          ) n
          JOIN archival.archives na ON na.project_id = n.project_id AND na.id = n.archive_id
          WHERE NOT n.deleted AND NOT n.purge AND {unexpired("n", "na")}
          ORDER BY near.place) AS near_ids
"""
"""The columns of passages ``p`` for `to_passage`."""
RECORD = ", ".join(
    f"{name} {type_}"
    for name, type_ in {
        **_NEW,
        "store_time": "timestamptz",
        "sketch": f"bit({BITS})",
        "bands": "bigint[]",
        "model": "text",
        "vector": "text",
    }.items()
)
"""The columns of the records of `to_records`, with their types."""
INSERT_COLUMNS = ", ".join(("project_id", "archive_id", *_NEW))
"""The columns of a new row of passages; `RECORD_COLUMNS` are among them, in the same order."""
RECORD_COLUMNS = columns_of("r", _NEW)
"""The columns of records ``r`` that are stored in a row of passages."""
_VERSION = (*_CONTENT, "change")
VERSION_COLUMNS = ", ".join(_VERSION)
"""The columns that `archival.passages` and `archival.passage_versions` share."""
EMPTIED = """
    deleted = true, purge = true, text = '', tags = '{}', metadata = '{}', origin = '{}',
    content_hash = '', request_id = '', near_ids = '{}', change = '{}', change_request_id = '',
    change_digest = '', revision = p.revision + 1, update_time = now()
"""
"""Assignments that leave a tombstone of a passage ``p``; see `pending_passages`."""
_CHUNK = {
    "ordinal": "integer",
    "text": "text",
    "start_line": "integer",
    "end_line": "integer",
    "heading": "text",
}
CHUNK_COLUMNS = ", ".join(_CHUNK)
"""The columns of a chunk for `to_chunk`."""
NEW_CHUNKS = ", ".join(f"CAST(:{name} AS {type_}[])" for name, type_ in _CHUNK.items())
"""The parameters of new chunks: an array per column, see `chunk_values`."""


def to_archive(row: Row) -> Archive:
    """Returns the archive of a row of `ARCHIVE`."""
    return Archive(**{**dict(row), "agent_ids": tuple(row.agent_ids)})


def archive_values(archive: Archive) -> dict[str, Any]:
    """Returns the parameters of `INSERT_ARCHIVE` that hold the archive."""
    return {name: getattr(archive, name) for name in _ARCHIVE + _COMPUTED}


def archive_to_json(archive: Archive) -> dict[str, Any]:
    """Returns an archive as JSON for a receipt."""
    return {
        **asdict(archive),
        "create_time": archive.create_time.isoformat(),
        "update_time": archive.update_time.isoformat(),
    }


def archive_from_json(fields: dict[str, Any]) -> Archive:
    """Returns the archive of a receipt."""
    return Archive(
        **{
            **fields,
            "create_time": datetime.fromisoformat(fields["create_time"]),
            "update_time": datetime.fromisoformat(fields["update_time"]),
            "agent_ids": tuple(fields["agent_ids"]),
        }
    )


def to_passage(row: Row) -> Passage:
    """Returns the passage of a row with `PASSAGE_COLUMNS`."""
    return Passage(
        id=row.id,
        archive_id=row.archive_id,
        **content_values(row),
        origin=origin_from_json(row.origin),
        revision=row.revision,
        indexed=row.indexed_revision >= row.revision,
        create_time=row.create_time,
        update_time=row.update_time,
        deleted=row.deleted,
        near_duplicate_ids=tuple(row.near_ids),
    )


def content_values(row: Row) -> dict[str, Any]:
    """Returns the fields of a passage that its versions have, too."""
    return {
        "text": row.text,
        "tags": tuple(row.tags),
        "metadata": from_json(row.metadata),
        "token_count": row.token_count,
    }


def to_chunk(row: Row) -> FileChunk:
    """Returns the chunk of a row with `CHUNK_COLUMNS`."""
    return FileChunk(row.ordinal, row.text, row.start_line, row.end_line, row.heading)


def chunk_values(chunks: Sequence[FileChunk]) -> dict[str, list[Any]]:
    """Returns the parameters of `NEW_CHUNKS`."""
    return {name: [getattr(chunk, name) for chunk in chunks] for name in _CHUNK}


def to_records(passages: Sequence[NewPassage], archive_id: str) -> str:
    """Returns passages for an archive as a JSON array of `RECORD` rows."""
    return json.dumps([_record(passage, archive_id) for passage in passages], ensure_ascii=False)


def _record(passage: NewPassage, archive_id: str) -> dict[str, Any]:
    content, vector = passage.content, passage.vector
    author = Author(passage.principal, passage.origin)
    return {
        "id": passage.id,
        "text": content.text,
        "tags": passage.tags,
        "metadata": dict(passage.metadata),
        "origin": origin_to_json(passage.origin),
        "content_hash": passage.content_hash,
        "token_count": content.token_count,
        "create_time": passage.create_time.isoformat(),
        "store_time": passage.store_time.isoformat(),
        "change": change_to_json(Operation.INSERT, author),
        "sketch": content.signature.sketch,
        "bands": content.signature.within(archive_id),
        "model": vector.model if vector else None,
        "vector": b64encode(vector.packed).decode() if vector else None,
    }


def change_to_json(
    operation: Operation, author: Author, taint: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Returns the JSON of a change: operation, author and reason.

    Args:
        operation: The operation.
        author: The author.
        taint: The taint labels of the passage after it, if they differ from the author's.
    """
    fields = {"taint": taint} if taint else {}
    return fields | {
        "operation": operation,
        "principal": author.principal,
        "origin": origin_to_json(author.origin),
        "reason": author.reason,
    }


def origin_to_json(origin: Origin) -> dict[str, Any]:
    """Returns the JSON of an origin; ``taint`` is present only if it is not empty."""
    # `asdict` is ten times as slow, since it copies each text.
    fields: dict[str, Any] = {name: getattr(origin, name) for name in _ORIGIN}
    return fields | {"taint": origin.taint} if origin.taint else fields


def origin_from_json(fields: Any) -> Origin:
    """Returns the origin of a stored form."""
    values = dict(from_json(fields))
    return Origin(**{**values, "taint": tuple(values.get("taint", ()))})


def taint_of_change(fields: Any, origin: Origin) -> tuple[str, ...]:
    """Returns the taint labels of a version.

    Args:
        fields: The JSON of `change_to_json`; empty for versions older than that column.
        origin: The origin of the passage.
    """
    change = from_json(fields)
    if not change:
        return origin.taint
    return tuple(change.get("taint", change["origin"].get("taint", ())))


def change_from_json(fields: Any, revision: int, origin: Origin) -> tuple[Operation, Author]:
    """Returns operation and author of a version.

    Args:
        fields: The JSON of `change_to_json`; empty for versions older than that column.
        revision: The revision of the version.
        origin: The origin of the passage, used for a first version without JSON.
    """
    change = from_json(fields)
    if not change:
        first = revision == 1
        operation = Operation.INSERT if first else Operation.UPDATE
        return operation, Author(origin=origin if first else Origin())
    author = Author(change["principal"], origin_from_json(change["origin"]), change["reason"])
    return Operation(change["operation"]), author


def from_json(value: Any) -> Any:
    """Returns the value of a jsonb column, which some drivers return as text."""
    return json.loads(value) if isinstance(value, str) else value
