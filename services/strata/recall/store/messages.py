"""The log in PostgreSQL, for reading and searching."""

from __future__ import annotations

from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from strata.recall.domain.messages import (
    Cursor,
    Message,
    MessageFilter,
    MessagePage,
    SearchHit,
    SearchQuery,
)
from strata.recall.domain.search_text import split_text
from strata.recall.store.rows import COLUMNS, to_message
from strata.shared.context import current_project
from strata.shared.db import Database
from strata.shared.errors import NotFoundError, Reason

# Ranking reads the text of all_words match; older matches than these are not ranked.
RANKED_MATCHES = 1_000

_GET = text(f"SELECT {COLUMNS} FROM recall.messages WHERE project_id = :project AND id = :id")
_AROUND = text(
    f"SELECT {COLUMNS} FROM recall.messages"
    " WHERE project_id = :project AND conversation_id = :conversation"
    " AND sequence BETWEEN :first AND :last AND sequence <> :middle AND role <> 'system'"
    " ORDER BY sequence"
)


class PostgresMessageStore:
    """Implements `MessageStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, message_id: str) -> Message:
        """Returns a message."""
        async with self._database.transaction(read_only=True) as connection:
            found = await connection.execute(_GET, {"project": current_project(), "id": message_id})
            row = found.one_or_none()
        if row is None:
            raise _missing(message_id)
        return to_message(row)

    async def page(self, wanted: MessageFilter, limit: int, cursor: Cursor | None) -> MessagePage:
        """Returns a page, by sequence in a conversation, by time over those of an agent."""
        conditions = ["project_id = :project"]
        values: dict[str, Any] = {"project": current_project(), "limit": limit + 1}
        if wanted.conversation_id:
            conditions.append("conversation_id = :conversation")
            values["conversation"] = wanted.conversation_id
        else:
            conditions.append("agent_id = :agent")
            values["agent"] = wanted.agent_id
        if wanted.roles:
            conditions.append("role = ANY(CAST(:roles AS text[]))")
            values["roles"] = [role.value for role in wanted.roles]
        if wanted.run_id:
            conditions.append("run_id = :run")
            values["run"] = wanted.run_id
        keys = ["sequence"] if wanted.conversation_id else ["create_time", "id"]
        if cursor is not None:
            marks = ", ".join(f":after_{index}" for index in range(len(keys)))
            conditions.append(
                f"({', '.join(keys)}) {'<' if wanted.newest_first else '>'} ({marks})"
            )
            values.update({f"after_{index}": part for index, part in enumerate(cursor)})
        direction = "DESC" if wanted.newest_first else "ASC"
        order = ", ".join(f"{key} {direction}" for key in keys)
        statement = text(
            f"SELECT {COLUMNS} FROM recall.messages"
            f" WHERE {' AND '.join(conditions)} ORDER BY {order} LIMIT :limit"
        )
        async with self._database.transaction(read_only=True) as connection:
            rows = (await connection.execute(statement, values)).all()
        messages = [to_message(row) for row in rows[:limit]]
        if len(rows) <= limit:
            return MessagePage(messages)
        last = messages[-1]
        return MessagePage(
            messages,
            (last.sequence,) if wanted.conversation_id else (last.create_time, last.id),
        )

    async def search(self, query: SearchQuery) -> list[SearchHit]:
        """Returns the best matches by words; all filters stand before the limit."""
        words = split_text(query.text)
        if not words:
            return []
        statement, values = _search(query, words.words, words.pairs)
        async with self._database.transaction(read_only=True) as connection:
            rows = (await connection.execute(statement, values)).all()
            hits = [
                SearchHit(to_message(row), rank, float(row.score))
                for rank, row in enumerate(rows, start=1)
            ]
            if not query.neighbours:
                return hits
            return [await self._with_neighbours(connection, hit, query.neighbours) for hit in hits]

    async def _with_neighbours(
        self, connection: AsyncConnection, hit: SearchHit, count: int
    ) -> SearchHit:
        sequence = hit.message.sequence
        rows = await connection.execute(
            _AROUND,
            {
                "project": current_project(),
                "conversation": hit.message.conversation_id,
                "first": sequence - count,
                "last": sequence + count,
                "middle": sequence,
            },
        )
        neighbours = tuple(to_message(row) for row in rows)
        return SearchHit(hit.message, hit.rank, hit.score, neighbours)


def _search(query: SearchQuery, words: str, pairs: str) -> tuple[Any, dict[str, Any]]:
    conditions = [
        "m.project_id = :project",
        "m.agent_id = :agent",
        "m.role = ANY(CAST(:roles AS text[]))",
    ]
    values: dict[str, Any] = {
        "project": current_project(),
        "agent": query.agent_id,
        "roles": [role.value for role in query.roles],
        "words": words,
        "pairs": pairs,
        "ranked": RANKED_MATCHES,
        "limit": query.limit,
    }
    optional = {
        "conversation": ("m.conversation_id = :conversation", query.conversation_id),
        "start": ("m.create_time >= :start", query.start_time),
        "until": ("m.create_time < :until", query.end_time),
        "excluded": ("m.run_id <> :excluded", query.exclude_run_id),
    }
    for name, (condition, value) in optional.items():
        if value:
            conditions.append(condition)
            values[name] = value
    # Any word may match, since people ask in sentences; a message with all of them
    # comes first. A query with "-word" is taken as it stands.
    statement = text(
        f"""
        WITH asked AS (
            SELECT DISTINCT w.search_language,
                   websearch_to_tsquery(w.search_language, :words)
                       && plainto_tsquery('simple', :pairs) AS all_words
            FROM recall.windows w WHERE w.project_id = :project AND w.agent_id = :agent
        ), wanted AS (
            SELECT search_language, all_words,
                   CASE WHEN all_words::text LIKE '%!%' THEN all_words
                        ELSE replace(all_words::text, ' & ', ' | ')::tsquery END AS any_word
            FROM asked WHERE numnode(all_words) > 0
        ), matches AS (
            SELECT m.*, wanted.all_words, wanted.any_word
            FROM recall.messages m JOIN wanted USING (search_language)
            WHERE {" AND ".join(conditions)} AND m.search_vector @@ wanted.any_word
            ORDER BY m.create_time DESC, m.id DESC LIMIT :ranked
        )
        SELECT {COLUMNS}, ts_rank_cd(search_vector, any_word)
               + CASE WHEN search_vector @@ all_words THEN 1 ELSE 0 END AS score
        FROM matches ORDER BY score DESC, create_time DESC, id DESC LIMIT :limit
        """
    )
    return statement, values


def _missing(message_id: str) -> NotFoundError:
    return NotFoundError(
        f"Message {message_id} does not exist.",
        reason=Reason.MESSAGE_NOT_FOUND,
        metadata={"id": message_id},
    )
