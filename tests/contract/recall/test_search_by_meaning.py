"""Search over PostgreSQL, the real embedding model and the real engine."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import asyncpg
import pytest

from callers import as_project
from message_finder import Finder, finder_on
from polling import eventually
from qdrant_requests import RecordingClient, projects_of
from recall_conversations import START, Writer
from strata.protocol.errors import NotFoundError
from strata.recall.domain.messages import Message
from strata.recall.domain.search import Mode, SearchQuery
from strata.recall.search.backlogs import MessageBacklog
from strata.recall.search.index import MESSAGES, MessageIndex, entries_of
from strata.recall.search.message_search import MessageSearch
from strata.recall.store import PendingMessages, PostgresSearchStore
from strata.shared import context
from strata.shared.clock import SystemClock
from strata.shared.context import calling_project
from strata.shared.db import Database, sql
from strata.shared.ids import new_id
from strata.shared.messages import MessageRole
from strata.shared.metric_names import INDEX_LAG_SECONDS, INDEX_WAITING
from strata.shared.search.embedding import Embedder
from strata.shared.search.embedding.base import Kind, WrappedEmbedder
from strata.shared.search.indexing.text_index import IndexEntry
from strata.shared.search.qdrant_wire import common
from strata.shared.search.vectors.client import connect
from strata.shared.search.vectors.qdrant import QdrantIndex
from strata.shared.search.vectors.sparse import SparseEncoder
from strata.standalone.vectors import EmbeddedVectors


@pytest.fixture
async def finder(
    vectors: EmbeddedVectors, embedder: Embedder, database: Database, worker: Database
) -> AsyncIterator[Finder]:
    made = await finder_on(vectors, embedder, database, worker)
    yield made
    await made.vectors.close()


async def test_a_message_is_found_by_meaning(finder: Finder) -> None:
    violin = await finder.writer.say("Every evening he plays the violin.")
    await finder.writer.say("The car is blue.")
    await finder.writer.say("She is allergic to peanuts.")
    await finder.index_all()
    answer = await finder.ask("Which musical instrument does he know?")
    best = answer.hits[0]
    assert (best.item.id, best.vector_rank) == (violin.id, 1)
    assert best.mode in {"vector", "hybrid"}


async def test_a_message_does_not_wait_for_a_backlog_of_earlier_messages(finder: Finder) -> None:
    for number in range(100):
        await finder.writer.say(f"Line {number} of a long story.")
    message = await finder.writer.say("The wifi password is tulip-42.")
    await finder.indexer.index_pending()
    (hit, *_) = (await finder.ask("wifi password")).hits
    assert (hit.item.id, hit.mode) == (message.id, "hybrid")


class Overtaken:
    """An index that indexes all pending texts right after each answer."""

    def __init__(self, finder: Finder) -> None:
        self._finder = finder

    async def has_unknown_words(self, query: str) -> bool:
        return await self._finder.index.has_unknown_words(query)

    async def search(self, *args: Any, **more: Any) -> Any:
        hits = await self._finder.index.search(*args, **more)
        await self._finder.index_all()
        return hits


async def test_items_indexed_during_the_search_are_found(finder: Finder) -> None:
    message = await finder.writer.say("The wifi password is tulip-42.")
    search = MessageSearch(finder.search._store, cast("Any", Overtaken(finder)), SystemClock())
    answer = await search.search(SearchQuery(finder.agent, "wifi password", 5))
    assert [hit.item.id for hit in answer.hits] == [message.id]


async def test_the_index_is_searched_after_the_snapshot_is_taken(finder: Finder) -> None:
    message = await finder.writer.say("The wifi password is tulip-42.")
    query = SearchQuery(finder.agent, "wifi password", 5)
    project = context.current_project()
    [hit] = await finder.index.search(project, query, (), 5, after=finder.index_all)
    assert hit.document_id == message.id


async def test_unindexed_items_are_found_by_their_words(finder: Finder) -> None:
    message = await finder.writer.say("The wifi password is tulip-42.")
    for mode in (Mode.HYBRID, Mode.SEMANTIC):
        [hit] = (await finder.ask("what is the wifi password", mode=mode)).hits
        assert (hit.item.id, hit.mode, hit.fts_rank) == (message.id, "fts", 1)
    await finder.index_all()
    [hit] = (await finder.ask("what is the wifi password")).hits
    assert hit.mode == "hybrid"
    [hit] = (await finder.ask("what is the wifi password", mode=Mode.SEMANTIC)).hits
    assert (hit.mode, hit.fts_rank) == ("vector", None)
    [hit] = (await finder.ask("what is the wifi password", mode=Mode.FULL_TEXT)).hits
    assert (hit.mode, hit.vector_rank) == ("fts", None)


async def test_only_text_of_users_and_assistants_is_indexed(finder: Finder) -> None:
    await finder.writer.say("I moved to Porto.")
    await finder.writer.say("Noted: Porto.", MessageRole.ASSISTANT)
    await finder.writer.say("The user moved to Porto.", MessageRole.SUMMARY)
    call = {
        "type": "tool_call",
        "tool_call_id": "c1",
        "name": "conversation_search",
        "arguments": '{"query": "Porto"}',
    }
    tool_return = {
        "type": "tool_return",
        "tool_call_id": "c1",
        "name": "weather",
        "status": "OK",
        "content": "Rain in Porto",
        "stdout": [],
        "stderr": [],
        "provenance": "TOOL",
    }
    await finder.writer.say("Let me look for Porto", MessageRole.ASSISTANT, "", call)
    tool = await finder.writer.say("", MessageRole.TOOL, "", tool_return)
    await finder.index_all()
    assert await finder.indexed() == 3
    # Tool returns are found by full text, in searches that include tools.
    assert tool.id not in await finder.ids("Porto")
    for mode in Mode:
        assert await finder.ids("Porto", roles=(MessageRole.TOOL,), mode=mode) == [tool.id]


async def test_conditions_hold_inside_the_engine_before_the_limit(finder: Finder) -> None:
    wanted = await finder.writer.say("I am allergic to peanuts.")
    run = new_id("run")
    for _ in range(12):
        await finder.writer.say("You are allergic to peanuts, remember.", MessageRole.ASSISTANT)
    await finder.writer.say("Which peanuts am I allergic to?", run=run)
    await finder.index_all()
    query = SearchQuery(
        finder.agent, "peanut allergy", 1, roles=(MessageRole.USER,), exclude_run_id=run
    )
    assert [hit.item.id for hit in (await finder.search.search(query)).hits] == [wanted.id]
    hits = await finder.index.search(context.current_project(), query, (), 1)
    assert [hit.document_id for hit in hits] == [wanted.id]
    other = Writer(finder.writer.windows._database, finder.agent)
    await other.open()
    there = await other.say("Peanuts again")
    await finder.index_all()
    assert await finder.ids("peanuts", conversation_id=other.conversation) == [there.id]


async def test_times_bound_the_results_to_the_moment(finder: Finder) -> None:
    first = await finder.writer.say("a trip to Lisbon")
    second = await finder.writer.say("a trip to Lisbon")
    await finder.index_all()
    assert await finder.ids("journey to Portugal", start_time=second.create_time) == [second.id]
    assert await finder.ids("journey to Portugal", end_time=second.create_time) == [first.id]


async def test_messages_of_the_time_in_the_query_come_first(finder: Finder) -> None:
    by_month = {}
    for month in (2, 3, 4):
        moment = datetime(2026, month, 12, tzinfo=UTC)
        by_month[month] = await finder.writer.say("We talked about the boat.", at=moment)
    await finder.index_all()
    now = datetime(2026, 11, 21, tzinfo=UTC)
    answer = await finder.ask(
        "what was it about the boat last March", reference_time=now, explain=True
    )
    assert answer.hits[0].item.id == by_month[3].id
    assert {hit.item.id for hit in answer.hits} == {message.id for message in by_month.values()}
    assert "at the time of 'last March'" in answer.hits[0].why
    assert [time_range.words for time_range in answer.time_ranges] == ["last March"]


async def test_days_in_queries_are_those_of_the_timezone(finder: Finder) -> None:
    evening = await finder.writer.say("the red kite", at=datetime(2026, 5, 3, 23, tzinfo=UTC))
    noon = await finder.writer.say("the red kite", at=datetime(2026, 5, 3, 12, tzinfo=UTC))
    await finder.index_all()
    now = datetime(2026, 5, 5, 1, tzinfo=UTC)
    # In Tokyo it is the 5th, and the evening of the 3rd is the morning of the 4th there.
    in_tokyo = await finder.ids("red kite yesterday", reference_time=now, timezone="Asia/Tokyo")
    assert in_tokyo[0] == evening.id
    now = datetime(2026, 5, 4, 1, tzinfo=UTC)
    later = await finder.ids("red kite yesterday", reference_time=now, timezone="no such zone")
    assert sorted(later) == sorted([evening.id, noon.id])


async def test_wording_of_the_question_decides_the_preferred_role(finder: Finder) -> None:
    mine = await finder.writer.say("The best pizza is at Da Remo.")
    yours = await finder.writer.say("The best pizza is at Da Remo.", MessageRole.ASSISTANT)
    await finder.index_all()
    asked = await finder.ask("Where did I say the best pizza is?", explain=True)
    assert [hit.item.id for hit in asked.hits] == [mine.id, yours.id]
    assert "about words of the user" in asked.hits[0].why
    assert await finder.ids("Which pizza did you recommend?") == [yours.id, mine.id]


async def test_an_answer_without_words_of_the_query_is_ranked_before_other_messages_on_the_topic(
    finder: Finder,
) -> None:
    """Messages are in the learned order, which considers the preceding messages."""
    day = datetime(2026, 5, 3, 12, tzinfo=UTC)
    for number, words in enumerate(("Hotels are expensive in summer.", "A hotel in Porto?")):
        await finder.writer.say(words, at=day - timedelta(days=number + 1))
    question = await finder.writer.say("So which hotel in Lisbon was it in the end?", at=day)
    answer = await finder.writer.say(
        "The small one behind the cathedral.", MessageRole.ASSISTANT, at=day + timedelta(minutes=1)
    )
    await finder.index_all()
    response = await finder.ask("Which hotel in Lisbon was booked?", explain=True)
    assert [hit.item.id for hit in response.hits[:2]] == [question.id, answer.id]
    assert "before the learned order" in response.hits[1].why


async def test_a_quoted_phrase_is_a_condition(finder: Finder) -> None:
    phrase = await finder.writer.say("We met in the blue house near the station.")
    await finder.writer.say("The house was painted blue.")
    await finder.writer.say("A dwelling the colour of the sky.")
    await finder.index_all()
    assert await finder.ids('the "blue house"') == [phrase.id]
    assert phrase.id not in await finder.ids("house -station")


async def test_an_identifier_distinguishes_long_messages_that_are_alike(finder: Finder) -> None:
    """Each message has words of its own, so that the vectors of some are nearer to the question."""
    drawn = random.Random(7)
    topics = ("volcano", "pirate", "orchard", "cricket", "comet", "desert", "umbrella", "rainbow")
    messages = []
    for number in range(40):
        details = " ".join(drawn.choices(drawn.sample(topics, 3), k=70))
        statement = f"Order k{number:05}q: the lantern is kept in the harbour."
        messages.append(await finder.writer.say(f"{statement} {details}"))
    await finder.index_all()
    for number in (0, 1, 20, 39):
        answer = await finder.ask(f"Order k{number:05}q: the lantern is kept in the harbour.")
        assert answer.hits[0].item.id == messages[number].id


async def test_the_name_of_the_speaker_is_searched(finder: Finder) -> None:
    hers = await finder.writer.say("I bought a kayak.", name="Caroline")
    await finder.writer.say("I bought a kayak.", name="Melanie")
    await finder.index_all()
    assert (await finder.ids("What did Caroline buy?"))[0] == hers.id


async def test_a_question_about_a_speaker_finds_what_that_person_says_in_the_first_person(
    finder: Finder,
) -> None:
    """Without the wording in the first person, the lost glasses are the best match."""
    day = datetime(2026, 5, 3, 12, tzinfo=UTC)
    for number, words in enumerate(
        (
            "Oswald took up yoga, twice a week.",
            "Dad lost his glasses in the basket of Mrs Evans.",
            "Phoebe's washing machine flooded the flat.",
        )
    ):
        await finder.writer.say(words, at=day + timedelta(days=number), name="Jory")
    answer = await finder.writer.say(
        "Welding is fun, I made a gate. Burned my left thumb though.",
        at=day + timedelta(days=5),
        name="Jory",
    )
    await finder.writer.say(
        "I burned my thumb on the stove.", at=day + timedelta(days=9), name="Nell"
    )
    await finder.index_all()
    response = await finder.ask("What injury did Jory get at his hobby?", explain=True)
    assert response.hits[0].item.id == answer.id
    assert "names 'Jory', who wrote it" in response.hits[0].why


async def test_speakers_are_the_people_who_wrote_to_the_agent(finder: Finder) -> None:
    for name in ("Nell", "Jory", "Nell", ""):
        await finder.writer.say("Good morning.", name=name)
    await finder.writer.say("Good morning.", MessageRole.ASSISTANT, name="Bot")
    store = PostgresSearchStore(finder.writer.windows._database)
    assert await store.speakers(finder.agent) == ["Jory", "Nell"]
    with pytest.raises(NotFoundError):
        await store.speakers(new_id("agent"))


async def test_a_long_message_is_found_by_its_end(finder: Finder) -> None:
    filler = " ".join(f"Point {number} of the meeting was about budgets." for number in range(80))
    message = await finder.writer.say(f"{filler} The spare key lies under the flower pot.")
    await finder.writer.say("Good morning.")
    await finder.index_all()
    ids = await finder.ids("Where is the spare key?")
    assert ids[0] == message.id
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(
    ("words", "query"),
    [
        ("我住在北京市朝阳区", "北京"),
        ("わたしは寿司が好きです", "寿司"),
        ("저는 부산에서 태어났어요", "부산"),
        ("ฉันชอบกินข้าวผัด", "ข้าวผัด"),
    ],
)
async def test_languages_without_spaces_are_found_before_and_after_indexing(
    finder: Finder, words: str, query: str
) -> None:
    message = await finder.writer.say(words)
    await finder.writer.say("天気がいい")
    assert (await finder.ids(query))[0] == message.id
    await finder.index_all()
    best = (await finder.ask(query)).hits[0]
    assert (best.item.id, best.fts_rank) == (message.id, 1)


async def test_another_agent_or_project_is_never_found(finder: Finder) -> None:
    other = Writer(finder.writer.windows._database, new_id("agent"))
    await other.open()
    await other.say("the launch code is 1234")
    await finder.writer.say("nothing to see")
    await finder.index_all()
    assert "1234" not in str(await finder.ask("launch code"))
    with context.use(as_project()):
        for agent, text in ((finder.writer.agent, "nothing to see"), (other.agent, "launch code")):
            with pytest.raises(NotFoundError):
                await finder.search.search(SearchQuery(agent, text, 5))


async def test_excluded_results_are_counted_by_condition(finder: Finder) -> None:
    kept = await finder.writer.say("I keep bees on the roof.")
    early = await finder.writer.say("My bees sleep in winter.", at=START - timedelta(days=9))
    reply = await finder.writer.say("Bees need little in winter.", MessageRole.ASSISTANT)
    await finder.index_all()
    answer = await finder.ask("bees", roles=(MessageRole.USER,), start_time=START, explain=True)
    assert [hit.item.id for hit in answer.hits] == [kept.id]
    exclusions = {
        exclusion.condition: (exclusion.count, exclusion.best_id) for exclusion in answer.exclusions
    }
    assert exclusions == {"roles": (1, reply.id), "start_time": (1, early.id)}
    assert (await finder.ask("bees", roles=(MessageRole.USER,))).exclusions == ()


async def test_every_hit_has_its_neighbours(finder: Finder) -> None:
    messages = [await finder.writer.say(f"number {n}") for n in range(3)]
    harp = await finder.writer.say("a harp")
    after = await finder.writer.say("the end")
    await finder.index_all()
    hit = next(h for h in (await finder.ask("harp", neighbours=2)).hits if h.item.id == harp.id)
    assert [neighbour.id for neighbour in hit.neighbours] == [
        messages[1].id,
        messages[2].id,
        after.id,
    ]


async def test_lag_of_the_index_is_known(finder: Finder) -> None:
    await finder.writer.say("one")
    await finder.writer.say("two")
    await finder.backlog.ensure()
    assert finder.telemetry.total(INDEX_WAITING, collection="messages") == 2
    assert finder.telemetry.total(INDEX_LAG_SECONDS, collection="messages") > 0
    await finder.index_all()
    await finder.backlog.ensure()
    assert finder.telemetry.total(INDEX_WAITING, collection="messages") == 0


async def test_messages_of_a_deleted_agent_are_removed_from_the_index(
    finder: Finder, project: str
) -> None:
    await finder.writer.say("forget me")
    await finder.index_all()
    assert await finder.indexed() == 1
    await finder.writer.windows.delete_agent(finder.agent)
    await finder.index_all()
    assert await finder.indexed() == 0
    # The deletion is kept for a while, for a replica that is still writing.
    agents = await PendingMessages(
        finder.pending._database, finder.pending._worker, timedelta()
    ).deleted_agents()
    assert [(agent.project_id, agent.agent_id) for agent in agents] == [(project, finder.agent)]
    assert agents[0].settled


async def test_messages_deleted_while_they_are_embedded_are_not_indexed(
    finder: Finder, monkeypatch: pytest.MonkeyPatch
) -> None:
    await finder.writer.say("forget me")
    write = finder.index.write

    async def slow(*args: Any) -> None:
        await finder.writer.windows.delete_agent(finder.agent)
        await write(*args)

    monkeypatch.setattr(finder.index, "write", slow)
    await finder.indexer.index_pending()
    assert await finder.indexed() == 0


FACTS = {
    "User is allergic to peanuts.": "What food must I never eat?",
    "The dog is a beagle named Biscuit.": "What breed is my pet?",
    "User's daughter Mia turns six on May 4.": "When is my kid's birthday?",
    "Works as a nurse at St. Mary's hospital.": "What do I do for a living?",
    "Drives a blue 2015 Honda Civic.": "Which car do I own?",
    "Lives in Lisbon since 2021.": "Which city is home for me?",
    "Flight to Tokyo is on November 12 at 9:40.": "When do I leave for Japan?",
    "Plays the cello in an amateur orchestra.": "What instrument do I play?",
    "Favourite author is Ursula K. Le Guin.": "Whose novels do I love most?",
    "Sister Hannah is getting married in September.": "Whose wedding is coming up?",
    "User is training for the Berlin marathon.": "What race am I preparing for?",
    "User broke the left wrist in 2019.": "Which bone injury did I have?",
    "Pays 1,150 euros of rent a month.": "How expensive is my apartment?",
    "User speaks Portuguese and a little Danish.": "Which languages do I know?",
    "Keeps bees on the roof.": "What is my unusual hobby with insects?",
    "User hates cilantro.": "Which herb do I dislike?",
    "Studied chemistry in Porto.": "What was my degree in?",
    "Takes metformin twice a day.": "Which medication am I on?",
    "User quit smoking in January.": "When did I give up cigarettes?",
    "User is afraid of flying.": "Which phobia do I have?",
    "Gym days are Tuesday and Friday.": "On which weekdays do I work out?",
    "The tax adviser is Mr. Keller.": "Who helps me with my tax return?",
    "User's favourite film is Spirited Away.": "Which movie do I like best?",
    "The bicycle was stolen in April.": "What happened to my bike?",
}


async def test_short_facts_are_found_by_paraphrased_questions(finder: Finder) -> None:
    by_question = {question: await finder.writer.say(fact) for fact, question in FACTS.items()}
    await finder.index_all()
    first = third = 0
    for question, message in by_question.items():
        ids = await finder.ids(question, 3)
        first += ids[0] == message.id
        third += message.id in ids
    # The model and the engine give the same results on every machine; full text alone finds five.
    assert first >= 18
    assert third >= 22


async def test_every_request_to_the_engine_names_its_project(
    vectors: EmbeddedVectors, embedder: Embedder, finder: Finder, project: str
) -> None:
    message = await finder.writer.say("my boat in March")
    client = RecordingClient(connect(vectors.url, vectors.api_key))
    index = MessageIndex(QdrantIndex(client), embedder, SparseEncoder())
    await index.ensure()
    await index.write(project, await finder.pending.load(project, [message.id]))
    now = datetime(2026, 11, 21, tzinfo=UTC)
    query = SearchQuery(
        finder.agent, "my boat last March", 5, finder.writer.conversation, end_time=now
    )
    search = MessageSearch(finder.search._store, index, SystemClock())
    for mode in Mode:
        await search.search(replace(query, mode=mode, explain=True))
    await index.remove(project, [message.id])
    await index.remove_agent(project, finder.agent)
    assert {type(request).__name__ for request in client.on_documents} == {
        "UpsertPoints",
        "QueryBatchPoints",
        "CountPoints",
        "DeletePoints",
    }
    for request in client.on_documents:
        assert projects_of(request) == {project}
    await client.close()


class NotingEmbedder(WrappedEmbedder):
    """An embedder that records the project of each call."""

    def __init__(self, inner: Embedder) -> None:
        super().__init__(inner)
        self.projects: set[str] = set()

    async def embed(self, texts: Sequence[str], kind: Kind) -> list[list[float]]:
        self.projects.add(calling_project())
        return await self._inner.embed(texts, kind)


async def test_messages_are_embedded_on_behalf_of_their_project(
    vectors: EmbeddedVectors, embedder: Embedder, finder: Finder, project: str
) -> None:
    message = await finder.writer.say("my boat in March")
    client = connect(vectors.url, vectors.api_key)
    noting = NotingEmbedder(embedder)
    index = MessageIndex(QdrantIndex(client), noting, SparseEncoder())
    await index.ensure()
    messages = await finder.pending.load(project, [message.id])
    # Like an indexer, which does not serve a call.
    with context.use(context.RequestContext()):
        await index.write(project, messages)
    await client.close()
    assert noting.projects == {project}


async def test_worker_role_cannot_read_messages(worker: Database) -> None:
    for column in ("parts", "search_words", "agent_id"):
        with pytest.raises(asyncpg.PostgresError, match="permission denied"):
            async with worker.system_transaction(read_only=True) as connection:
                await connection.execute(sql(f"SELECT {column} FROM recall.messages"))


async def test_without_the_engine_full_text_search_answers_and_indexing_resumes_later(
    embedder: Embedder, database: Database, worker: Database, open_folder: Any
) -> None:
    engine = EmbeddedVectors(open_folder / "vectors")
    await engine.start()
    finder = await finder_on(engine, embedder, database, worker)
    try:
        cat = await finder.writer.say("The cat is called Momo.")
        await finder.index_all()
        dog = await finder.writer.say("The dog is called Bello.")
        assert engine.pid is not None
        # The engine restarts only after the query has reached it, however slow the query is.
        asked = asyncio.Event()
        launch = engine._supervisor._launch

        async def launch_later() -> Any:
            await asked.wait()
            return await launch()

        engine._supervisor._launch = launch_later
        os.kill(engine.pid, signal.SIGKILL)
        answer = await finder.ask("what is the dog called")
        assert {hit.item.id for hit in answer.hits} == {cat.id, dog.id}
        assert {hit.mode for hit in answer.hits} == {"fts"}
        asked.set()
        running = asyncio.create_task(finder.indexer.run())
        try:
            await eventually(lambda: _has_caught_up(finder, 2))
            assert set(await finder.ids("name of the pet")) == {cat.id, dog.id}
            # The engine has lost its data: the index is rebuilt during searches.
            client = connect(engine.url, engine.api_key)
            for generation in await finder.vectors.generations(MESSAGES):
                await client.delete_collection(generation)
            await client.close()
            answer = await finder.ask("what is the dog called")
            assert {hit.item.id for hit in answer.hits} == {cat.id, dog.id}
            await eventually(lambda: _has_caught_up(finder, 2))
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    finally:
        await finder.vectors.close()
        await engine.stop()


async def test_messages_are_indexed_again_if_the_collection_is_empty_at_the_start(
    finder: Finder, vectors: EmbeddedVectors
) -> None:
    cat = await finder.writer.say("my cat is called Ada")
    await finder.index_all()
    client = connect(vectors.url, vectors.api_key)
    for generation in await finder.vectors.generations(MESSAGES):
        await client.delete(generation, common.Filter())
    await client.close()
    # The process that emptied it does not look again: texts without words leave it empty, too.
    await finder.backlog.ensure()
    await finder.index_all()
    assert await finder.ids("name of the pet", mode=Mode.SEMANTIC) == []
    backlog = MessageBacklog(finder.pending, finder.index, finder.telemetry, batch=8)
    await backlog.ensure()
    await finder.index_all()
    assert await finder.ids("name of the pet", mode=Mode.SEMANTIC) == [cat.id]


async def _has_caught_up(finder: Finder, count: int) -> bool:
    hits = (await finder.ask("name of the pet", mode=Mode.SEMANTIC)).hits
    return len(hits) == count and all(hit.vector_rank for hit in hits)


async def test_unrelated_query_finds_nothing(finder: Finder) -> None:
    for words in ("I moved to Porto.", "She is allergic to peanuts.", "The car is blue."):
        await finder.writer.say(words)
    await finder.index_all()
    assert await finder.ids("zzzqqq") == []
    assert await finder.ids("zzzqqq", mode=Mode.SEMANTIC) == []
    assert await finder.ids("tungsten") == []
    assert len(await finder.ids("what must she not eat")) >= 1


async def test_a_topic_query_has_a_lower_relevance_floor_than_a_question(
    finder: Finder,
) -> None:
    """The similarity of the topic and the trip is 0.16, below the floor of a question."""
    for words in ("She is allergic to peanuts.", "The car is blue."):
        await finder.writer.say(words)
    trip = await finder.writer.say("I am off to Porto in May.")
    await finder.index_all()
    assert await finder.ids("travel plans") == [trip.id]


@pytest.mark.parametrize(
    "query",
    [
        "asdf qwer",
        "blorptz grmpfl",
        "\u7ae0\u9c7c",  # Chinese: octopus
        "\u706b\u5c71\u600e\u4e48\u5f62\u6210",  # Chinese: how do volcanoes form
        "\U0001f419",
    ],
)
async def test_words_unknown_to_the_model_match_only_texts_that_contain_them(
    finder: Finder, query: str
) -> None:
    trip = await finder.writer.say(
        "\u6211\u4e94\u6708\u8981\u53bb\u6ce2\u5c14\u56fe\u65c5\u884c\u3002"
    )
    for words in ("She is allergic to peanuts.", "\U0001f389 The exam went well."):
        await finder.writer.say(words)
    await finder.index_all()
    assert await finder.ids(query) == []
    assert await finder.ids("\u65c5\u884c") == [trip.id]


async def test_results_below_the_relevance_floor_are_counted_on_request(finder: Finder) -> None:
    for words in ("I moved to Porto.", "She is allergic to peanuts.", "The car is blue."):
        await finder.writer.say(words)
    await finder.index_all()
    answer = await finder.ask("tungsten", explain=True)
    assert answer.hits == ()
    [exclusion] = answer.exclusions
    assert (exclusion.condition, exclusion.count) == ("relevance", 3)


@pytest.mark.parametrize("mark", ["\U0001f389", "\u2603", "\U0001f44d\U0001f3fd", "q" * 120])
async def test_words_unknown_to_the_model_are_found_by_full_text(finder: Finder, mark: str) -> None:
    await finder.writer.say("We had a party \U0001f3b8 last night.")
    marked = await finder.writer.say(f"{mark} The exam went well.")
    await finder.writer.say("The car is blue.")
    await finder.index_all()
    assert await finder.ids(mark) == [marked.id]
    assert (await finder.ids(f"{mark} exam"))[0] == marked.id


async def test_known_words_count_beside_unknown_words(finder: Finder) -> None:
    party = await finder.writer.say("A birthday party for Tom \U0001f389")
    await finder.writer.say("The new job is great \U0001f389")
    await finder.writer.say("The car is blue.")
    await finder.index_all()
    best, *_ = await finder.ids("\U0001f389 birthday")
    assert best == party.id


async def test_an_answer_is_found_by_the_question_before_it(finder: Finder) -> None:
    when = START
    talk = []
    for question, answer in (
        ("How was the pottery class?", "Loved it."),
        ("Which bicycle did you buy in the end?", "The blue one, it was half the price."),
        ("Is the roof still leaking?", "Not since Monday."),
    ):
        when += timedelta(days=1)
        await finder.writer.say(question, at=when)
        talk.append(await finder.writer.say(answer, at=when + timedelta(seconds=30)))
    await finder.index_all()
    result = await finder.ask("Which bicycle did she buy?", limit=2, explain=True)
    assert result.hits[1].item.id == talk[1].id
    assert "because texts beside it match" in result.hits[1].why


async def test_messages_of_an_index_without_neighbours_are_found(
    finder: Finder, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Points that were stored before points had the position of their message.
    def without_place(messages: Sequence[Message]) -> list[IndexEntry]:
        return [
            replace(
                entry,
                payload={k: v for k, v in entry.payload.items() if k not in ("sequence", "chars")},
            )
            for entry in entries_of(messages)
        ]

    monkeypatch.setattr("strata.recall.search.index.entries_of", without_place)
    harp = await finder.writer.say("She plays the harp.")
    await finder.index_all()
    assert await finder.ids("harp") == [harp.id]


async def test_a_question_about_the_present_prefers_the_newest_statement(finder: Finder) -> None:
    old = await finder.writer.say("I work as a baker at the mill in Rosental.")
    await finder.writer.say("The bakery at the mill is old.")
    new = await finder.writer.say("I started to work as a baker in Hofen.")
    await finder.index_all()
    past = await finder.ids("Where did I work as a baker at the mill?", limit=1)
    present = await finder.ask("Where do I work as a baker now?", limit=2, explain=True)
    assert past == [old.id]
    assert [hit.item.id for hit in present.hits] == [new.id, old.id]
    assert "because the query asks for the present" in present.hits[0].why
