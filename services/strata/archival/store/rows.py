"""Archives and passages between the domain and rows."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import asdict, fields
from datetime import datetime
from typing import Any

from sqlalchemy import Row

from strata.archival.domain.history import Author, Operation
from strata.archival.domain.near_duplicates import BITS
from strata.archival.domain.passages import Archive, NewPassage, Origin, Passage


def joined_archive(passages: str) -> str:
    """Returns SQL for passages ``p`` with their archives ``home``.

    Args:
        passages: The table, or what stands for it.
    """
    return f"""
        {passages} p
        JOIN archival.archives home ON home.project_id = p.project_id AND home.id = p.archive_id
    """


_ORIGIN = tuple(field.name for field in fields(Origin) if field.name != "taint")
PASSAGES = joined_archive("archival.passages")
"""Passages ``p`` with their archives ``home``, which `UNEXPIRED` asks."""


def unexpired(passage: str, archive: str) -> str:
    """Returns SQL for whether a passage is not older than its archive keeps.

    Args:
        passage: What the passage is called in the statement.
        archive: What its archive is called.
    """
    return (
        f"({archive}.time_to_live = 0 OR {passage}.create_time >"
        f" now() - {archive}.time_to_live * interval '1 second')"
    )


UNEXPIRED = unexpired("p", "home")
PASSAGE_COLUMNS = f"""
    p.id, p.archive_id, p.text, p.tags, p.metadata, p.origin, p.token_count, p.revision,
    p.indexed_revision, p.deleted, p.create_time, p.update_time,
    ARRAY(SELECT n.id FROM unnest(p.near_ids) WITH ORDINALITY AS near (id, place)
          -- OFFSET: by id, whatever the planner thinks of a table that has just grown.
          CROSS JOIN LATERAL (
              SELECT * FROM archival.passages
              WHERE project_id = p.project_id AND id = near.id OFFSET 0
          ) n
          JOIN archival.archives a ON a.project_id = n.project_id AND a.id = n.archive_id
          WHERE NOT n.deleted AND NOT n.purge AND {unexpired("n", "a")}
          ORDER BY near.place) AS near_ids
"""
"""Of passages that are called ``p``."""
RECORD = f"""
    id text, text text, tags text[], metadata jsonb, origin jsonb, content_hash text,
    token_count integer, create_time timestamptz, store_time timestamptz, change jsonb,
    sketch bit({BITS}), bands bigint[], model text, vector text
"""
"""What `to_records` writes."""


def to_archive(row: Row[Any]) -> Archive:
    """Returns the archive of a row."""
    return Archive(
        id=row.id,
        name=row.name,
        description=row.description,
        embedding_model=row.present_model,
        embedding_dim=row.present_dim,
        time_to_live=row.time_to_live,
        passage_count=row.living_count,
        create_time=row.create_time,
        update_time=row.update_time,
        own_agent_id=row.own_agent_id,
        agent_ids=tuple(row.agent_ids),
        unindexed_count=row.unindexed_count,
        own_model=row.own_model,
    )


def archive_values(archive: Archive) -> dict[str, Any]:
    """Returns what a new archive is stored from."""
    return {
        "id": archive.id,
        "name": archive.name,
        "description": archive.description,
        "model": archive.embedding_model,
        "dim": archive.embedding_dim,
        "own_model": archive.own_model,
        "ttl": archive.time_to_live,
        "own": archive.own_agent_id,
        "now": archive.create_time,
    }


def archive_to_json(archive: Archive) -> dict[str, Any]:
    """Returns an archive as a receipt keeps it."""
    return {
        **asdict(archive),
        "create_time": archive.create_time.isoformat(),
        "update_time": archive.update_time.isoformat(),
    }


def archive_from_json(stored: dict[str, Any]) -> Archive:
    """Returns the archive of a receipt."""
    return Archive(
        **{
            **stored,
            "create_time": datetime.fromisoformat(stored["create_time"]),
            "update_time": datetime.fromisoformat(stored["update_time"]),
            "agent_ids": tuple(stored["agent_ids"]),
        }
    )


def to_passage(row: Row[Any]) -> Passage:
    """Returns the passage of a row with `PASSAGE_COLUMNS`."""
    return Passage(
        id=row.id,
        archive_id=row.archive_id,
        text=row.text,
        tags=tuple(row.tags),
        metadata=from_json(row.metadata),
        origin=origin_from_json(row.origin),
        token_count=row.token_count,
        revision=row.revision,
        indexed=row.indexed_revision >= row.revision,
        create_time=row.create_time,
        update_time=row.update_time,
        deleted=row.deleted,
        near_duplicate_ids=tuple(row.near_ids),
    )


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
        "sketch": content.likeness.sketch,
        "bands": content.likeness.within(archive_id),
        "model": vector.model if vector else None,
        "vector": b64encode(vector.packed).decode() if vector else None,
    }


def change_to_json(
    operation: Operation, author: Author, taint: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Returns how a change is kept: what was done, by whom and why.

    Args:
        operation: What was done.
        author: By whom and why.
        taint: The mark of the passage after it, if that is not what its author had read.
    """
    kept = {"taint": taint} if taint else {}
    return kept | {
        "operation": operation,
        "principal": author.principal,
        "origin": origin_to_json(author.origin),
        "reason": author.reason,
    }


def origin_to_json(origin: Origin) -> dict[str, Any]:
    """Returns how an origin is kept; what has no taint reads as it did before there was one."""
    # `asdict` copies each text, ten times as slowly.
    kept: dict[str, Any] = {name: getattr(origin, name) for name in _ORIGIN}
    return kept | {"taint": origin.taint} if origin.taint else kept


def origin_from_json(kept: Any) -> Origin:
    """Returns the origin of a stored form."""
    found = dict(from_json(kept))
    return Origin(**{**found, "taint": tuple(found.get("taint", ()))})


def taint_of_change(kept: Any, origin: Origin) -> tuple[str, ...]:
    """Returns the mark that a version had.

    Args:
        kept: What `change_to_json` gave, or less from before changes were kept.
        origin: Of the passage.
    """
    found = from_json(kept)
    if not found:
        return origin.taint
    return tuple(found.get("taint", found["origin"].get("taint", ())))


def change_from_json(kept: Any, revision: int, origin: Origin) -> tuple[Operation, Author]:
    """Returns operation and author of a version.

    Args:
        kept: What `change_to_json` gave, or less from before changes were kept.
        revision: Of the version.
        origin: Of the passage, which is the author's if nothing was kept of the first version.
    """
    found = from_json(kept)
    if not found:
        first = revision == 1
        operation = Operation.INSERT if first else Operation.UPDATE
        return operation, Author(origin=origin if first else Origin())
    author = Author(found["principal"], origin_from_json(found["origin"]), found["reason"])
    return Operation(found["operation"]), author


def from_json(value: Any) -> Any:
    """Returns the value of a jsonb column; a driver without a codec gives the text."""
    return json.loads(value) if isinstance(value, str) else value
