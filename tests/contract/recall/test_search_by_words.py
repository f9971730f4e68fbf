"""Searching messages in PostgreSQL alone, without an index."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from callers import as_project
from recall_conversations import START, Writer
from strata.protocol.errors import NotFoundError
from strata.recall.domain.messages import Message
from strata.recall.domain.search import SearchQuery
from strata.recall.search.message_search import MessageSearch
from strata.recall.store import PostgresSearchStore
from strata.shared import context
from strata.shared.clock import SystemClock
from strata.shared.db import Database, sql
from strata.shared.ids import new_id
from strata.shared.messages import MessageRole

AGENT = new_id("agent")


@pytest.fixture
def search(database: Database) -> MessageSearch:
    return MessageSearch(PostgresSearchStore(database), None, SystemClock())


@pytest.fixture
async def writer(database: Database) -> Writer:
    writer = Writer(database, AGENT)
    await writer.open()
    return writer


async def search_texts(search: MessageSearch, query: str, **fields: Any) -> list[str]:
    limit = fields.pop("limit", 10)
    answer = await search.search(SearchQuery(AGENT, query, limit, **fields))
    return [hit.item.id for hit in answer.hits]


async def test_a_query_matches_messages_with_some_of_its_words(
    search: MessageSearch, writer: Writer
) -> None:
    both = await writer.say("My dog is a spaniel called Rex, he loves the beach.")
    one = await writer.say("The beach was full.")
    await writer.say("I had soup.")
    assert await search_texts(search, "what does my dog do at the beach") == [both.id, one.id]


async def test_a_quoted_phrase_matches_adjacent_words_only(
    search: MessageSearch, writer: Writer
) -> None:
    phrase = await writer.say("We met in the blue house near the station.")
    await writer.say("The house was painted blue.")
    assert await search_texts(search, '"blue house"') == [phrase.id]


async def test_filters_apply_before_the_limit(search: MessageSearch, writer: Writer) -> None:
    wanted = await writer.say("peanut allergy")
    run = new_id("run")
    for _ in range(12):
        await writer.say("peanut butter again", MessageRole.ASSISTANT)
    await writer.say("peanut question", run=run)
    assert await search_texts(
        search, "peanut", roles=(MessageRole.USER,), exclude_run_id=run, limit=1
    ) == [wanted.id]


async def test_dates_limit_the_results(search: MessageSearch, writer: Writer) -> None:
    first = await writer.say("lisbon trip")
    second = await writer.say("lisbon trip")
    assert await search_texts(search, "lisbon", start_time=second.create_time) == [second.id]
    assert await search_texts(search, "lisbon", end_time=second.create_time) == [first.id]


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("我住在北京市朝阳区", "北京"),
        ("わたしは寿司が好きです", "寿司"),
        ("저는 부산에서 태어났어요", "부산"),
        ("ฉันชอบกินข้าวผัด", "ข้าวผัด"),
    ],
)
async def test_languages_without_spaces_are_found(
    search: MessageSearch, writer: Writer, text: str, query: str
) -> None:
    message = await writer.say(text)
    await writer.say("天気がいい")
    assert await search_texts(search, query) == [message.id]


async def test_searches_are_not_found_by_searches(search: MessageSearch, writer: Writer) -> None:
    call = {
        "type": "tool_call",
        "tool_call_id": "c1",
        "name": "conversation_search",
        "arguments": '{"query": "violin"}',
    }
    await writer.say("Let me look for violin", MessageRole.ASSISTANT, "", call)
    assert await search_texts(search, "violin") == []


async def test_the_system_message_is_never_found(search: MessageSearch, writer: Writer) -> None:
    assert await search_texts(search, "dogs", roles=tuple(MessageRole)) == []


async def test_stop_words_and_unusual_queries_find_nothing_without_an_error(
    search: MessageSearch, writer: Writer
) -> None:
    await writer.say("hello there")
    for query in ("the of and", "!!!", '"', "-", "a & | ! <-> b", "\\", ":*", "''"):
        await search_texts(search, query)
    assert await search_texts(search, "the of and") == []


async def test_other_agents_and_projects_are_not_searched(
    search: MessageSearch, database: Database, writer: Writer
) -> None:
    other = Writer(database, new_id("agent"))
    await other.open()
    await other.say("secret word xylophone")
    assert await search_texts(search, "xylophone") == []
    await writer.say("my xylophone")
    outside = as_project()
    with context.use(outside), pytest.raises(NotFoundError):
        await search_texts(search, "xylophone")


async def test_a_hit_has_its_neighbours(search: MessageSearch, writer: Writer) -> None:
    before = await writer.say("one")
    hit = await writer.say("saxophone")
    after = await writer.say("three")
    hits = (await search.search(SearchQuery(AGENT, "saxophone", 5, neighbours=1))).hits
    assert hits[0].item.id == hit.id
    assert [item.id for item in hits[0].neighbours] == [before.id, after.id]


async def test_neighbours_are_text_messages_of_other_runs(
    search: MessageSearch, writer: Writer
) -> None:
    call = {"type": "tool_call", "tool_call_id": "c1", "name": "f", "arguments": "{}"}
    tool_return = {
        "type": "tool_return",
        "tool_call_id": "c1",
        "name": "f",
        "status": "OK",
        "content": "r",
        "stdout": [],
        "stderr": [],
        "provenance": "TOOL",
    }
    question = await writer.say("Which one did you take?")
    await writer.say("", MessageRole.ASSISTANT, "", call)
    await writer.say("", MessageRole.TOOL, "", tool_return)
    hit = await writer.say("The saxophone.", MessageRole.ASSISTANT)
    run = new_id("run")
    await writer.say("And what did I say?", run=run)
    query = SearchQuery(AGENT, "saxophone", 5, neighbours=2, exclude_run_id=run)
    (best,) = (await search.search(query)).hits
    assert best.item.id == hit.id
    assert [item.id for item in best.neighbours] == [question.id]


async def test_neighbours_of_an_agent_that_uses_send_message_are_its_sent_texts(
    search: MessageSearch, writer: Writer
) -> None:
    def call(name: str, arguments: str) -> dict[str, str]:
        return {"type": "tool_call", "tool_call_id": "c1", "name": name, "arguments": arguments}

    hit = await writer.say("Do you like the saxophone?")
    looks = call("conversation_search", '{"query": "instruments"}')
    await writer.say("I will look for it.", MessageRole.ASSISTANT, "", looks)
    heartbeat = Message(
        id=new_id("message"),
        role=MessageRole.USER,
        parts=({"type": "text", "text": '{"type": "heartbeat"}'},),
        create_time=START,
        provenance=("system",),
    )
    run = new_id("run")
    await writer.windows.begin_turn(writer.conversation, writer.agent, run, 1, [heartbeat])
    answer = await writer.say(
        "", MessageRole.ASSISTANT, "", call("send_message", '{"message": "Very much."}')
    )
    (best,) = (await search.search(SearchQuery(AGENT, "saxophone", 5, neighbours=2))).hits
    assert best.item.id == hit.id
    assert [item.id for item in best.neighbours] == [answer.id]


async def test_neighbours_are_of_the_same_conversation_and_not_deleted(
    search: MessageSearch, database: Database, writer: Writer
) -> None:
    async def hit_and_neighbours() -> tuple[str, list[str]]:
        (best,) = (await search.search(SearchQuery(AGENT, "saxophone", 5, neighbours=5))).hits
        return best.item.id, [item.id for item in best.neighbours]

    # The messages of all agents have the same sequence numbers.
    for agent in (AGENT, new_id("agent")):
        other = Writer(database, agent)
        await other.open()
        for words in ("one", "two", "three"):
            await other.say(words)
    with context.use(as_project()):
        outside = Writer(database, AGENT)
        outside.conversation = writer.conversation
        await outside.open()
        for words in ("one", "two", "three"):
            await outside.say(words)
    hit = await writer.say("my saxophone")
    # The newest message has nothing after it, and the system message is not a neighbour.
    assert await hit_and_neighbours() == (hit.id, [])
    gone = await writer.say("gone")
    after = await writer.say("after")
    assert await hit_and_neighbours() == (hit.id, [gone.id, after.id])
    statement = sql("DELETE FROM recall.messages WHERE id = :id")
    async with database.transaction() as connection:
        await connection.execute(statement, {"id": gone.id})
    assert await hit_and_neighbours() == (hit.id, [after.id])


async def test_messages_of_the_time_named_in_the_query_come_first(
    search: MessageSearch, writer: Writer
) -> None:
    moments = [datetime(2026, month, 12, tzinfo=UTC) for month in (2, 3, 4)]
    february, march, april = [await writer.say("the boat race", at=moment) for moment in moments]
    now = datetime(2026, 11, 21, tzinfo=UTC)
    in_march = await search_texts(search, "the boat race last March", reference_time=now)
    assert in_march == [march.id, april.id, february.id]


async def test_without_an_index_every_hit_is_marked_as_found_by_words_only(
    search: MessageSearch, writer: Writer
) -> None:
    message = await writer.say("My harp is blue.")
    answer = await search.search(SearchQuery(AGENT, "blue harp", 5, explain=True))
    [hit] = answer.hits
    assert (hit.item.id, hit.mode, hit.vector_rank, hit.fts_rank) == (message.id, "fts", None, 1)
    assert "by its words at rank 1" in hit.why
    assert "Only its words were searched" in hit.why


async def test_a_newer_statement_of_the_same_person_marks_the_older_one(
    search: MessageSearch, writer: Writer
) -> None:
    old = await writer.say("I live in Bristol.", name="Ada")
    await writer.say("You live in Bristol.", MessageRole.ASSISTANT)
    await writer.say("I live in Bristol, too.", name="Ben")
    new = await writer.say("We moved to Cardiff, no more Bristol.", name="Ada")
    answer = await search.search(SearchQuery(AGENT, "Bristol", 10, explain=True))
    marks = {hit.item.id: hit.outdated for hit in answer.hits if hit.outdated}
    assert len(answer.hits) == 4
    assert {name: mark.newer_id for name, mark in marks.items()} == {old.id: new.id}
    (why,) = [hit.why for hit in answer.hits if hit.item.id == old.id]
    assert f"the newer {new.id} states" in why


async def test_without_the_newer_statement_among_the_results_nothing_is_marked(
    search: MessageSearch, writer: Writer
) -> None:
    await writer.say("I live in Bristol.")
    await writer.say("We moved to Cardiff.")
    answer = await search.search(SearchQuery(AGENT, "Bristol", 10))
    assert [hit.outdated for hit in answer.hits] == [None]
