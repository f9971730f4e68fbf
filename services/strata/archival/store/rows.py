"""Archives and passages between the domain and rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from sqlalchemy import Row

from strata.archival.domain.passages import Archive, NewPassage, Origin, Passage

PASSAGE_COLUMNS = (
    "id, archive_id, text, tags, metadata, origin, token_count, revision, indexed_revision,"
    " deleted, create_time, update_time"
)
RECORD = (
    "id text, text text, tags text[], metadata jsonb, origin jsonb, content_hash text,"
    " token_count integer, create_time timestamptz"
)


def to_archive(row: Row[Any]) -> Archive:
    """Returns the archive of a row."""
    return Archive(
        id=row.id,
        name=row.name,
        description=row.description,
        embedding_model=row.embedding_model,
        embedding_dim=row.embedding_dim,
        time_to_live=row.time_to_live,
        passage_count=row.passage_count,
        create_time=row.create_time,
        update_time=row.update_time,
        own_agent_id=row.own_agent_id,
        agent_ids=tuple(row.agent_ids),
        unindexed_count=row.unindexed_count,
    )


def archive_values(archive: Archive) -> dict[str, Any]:
    """Returns what a new archive is stored from."""
    return {
        "id": archive.id,
        "name": archive.name,
        "description": archive.description,
        "model": archive.embedding_model,
        "dim": archive.embedding_dim,
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
        origin=Origin(**from_json(row.origin)),
        token_count=row.token_count,
        revision=row.revision,
        indexed=row.indexed_revision >= row.revision,
        create_time=row.create_time,
        update_time=row.update_time,
        deleted=row.deleted,
    )


def to_records(passages: Sequence[NewPassage]) -> str:
    """Returns passages as a JSON array of `RECORD` rows."""
    return json.dumps(
        [
            {
                "id": passage.id,
                "text": passage.text,
                "tags": passage.tags,
                "metadata": dict(passage.metadata),
                "origin": asdict(passage.origin),
                "content_hash": passage.content_hash,
                "token_count": passage.token_count,
                "create_time": passage.create_time.isoformat(),
            }
            for passage in passages
        ],
        ensure_ascii=False,
    )


def from_json(value: Any) -> Any:
    """Returns the value of a jsonb column; a driver without a codec gives the text."""
    return json.loads(value) if isinstance(value, str) else value
