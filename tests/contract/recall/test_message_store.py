"""The contract of `MessageStore`, on PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from strata.recall.domain.messages import Message, MessageFilter, Role, SearchQuery
from strata.recall.migrations import MIGRATIONS
from strata.recall.store import PostgresMessageStore, PostgresWindowStore
from strata.shared import context
from strata.shared.context import Caller, RequestContext
from strata.shared.db import Database
from strata.shared.ids import new_id

START = datetime(2026, 1, 1, tzinfo=UTC)
AGENT = new_id("agent")


@pytest.fixture(autouse=True)
def project() -> Iterator[None]:
    with context.use(RequestContext(caller=Caller(new_id("org"), new_id("project"), "key"))):
        yield


@pytest.fixture
async def database(databases: Any) -> AsyncIterator[Database]:
    urls = await databases.of(MIGRATIONS)
    database = Database(urls.service_url)
    yield database
    await database.close()


@pytest.fixture
def log(database: Database) -> PostgresMessageStore:
    return PostgresMessageStore(database)


class Writer:
    """Stores messages a day apart in one conversation."""

    def __init__(self, database: Database, agent: str = AGENT) -> None:
        self.windows = PostgresWindowStore(database)
        self.agent = agent
        self.conversation = new_id("conversation")
        self.day = 0

    async def open(self) -> None:
        system = Message(
            id=new_id("message"),
            role=Role.SYSTEM,
            parts=({"type": "text", "text": "memory about dogs"},),
            create_time=START,
        )
        await self.windows.open(self.conversation, self.agent, [system], "english")

    async def say(self, text: str, role: Role = Role.USER, run: str = "", *parts: Any) -> Message:
        self.day += 1
        run = run or new_id("run")
        message = Message(
            id=new_id("message"),
            role=role,
            parts=({"type": "text", "text": text}, *parts) if text else tuple(parts),
            create_time=START + timedelta(days=self.day),
            run_id=run,
        )
        start = await self.windows.begin_turn(self.conversation, self.agent, run, 1, [message])
        return start.inputs[0]


@pytest.fixture
async def writer(database: Database) -> Writer:
    writer = Writer(database)
    await writer.open()
    return writer


async def found(log: PostgresMessageStore, text: str, **fields: Any) -> list[str]:
    limit = fields.pop("limit", 10)
    hits = await log.search(SearchQuery(AGENT, text, limit, **fields))
    return [hit.message.id for hit in hits]


async def test_words_need_not_stand_together_nor_all_match(
    log: PostgresMessageStore, writer: Writer
) -> None:
    both = await writer.say("My dog is a spaniel called Rex, he loves the beach.")
    one = await writer.say("The beach was full.")
    await writer.say("I had soup.")
    assert await found(log, "what does my dog do at the beach") == [both.id, one.id]


async def test_a_quoted_phrase_must_stand_together(
    log: PostgresMessageStore, writer: Writer
) -> None:
    phrase = await writer.say("We met in the blue house near the station.")
    await writer.say("The house was painted blue.")
    assert await found(log, '"blue house"') == [phrase.id]


async def test_filters_apply_before_the_limit(log: PostgresMessageStore, writer: Writer) -> None:
    wanted = await writer.say("peanut allergy")
    run = new_id("run")
    for _ in range(12):
        await writer.say("peanut butter again", Role.ASSISTANT)
    await writer.say("peanut question", run=run)
    assert await found(log, "peanut", roles=(Role.USER,), exclude_run_id=run, limit=1) == [
        wanted.id
    ]


async def test_dates_limit_what_is_found(log: PostgresMessageStore, writer: Writer) -> None:
    first = await writer.say("lisbon trip")
    second = await writer.say("lisbon trip")
    assert await found(log, "lisbon", start_time=second.create_time) == [second.id]
    assert await found(log, "lisbon", end_time=second.create_time) == [first.id]


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
    log: PostgresMessageStore, writer: Writer, text: str, query: str
) -> None:
    said = await writer.say(text)
    await writer.say("天気がいい")
    assert await found(log, query) == [said.id]


async def test_searches_are_not_found_by_searches(
    log: PostgresMessageStore, writer: Writer
) -> None:
    call = {
        "type": "tool_call",
        "tool_call_id": "c1",
        "name": "conversation_search",
        "arguments": '{"query": "violin"}',
    }
    await writer.say("Let me look for violin", Role.ASSISTANT, "", call)
    assert await found(log, "violin") == []


async def test_the_system_message_is_not_found(log: PostgresMessageStore, writer: Writer) -> None:
    assert await found(log, "dogs", roles=tuple(Role)) == []


async def test_stop_words_and_odd_queries_find_nothing_and_do_not_fail(
    log: PostgresMessageStore, writer: Writer
) -> None:
    await writer.say("hello there")
    for query in ("the of and", "!!!", '"', "-", "a & | ! <-> b", "\\", ":*", "''"):
        await found(log, query)
    assert await found(log, "the of and") == []


async def test_other_agents_and_projects_are_not_searched(
    log: PostgresMessageStore, database: Database, writer: Writer
) -> None:
    other = Writer(database, new_id("agent"))
    await other.open()
    await other.say("secret word xylophone")
    assert await found(log, "xylophone") == []
    await writer.say("my xylophone")
    outside = RequestContext(caller=Caller(new_id("org"), new_id("project"), "key"))
    with context.use(outside):
        assert await found(log, "xylophone") == []


async def test_neighbours_come_with_a_hit(log: PostgresMessageStore, writer: Writer) -> None:
    before = await writer.say("one")
    hit = await writer.say("saxophone")
    after = await writer.say("three")
    hits = await log.search(SearchQuery(AGENT, "saxophone", 5, neighbours=1))
    assert hits[0].message.id == hit.id
    assert [item.id for item in hits[0].neighbours] == [before.id, after.id]


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("by_agent", [False, True])
async def test_pages_give_every_message_once(
    log: PostgresMessageStore, writer: Writer, newest_first: bool, by_agent: bool
) -> None:
    said = [(await writer.say(f"message {number}")).id for number in range(7)]
    wanted = MessageFilter(
        agent_id=AGENT if by_agent else "",
        conversation_id="" if by_agent else writer.conversation,
        roles=(Role.USER,),
        newest_first=newest_first,
    )
    seen: list[str] = []
    cursor = None
    while True:
        page = await log.page(wanted, 3, cursor)
        seen += [item.id for item in page.messages]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == (said[::-1] if newest_first else said)
