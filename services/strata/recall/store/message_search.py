"""Searches messages in PostgreSQL by words, and loads the hits of the index by id."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from strata.recall.domain.messages import Message
from strata.recall.domain.search import DEFAULT_ROLES, MOST_SPEAKERS, SearchQuery
from strata.recall.domain.search_text import split_text
from strata.recall.store.rows import COLUMNS, named_sql, to_message
from strata.recall.store.window_check import check_windows, missing_agent
from strata.shared.context import current_project
from strata.shared.db import Database, DatabaseConnection, Row, SqlStatement, sql
from strata.shared.search.result_merge import DatabaseSnapshot
from strata.shared.search.time_expressions import TimeRange
from strata.shared.tool_catalogue import HISTORY_TOOLS, SEND_MESSAGE

# Maximum of matches that are ranked, newest first: ranking reads the text of every match.
RANKED_MATCHES = 1_000
# Maximum of words of a query that are searched.
_MOST_WORDS = 40
# Scores of words are some tenths, plus 1 for a message with every word. The bonus puts messages
# of a time that the query mentions before others with the same words.
_SPOKEN_BONUS = 0.2

_WAITING = "m.index_state = 'pending'"
_NOT_INDEXED = "m.index_state <> 'indexed'"
# A thread takes longer to answer than the conversion of so few messages.
_CONVERTED_AT_ONCE = 20
# Quoted phrases and excluded words, which are strict conditions.
_STRICT = re.compile(r'(?<!\S)-?"[^"]+"|(?<!\S)-\w\S*')
_SEARCHES = " || ".join(f'@.name == "{name}"' for name in sorted(HISTORY_TOOLS))
# Messages between a question and its answer are skipped: tool calls, announcements of searches,
# returns, and messages that the system wrote in the user's role; see `searchable_text`.
_NEAR = """
    SELECT m.* FROM recall.messages m
    WHERE m.project_id = :project AND m.conversation_id = middle_conversation
      AND m.sequence {side} middle_sequence AND m.role = ANY(CAST(:roles AS text[]))
      AND (:excluded = '' OR m.run_id <> :excluded)
      AND NOT (m.role = 'user' AND m.provenance = '{{system}}')
      AND m.parts @? '$[*] ? (
          (@.type == "text" || @.type == "summary") && @.text != "" || @.type == "image"
          || @.type == "tool_call" && @.name == "{send_message}"
      )'
      AND NOT m.parts @? '$[*] ? (@.type == "tool_call" && ({searches}))'
    ORDER BY m.sequence {order} LIMIT CAST(:count AS bigint)
"""
_NAMES = {"send_message": SEND_MESSAGE, "searches": _SEARCHES}
# PostgreSQL must not see how many messages there are: with their number every call seems cheaper
# than the plan for all calls, and is planned anew, which takes three times as long as it runs.
_AROUND = sql(
    f"""
    WITH middle AS (
        SELECT * FROM unnest(
            (SELECT CAST(:ids AS text[])), (SELECT CAST(:conversations AS text[])),
            (SELECT CAST(:sequences AS bigint[]))
        ) AS m(middle_id, middle_conversation, middle_sequence)
    )
    SELECT middle_id, {COLUMNS} FROM middle CROSS JOIN LATERAL (
        ({_NEAR.format(side="<", order="DESC", **_NAMES)})
        UNION ALL
        ({_NEAR.format(side=">", order="ASC", **_NAMES)})
    ) near
    ORDER BY middle_id, sequence
    """
)
# Each step goes to the next name in the index, instead of reading all messages with a name.
_NEXT_NAME = """
    SELECT m.name FROM recall.messages m
    WHERE m.project_id = :project AND m.agent_id = :agent
      AND m.name <> '' AND m.role = 'user' {after}
    ORDER BY m.name LIMIT 1
