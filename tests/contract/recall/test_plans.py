"""Query plans of PostgreSQL with outdated statistics."""

from __future__ import annotations

import re
from dataclasses import replace

from plans import generic_plan_of, plan_of
from recall_conversations import START
from strata.recall.domain.messages import Message, MessageFilter
from strata.recall.domain.search import SearchQuery
from strata.recall.store import PostgresMessageStore, PostgresSearchStore, PostgresWindowStore
from strata.shared.db import Database, sql
from strata.shared.ids import new_id
from strata.shared.messages import MessageRole


def message_on_day(number: int) -> Message:
    return Message(
        id=new_id("message"),
        role=MessageRole.USER,
        parts=({"type": "text", "text": f"Message number {number}."},),
        create_time=START,
    )


async def grown(database: Database, count: int) -> tuple[str, str, list[Message]]:
    """Stores many messages of an agent after the last statistics."""
    agent, conversation = new_id("agent"), new_id("conversation")
    messages = [message_on_day(number) for number in range(count)]
    await PostgresWindowStore(database).open(conversation, agent, messages, "english")
    return agent, conversation, messages


async def assert_read_by_id(database: Database, statement: str) -> None:
    """Asserts that messages are read by id; the index by agent and time would read all of them."""
    for elements in (1, 30, 200):
        plan = await plan_of(database, statement, elements=elements)
        assert "messages_id" in plan, plan
        assert "messages_by_agent" not in plan
        assert "Seq Scan" not in plan


async def test_hits_are_read_by_id_in_a_table_that_has_just_grown(database: Database) -> None:
    agent, _, messages = await grown(database, 4_000)
    ids = [message.id for message in messages[::200]]
    with database.statistics.record() as texts:
        query = SearchQuery(agent, "number", 10)
        async with PostgresSearchStore(database).open_snapshot(query, []) as snapshot:
            assert set(await snapshot.by_ids(ids)) == set(ids)
    (statement,) = texts
    await assert_read_by_id(database, statement)


async def test_a_window_is_read_by_id_in_a_table_that_has_just_grown(database: Database) -> None:
    """It is read at each turn, whose time must not grow with the log."""
    await grown(database, 4_000)
    _, conversation, messages = await grown(database, 25)
    with database.statistics.record() as texts:
        window = await PostgresWindowStore(database).get(conversation)
    assert [message.id for message in window.messages] == [message.id for message in messages]
    await assert_read_by_id(database, texts[-1])


async def test_neighbours_are_read_by_position_in_a_table_that_has_just_grown(
    database: Database,
) -> None:
    _, _, messages = await grown(database, 4_000)
    stored = await PostgresMessageStore(database).get(messages[2_000].id)
    with database.statistics.record() as texts:
        around = await PostgresSearchStore(database).around([stored], 1)
    assert [item.id for item in around[stored.id]] == [messages[1_999].id, messages[2_001].id]
    (statement,) = texts
    for elements in (1, 30):
        plan = await plan_of(database, statement, elements=elements)
        assert "messages_pkey" in plan, plan
        assert "Seq Scan" not in plan


async def test_the_ids_of_a_long_window_are_not_compressed(database: Database) -> None:
    """Each turn writes them twice, and to compress them takes longer than to write them."""
    _, conversation, _ = await grown(database, 200)
    async with database.transaction(read_only=True) as connection:
        row = await connection.execute(
            sql(
                "SELECT pg_column_compression(message_ids) AS method, cardinality(message_ids) AS n"
                " FROM recall.windows WHERE conversation_id = :conversation"
            ),
            {"conversation": conversation},
        )
        assert tuple(row.one()) == (None, 200)


async def test_neighbours_are_not_planned_anew_for_each_search(database: Database) -> None:
    """To plan the statement takes three times as long as to run it."""
    _, _, messages = await grown(database, 40)
    store = PostgresSearchStore(database)
    stored = [await PostgresMessageStore(database).get(item.id) for item in messages[10:20:2]]
    for _ in range(6):
        await store.around(stored, 1)
    (row,) = await database.system_query(
        sql("SELECT generic_plans FROM pg_prepared_statements WHERE statement LIKE :part"),
        {"part": "%middle_id%"},
    )
    assert row.generic_plans >= 1


async def test_summaries_are_listed_without_the_other_messages(database: Database) -> None:
    agent, conversation = new_id("agent"), new_id("conversation")
    messages = [message_on_day(number) for number in range(4_000)]
    parts = ({"type": "summary", "text": "So far.", "covered_count": 1},)
    messages[1_000] = replace(messages[1_000], role=MessageRole.SUMMARY, parts=parts)
    await PostgresWindowStore(database).open(conversation, agent, messages, "english")
    wanted = MessageFilter(conversation_id=conversation, roles=(MessageRole.SUMMARY,))
    with database.statistics.record() as texts:
        page = await PostgresMessageStore(database).page(wanted, 50, None)
    assert [message.id for message in page.messages] == [messages[1_000].id]
    plan = await generic_plan_of(database, texts[-1])
    assert re.search(r"messages_summaries on messages m\b", plan), plan


async def test_names_are_read_from_their_index_in_a_table_that_has_just_grown(
    database: Database,
) -> None:
    """They are read at each search, whose time must not grow with the log."""
    agent, _, _ = await grown(database, 4_000)
    with database.statistics.record() as texts:
        assert await PostgresSearchStore(database).speakers(agent) == []
    (statement,) = texts
    plan = await plan_of(database, statement, elements=1)
    assert "messages_by_name" in plan, plan
    assert "messages_by_agent" not in plan
    assert "Seq Scan" not in plan
