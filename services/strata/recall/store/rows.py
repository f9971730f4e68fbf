"""Converts messages to rows and back."""

from __future__ import annotations

import json
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from strata.recall.domain.messages import Message
from strata.recall.domain.search_text import is_indexed, searchable_text, split_text
from strata.shared.db import Row, sql
from strata.shared.messages import MessageRole
from strata.shared.usage import Usage

# The columns of `recall.messages` that a message is read from and stored with, with their types.
_MESSAGE = {
    "id": "text",
    "role": "text",
    "parts": "jsonb",
    "name": "text",
    "run_id": "text",
    "step_id": "text",
    "step": "integer",
    "group_id": "text",
    "model": "text",
    "usage": "jsonb",
    "provenance": "text[]",
    "pinned": "boolean",
    "client_message_id": "text",
    "create_time": "timestamptz",
}
# The search columns of a message: stored, and not read again.
_SEARCH = {"search_words": "text", "search_pairs": "text", "index_state": "text"}
_STORED = _MESSAGE | _SEARCH
_PLACE = ("conversation_id", "agent_id", "sequence")

_READ = (*_PLACE, *_MESSAGE, "copied_from_id")
COLUMNS = ", ".join(_READ)
"""The columns of a message for `to_message`."""
# Rows are bound as one JSON array, so that any number takes one statement.
RECORD = ", ".join(("ordinal bigint", *(f"{name} {kind}" for name, kind in _STORED.items())))
"""The columns of the records of `to_records`, with their types."""
RECORD_COLUMNS = ", ".join(f"r.{name}" for name in _STORED)
"""The columns of records ``r`` that are stored."""
INSERT_COLUMNS = ", ".join(("project_id", *_PLACE, *_STORED, "search_language"))
"""The columns of a new row; `RECORD_COLUMNS` are among them, in the same order."""


def prefixed_columns(message: str, prefix: str) -> str:
    """Returns the columns of a message for `to_prefixed_message`.

    Args:
        message: Name of the message in the statement.
        prefix: Beginning of the names of the columns in its result.
    """
    return ", ".join(f"{message}.{name} AS {prefix}{name}" for name in _READ)


def named_sql(ids: str) -> str:
    """Returns SQL for the messages ``m`` with some ids, each looked up separately.

    With outdated statistics of a growing table, a query for all ids at once scans the whole
    index by agent and time, which contains the ids too: 7 ms at 20,000 messages, growing
    linearly.

    Args:
        ids: SQL of the ids: a text array without duplicates.
    """
    return f"""
        unnest({ids}) AS requested (requested_id)
        CROSS JOIN LATERAL (
            SELECT * FROM recall.messages
            WHERE project_id = :project AND id = requested_id OFFSET 0
        ) m
    """


# The planner does not see the number of ids in a subquery. If it saw it, it would prefer a plan for
# the ids of each call, which takes longer than reading the messages.
BY_ID = sql(f"SELECT {COLUMNS} FROM {named_sql('(SELECT CAST(:ids AS text[]))')}")
BY_RUN = sql(
    f"SELECT {COLUMNS} FROM recall.messages"
    " WHERE project_id = :project AND run_id = :run AND run_id <> ''"
    " AND conversation_id = :conversation ORDER BY sequence"
)


def to_records(messages: Iterable[Message]) -> str:
    """Returns messages as a JSON array of `RECORD` rows, numbered from 0."""
    return json.dumps(
        [_to_record(ordinal, message) for ordinal, message in enumerate(messages)],
        ensure_ascii=False,
    )


def _to_record(ordinal: int, message: Message) -> dict[str, Any]:
    search_text = split_text(searchable_text(message))
    return {
        "ordinal": ordinal,
        "id": message.id,
        "role": message.role.value,
        "parts": list(message.parts),
        "name": message.name,
        "run_id": message.run_id,
        "step_id": message.step_id,
        "step": message.step,
        "group_id": message.group_id,
        "model": message.model,
        "usage": None if message.usage is None else message.usage.to_json(),
        "provenance": list(message.provenance),
        "pinned": message.pinned,
        "client_message_id": message.client_message_id,
        "create_time": message.create_time.isoformat(),
        "search_words": search_text.words.strip(),
        "search_pairs": search_text.pairs,
        "index_state": "pending" if is_indexed(message) else "none",
    }


def to_message(row: Row | SimpleNamespace) -> Message:
    """Returns the message of a row with `COLUMNS`."""
    return Message(
        conversation_id=row.conversation_id,
        agent_id=row.agent_id,
        sequence=row.sequence,
        id=row.id,
        role=MessageRole(row.role),
        parts=tuple(_json(row.parts)),
        name=row.name,
        run_id=row.run_id,
        step_id=row.step_id,
        step=row.step,
        group_id=row.group_id,
        model=row.model,
        usage=None if row.usage is None else Usage.from_json(_json(row.usage)),
        provenance=tuple(row.provenance),
        pinned=row.pinned,
        client_message_id=row.client_message_id,
        create_time=row.create_time,
        copied_from_id=row.copied_from_id,
    )


def to_prefixed_message(row: Row, prefix: str) -> Message | None:
    """Returns the message of a row with `prefixed_columns`; None if they are of no message."""
    if getattr(row, f"{prefix}id") is None:
        return None
    return to_message(SimpleNamespace(**{name: getattr(row, prefix + name) for name in _READ}))


def _json(value: Any) -> Any:
    # Some drivers return jsonb as text.
    return json.loads(value) if isinstance(value, str) else value