"""
_SPEAKERS = sql(
    f"""
    WITH RECURSIVE speakers AS (
        ({_NEXT_NAME.format(after="")})
        UNION ALL
        SELECT ({_NEXT_NAME.format(after="AND m.name > speakers.name")})
        FROM speakers WHERE name IS NOT NULL
    )
    SELECT
        ARRAY(SELECT name FROM speakers WHERE name IS NOT NULL LIMIT CAST(:most AS bigint))
            AS names,
        EXISTS (SELECT FROM recall.windows WHERE project_id = :project AND agent_id = :agent)
            AS known
    """
)


class PostgresSearchStore:
    """Implements `SearchStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @asynccontextmanager
    async def open_snapshot(
        self, query: SearchQuery, time_ranges: Sequence[TimeRange], *, all_words: bool = False
    ) -> AsyncIterator[DatabaseSnapshot[Message]]:
        """Opens a snapshot of the messages that meet the query's conditions and phrases."""
        beside_index = _beside_index(query, all_words=all_words)
        # The best plan for many messages depends on the words.
        alone = beside_index == (_WAITING,)
        async with self._database.transaction(snapshot=True, generic_plan=alone) as connection:
            yield _Snapshot(connection, query, time_ranges, beside_index)

    async def speakers(self, agent_id: str) -> list[str]:
        """Returns the names of people who wrote to an agent."""
        (row,) = await self._database.query(_SPEAKERS, agent=agent_id, most=MOST_SPEAKERS)
        if not row.known:
            raise missing_agent(agent_id)
        return list(row.names)

    async def by_words(
        self, query: SearchQuery, time_ranges: Sequence[TimeRange]
    ) -> list[tuple[Message, float]]:
        """Returns messages by words."""
        async with self._database.transaction(read_only=True) as connection:
            return await _find(connection, query, time_ranges)

    async def check_agent(self, agent_id: str, conversation_id: str) -> None:
        """Refuses an agent or a conversation of it that does not exist."""
        await check_windows(self._database, agent_id, conversation_id)

    async def around(
        self, messages: Sequence[Message], count: int, *, exclude_run_id: str = ""
    ) -> dict[str, tuple[Message, ...]]:
        """Returns the neighbours of each message."""
        values = {
            "ids": [message.id for message in messages],
            "conversations": [message.conversation_id for message in messages],
            "sequences": [message.sequence for message in messages],
            "count": count,
            "roles": [role.value for role in DEFAULT_ROLES],
            "excluded": exclude_run_id,
        }
        by_id: dict[str, list[Message]] = {}
        rows = await self._database.query(_AROUND, **values)
        for row, message in zip(rows, await _messages(rows), strict=True):
            by_id.setdefault(row.middle_id, []).append(message)
        return {name: tuple(neighbours) for name, neighbours in by_id.items()}


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """Implements `DatabaseSnapshot`."""

    connection: DatabaseConnection
    query: SearchQuery
    time_ranges: Sequence[TimeRange]
    beside_index: tuple[str, ...]

    async def waiting(self) -> list[tuple[Message, float]]:
        """Searches messages that are not indexed by words, or all for a query with phrases."""
        return await _find(self.connection, self.query, self.time_ranges, self.beside_index)

    async def by_ids(self, ids: Sequence[str]) -> dict[str, Message]:
        """Returns messages by id."""
        conditions, values = _conditions(self.query)
        values |= {"ids": list(ids), "strict": _strict(self.query)}
        statement = _with(_BY_IDS, tuple(conditions))
        rows = (await self.connection.execute(statement, values)).all()
        return {message.id: message for message in await _messages(rows)}


async def _find(
    connection: DatabaseConnection,
    query: SearchQuery,
    time_ranges: Sequence[TimeRange],
    more: Sequence[str] = (),
) -> list[tuple[Message, float]]:
    words = split_text(query.text)
    conditions, values = _conditions(query)
    values |= {
        "words": words.words,
        "pairs": words.pairs,
        "strict": _strict(query),
        "ranked": RANKED_MATCHES,
        "most_words": _MOST_WORDS,
        "limit": query.limit,
        "starts": [time_range.start for time_range in time_ranges],
        "ends": [time_range.end for time_range in time_ranges],
        "bonus": _SPOKEN_BONUS,
    }
    statement = _with(_BY_WORDS, (*conditions, *more))
    rows = (await connection.execute(statement, values)).all()
    scores = [float(row.score) for row in rows]
    return list(zip(await _messages(rows), scores, strict=True))


async def _messages(rows: Sequence[Row]) -> list[Message]:
    if len(rows) <= _CONVERTED_AT_ONCE:
        return [to_message(row) for row in rows]
    # In a thread, since converting many long messages would block the event loop.
    return await asyncio.to_thread(lambda: [to_message(row) for row in rows])


# The cache has one statement for each combination of conditions; values are bound.
@cache
def _with(statement: str, conditions: tuple[str, ...]) -> SqlStatement:
    return sql(statement.format(conditions=" AND ".join(conditions)))


def _beside_index(query: SearchQuery, *, all_words: bool) -> tuple[str, ...]:
    """Returns the condition for the messages that are searched by words beside the index."""
    # A phrase may be in a message that is not a candidate of the index.
    if all_words or _strict(query):
        return ()
    return (_NOT_INDEXED,) if query.beyond_index else (_WAITING,)


def _strict(query: SearchQuery) -> str:
    return " ".join(_STRICT.findall(query.text))


def _conditions(query: SearchQuery) -> tuple[list[str], dict[str, Any]]:
    conditions = [
        "m.project_id = :project",
        "m.agent_id = :agent",
        "m.role = ANY(CAST(:roles AS text[]))",
    ]
    values: dict[str, Any] = {
        "project": current_project(),
        "agent": query.agent_id,
        "roles": [role.value for role in query.roles],
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
    return conditions, values


# Any word may match, since people ask in sentences, and rare words count more than common ones.
# PostgreSQL's own ranking ignores rarity and prefers long texts with many common words. A query
# with "-word" is used unchanged.
_BY_WORDS = f"""
    WITH full_queries AS (
        SELECT DISTINCT w.search_language,
               websearch_to_tsquery(w.search_language, :words)
                   && plainto_tsquery('simple', :pairs) AS all_words
        FROM recall.windows w WHERE w.project_id = :project AND w.agent_id = :agent
    ), queries AS (
        SELECT search_language, all_words,
               CASE WHEN all_words::text LIKE '%!%' THEN all_words
                    ELSE replace(all_words::text, ' & ', ' | ')::tsquery END AS any_word
        FROM full_queries WHERE numnode(all_words) > 0
    ), matches AS MATERIALIZED (
        -- A concatenated vector is in memory; the stored one is decompressed at every access.
        SELECT m.*, queries.all_words, m.search_vector || ''::tsvector AS vector
        FROM recall.messages m JOIN queries USING (search_language)
        WHERE {{conditions}} AND m.search_vector @@ queries.any_word
          AND (:strict = ''
               OR m.search_vector @@ websearch_to_tsquery(m.search_language, :strict))
        ORDER BY m.create_time DESC, m.id DESC LIMIT :ranked
    ), words AS (
        SELECT DISTINCT search_language, quote_literal(lexeme)::tsquery AS word
        FROM queries, unnest(tsvector_to_array(
            to_tsvector(search_language, :words) || to_tsvector('simple', :pairs)
        )) AS lexeme
        LIMIT :most_words
    ), word_shares AS (
        -- The weight of a word: each repetition adds less, and words of long texts weigh less.
        SELECT m.id, CAST(ts_rank(m.vector, words.word, 1) AS float8) AS share,
               count(*) OVER (PARTITION BY words.word) AS match_count
        FROM matches m JOIN words USING (search_language) WHERE m.vector @@ words.word
    ), word_score AS (
        SELECT id,
               sum(share * ln(1 + (:ranked - match_count + 0.5) / (match_count + 0.5)))
                   AS word_score
        FROM word_shares GROUP BY id
    ), best AS (
        SELECT matches.*, CAST(
            word_score
            + CASE WHEN vector @@ all_words THEN 1 ELSE 0 END
            + CASE WHEN EXISTS (
                SELECT 1 FROM unnest(CAST(:starts AS timestamptz[]), CAST(:ends AS timestamptz[]))
                    AS mentioned(first, until)
                WHERE create_time >= coalesce(first, '-infinity')
                  AND create_time < coalesce(until, 'infinity')
              ) THEN CAST(:bonus AS float8) ELSE 0 END AS float8) AS score
        FROM matches JOIN word_score USING (id)
        ORDER BY score DESC, create_time DESC, id DESC LIMIT :limit
    )
    SELECT {COLUMNS}, score FROM best ORDER BY score DESC, create_time DESC, id DESC
"""
# Forces a lookup by id first, even if statistics of a growing table are outdated.
_BY_IDS = f"""
    WITH by_id AS MATERIALIZED (SELECT m.* FROM {named_sql("CAST(:ids AS text[])")})
    SELECT {COLUMNS} FROM by_id m
    WHERE {{conditions}}
      AND (:strict = '' OR m.search_vector @@ websearch_to_tsquery(m.search_language, :strict))
"""
