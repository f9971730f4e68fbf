"""Search over PostgreSQL, the real embedding model and the real engine."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, cast

import pytest

from archival_stores import NOW, Finder, ask, new_text, texts
from callers import as_project
from polling import eventually
from sql_queries import execute
from strata.archival.domain.history import Author, PassageChange
from strata.archival.domain.passages import Filter, Passage, TagMatch
from strata.archival.domain.search import Search
from strata.archival.search.backlogs import ChunkBacklog, PassageBacklog
from strata.archival.search.chunk_search import FileChunkSearch
from strata.archival.search.passage_search import PassageSearch
from strata.protocol.errors import NotFoundError, UnavailableError
from strata.shared import context
from strata.shared.clock import ManualClock
from strata.shared.idempotency.keys import RequestKey
from strata.shared.ids import new_id
from strata.shared.search.results import SearchHit
from strata.shared.search.vectors.client import connect
from strata.standalone.vectors import EmbeddedVectors


async def find(finder: Finder, agent: str, query: str, **fields: Any) -> list[SearchHit[Passage]]:
    return list((await ask(finder, agent, query, **fields)).hits)


async def test_a_passage_is_found_by_meaning(finder: Finder) -> None:
    agent = new_id("agent")
    await finder.stores.insert(
        agent, "She is allergic to peanuts.", "The car is blue.", "He plays the violin."
    )
    await finder.indexer.index_pending()
    best = (await find(finder, agent, "Which musical instrument does he know?"))[0]
    assert best.item.text == "He plays the violin."
    assert best.vector_rank == 1
    assert best.item.indexed


async def test_unindexed_items_are_found_by_their_words(finder: Finder) -> None:
    agent = new_id("agent")
    await finder.stores.insert(agent, "The wifi password is tulip-42.")
    (hit,) = await find(finder, agent, "what is the wifi password")
    assert (hit.mode, hit.fts_rank, hit.vector_rank) == ("fts", 1, None)
    await finder.indexer.index_pending()
    (hit,) = await find(finder, agent, "what is the wifi password")
    assert hit.mode == "hybrid"


class OvertakenIndex:
    """An index that another replica writes to between the reading and the writing of a batch."""

    def __init__(self, index: Any, meanwhile: Callable[[], Awaitable[object]]) -> None:
        self._index = index
        self._meanwhile = meanwhile

    def __getattr__(self, name: str) -> Any:
        return getattr(self._index, name)

    async def write(self, project_id: str, batch: Any) -> None:
        await self._meanwhile()
        await self._index.write(project_id, batch)


async def test_a_slow_replica_leaves_no_older_text_in_the_index(
    finder: Finder, project: str
) -> None:
    agent, stores = new_id("agent"), finder.stores
    edited, deleted, destroyed = (
        insertion.passage
        for insertion in await stores.insert(
            agent, "She plays the violin.", "She plays the flute.", "She plays the piano."
        )
    )

    async def change_and_index() -> None:
        change = PassageChange(text=new_text("The car is blue."))
        await stores.history.update(edited.id, change, NOW)
        await stores.history.delete(deleted.id, Author(), NOW)
        await stores.history.purge(destroyed.id, RequestKey())
        await finder.index_all()

    slow: Any = OvertakenIndex(finder.index, change_and_index)
    await PassageBacklog(stores.pending, slow, batch=64).advance()
    await finder.index_all()

    within = Filter((edited.archive_id,))
    [hit] = await finder.index.search(project, "What colour is the car?", within, 5)
    assert hit.document_id == edited.id
    hits = await finder.index.search(project, "Does she play an instrument?", within, 5)
    assert not {hit.document_id for hit in hits} & {deleted.id, destroyed.id}


async def test_chunks_of_a_dropped_file_that_a_suspended_replica_writes_are_removed(
    finder: Finder, project: str, urls: Any
) -> None:
    folder, file = new_id("folder"), new_id("file")
    await finder.stores.index_file(folder, file, "She plays the violin.")

    async def lose_the_claim_and_drop() -> None:
        lost = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'"
        await execute(urls.admin_url, lost)
        await finder.stores.chunks.drop([file], [])
        await finder.index_all()

    suspended: Any = OvertakenIndex(finder.chunk_index, lose_the_claim_and_drop)
    with pytest.raises(UnavailableError):
        await ChunkBacklog(finder.stores.queue, suspended, batch=64).advance()
    assert await finder.chunk_index.search(project, "Who plays?", [folder], 5) == []


class Overtaken:
    """An index that indexes all pending texts right after each answer."""

    def __init__(self, index: Any, finder: Finder) -> None:
        self._index = index
        self._finder = finder

    async def has_unknown_words(self, *args: Any) -> bool:
        unknown: bool = await self._index.has_unknown_words(*args)
        return unknown

    async def search(self, *args: Any, **more: Any) -> Any:
        hits = await self._index.search(*args, **more)
        await self._finder.index_all()
        return hits


async def test_items_indexed_during_the_search_are_found(finder: Finder) -> None:
    agent, folder, file = new_id("agent"), new_id("folder"), new_id("file")
    await finder.stores.insert(agent, "The wifi password is tulip-42.")
    passages = PassageSearch(
        finder.stores.passages, cast("Any", Overtaken(finder.index, finder)), ManualClock(NOW)
    )
    answer = await passages.search(Search(query="wifi password", top_k=5, agent_id=agent))
    assert texts(answer.hits) == ["The wifi password is tulip-42."]
    await finder.stores.index_file(folder, file, "The wifi of the office is aster-18.")
    chunks = FileChunkSearch(
        finder.stores.chunks, cast("Any", Overtaken(finder.chunk_index, finder))
    )
    (hit,) = (await chunks.search([folder], "office wifi", 5)).hits
    assert hit.stored.chunk.text == "The wifi of the office is aster-18."


async def test_the_index_is_searched_after_the_snapshot_is_taken(finder: Finder) -> None:
    agent, folder, file = new_id("agent"), new_id("folder"), new_id("file")
    (stored,) = await finder.stores.insert(agent, "The wifi password is tulip-42.")
    await finder.stores.index_file(folder, file, "The wifi of the office is aster-18.")
    project = context.current_project()
    within = Filter((stored.passage.archive_id,))
    [hit] = await finder.index.search(project, "wifi password", within, 5, after=finder.index_all)
    assert hit.document_id == stored.passage.id
    await finder.stores.index_file(folder, new_id("file"), "The wifi of the attic is fern-7.")
    hits = await finder.chunk_index.search(
        project, "wifi of the attic", [folder], 5, after=finder.index_all
    )
    assert len(hits) == 2


async def test_a_passage_does_not_wait_for_the_backlog_of_another_project(finder: Finder) -> None:
    one, other = new_id("agent"), new_id("agent")
    with context.use(as_project()):
        await finder.stores.insert(one, *(f"Fact number {number}." for number in range(200)))
    later = NOW + timedelta(seconds=1)
    await finder.stores.insert(other, "The wifi password is tulip-42.", stored=later)
    await finder.indexer.index_pending()
    (hit,) = await find(finder, other, "what is the wifi password")
    assert hit.mode == "hybrid"
    await finder.index_all()
    assert (await finder.stores.pending.find(5)).ids == {}


async def test_tags_dates_and_top_k_limit_the_results(finder: Finder) -> None:
    agent = new_id("agent")
    await finder.stores.insert(agent, "Paris in spring", tags=("travel", "france"))
    await finder.stores.insert(agent, "Lyon in autumn", tags=("travel",))
    later = NOW + timedelta(days=2)
    await finder.stores.insert(agent, "Nice in summer", tags=("france",), created=later)
    await finder.indexer.index_pending()
    both = ("travel", "france")
    some = await find(finder, agent, "season", tags=both)
    assert sorted(texts(some)) == ["Lyon in autumn", "Nice in summer", "Paris in spring"]
    every = await find(finder, agent, "season", tags=both, tag_match=TagMatch.ALL)
    assert texts(every) == ["Paris in spring"]
    assert texts(await find(finder, agent, "season", start_time=later)) == ["Nice in summer"]
    before = await find(finder, agent, "season", end_time=later)
    assert sorted(texts(before)) == ["Lyon in autumn", "Paris in spring"]
    assert len(await find(finder, agent, "season", top_k=1)) == 1


async def test_passages_of_the_time_in_the_query_come_first(finder: Finder) -> None:
    agent = new_id("agent")
    await finder.stores.insert(agent, "Went climbing with Ada.", created=NOW - timedelta(days=40))
    await finder.stores.insert(agent, "Went climbing with Ben.", created=NOW - timedelta(days=1))
    for waits in (True, False):
        for words, name in (("yesterday", "Ben"), ("in October", "Ada")):
            asked = f"Who was I climbing with {words}?"
            answer = await ask(finder, agent, asked, explain=True)
            assert texts(answer.hits)[0] == f"Went climbing with {name}."
            # The other one is found as well: what was stored then may tell of another time.
            assert len(answer.hits) == 2
            assert [time_range.words for time_range in answer.time_ranges] == [words]
            first, second = answer.hits
            assert "the index does not have it" in first.why if waits else first.vector_rank
            assert f"it was stored at the time of {words!r}" in first.why
            assert "because" not in second.why
        await finder.index_all()


async def test_time_expressions_use_the_time_zone_of_the_user(finder: Finder) -> None:
    agent = new_id("agent")
    # Half past ten in the evening of the 20th in UTC is the 21st in Tokyo.
    await finder.stores.insert(
        agent, "Bought a lamp.", created=NOW - timedelta(hours=13, minutes=30)
    )
    for timezone, word in (("", "yesterday"), ("Asia/Tokyo", "today"), ("Nowhere", "yesterday")):
        answer = await ask(
            finder, agent, f"What did I buy {word}? lamp", timezone=timezone, explain=True
        )
        assert "because" in answer.hits[0].why
    (earlier,) = (
        await ask(finder, agent, "lamp today", reference_time=NOW - timedelta(days=1), explain=True)
    ).hits
    assert "because it was stored at the time of 'today'" in earlier.why


async def test_a_search_counts_the_results_excluded_by_each_condition(finder: Finder) -> None:
    agent = new_id("agent")
    later = NOW + timedelta(days=2)
    await finder.stores.insert(agent, "The boat is called Nora.", tags=("boat",))
    await finder.stores.insert(agent, "The boat was sold.", tags=("boat", "money"), created=later)
    await finder.index_all()
    asked = "What is the name of the boat?"
    answer = await ask(
        finder,
        agent,
        asked,
        tags=("boat", "money"),
        tag_match=TagMatch.ALL,
        end_time=later,
        explain=True,
    )
    assert answer.hits == ()
    everything = (await ask(finder, agent, asked, explain=True)).hits
    ids = {hit.item.text: hit.item.id for hit in everything}
    left_out = {
        exclusion.condition: (exclusion.count, exclusion.best_id) for exclusion in answer.exclusions
    }
    assert left_out == {
        "tags": (1, ids["The boat is called Nora."]),
        "end_time": (1, ids["The boat was sold."]),
    }
    assert (await ask(finder, agent, asked, tags=("boat",), explain=True)).exclusions == ()
    # Unasked, nothing is explained: it takes another search.
    unasked = await ask(finder, agent, asked, end_time=later)
    assert unasked.exclusions == ()
    assert [hit.why for hit in unasked.hits] == [""]


async def test_an_explanation_names_the_ranks_by_meaning_and_by_words(finder: Finder) -> None:
    agent = new_id("agent")
    await finder.stores.insert(agent, "The cat sleeps on the sofa.", "A kitten naps in its basket.")
    await finder.index_all()
    first, second = (await ask(finder, agent, "where does the cat sleep", explain=True)).hits
    assert first.mode == "hybrid"
    assert "by meaning at rank 1 and by its words at rank 1" in first.why
    assert second.mode == "vector"
    assert "by its words" not in second.why


@pytest.mark.parametrize(
    ("right", "wrong", "query"),
    [
        ("彼女は大阪で寿司屋を営んでいる。", "明日は東京で雨が降るでしょう。", "寿司"),
        ("我妹妹在上海的大学教物理。", "昨天我们去爬山了。", "谁教物理"),
        ("ภรรยาของผมแพ้ถั่วลิสง", "รถของผมสีฟ้า", "แพ้ถั่ว"),
    ],
)
async def test_scripts_without_spaces_are_found_before_and_after_indexing(
    finder: Finder, right: str, wrong: str, query: str
) -> None:
    agent = new_id("agent")
    await finder.stores.insert(agent, wrong, right)
    (waiting,) = await find(finder, agent, query)
    assert (waiting.item.text, waiting.mode, waiting.fts_rank) == (right, "fts", 1)
    await finder.index_all()
    best = (await find(finder, agent, query))[0]
    assert (best.item.text, best.fts_rank) == (right, 1)


async def test_a_blank_query_or_an_agent_without_archive_finds_nothing(finder: Finder) -> None:
    agent = new_id("agent")
    await finder.stores.archives.prepare(agent)
    assert await find(finder, agent, "anything") == []
    await finder.stores.insert(agent, "something")
    assert await find(finder, agent, "  ") == []


async def test_changes_and_deletions_reach_the_index(finder: Finder) -> None:
    agent = new_id("agent")
    changed, gone = await finder.stores.insert(agent, "likes green tea", "likes red wine")
    await finder.indexer.index_pending()
    later = NOW + timedelta(hours=1)
    await finder.stores.history.update(
        changed.passage.id, PassageChange(text=new_text("moved to Portugal")), later
    )
    await finder.stores.history.delete(gone.passage.id, Author(), later)
    # Before the index knows, PostgreSQL already has the last word.
    assert "likes red wine" not in texts(await find(finder, agent, "red wine"))
    await finder.indexer.index_pending()
    assert texts(await find(finder, agent, "where does she live")) == ["moved to Portugal"]


async def test_a_long_passage_is_found_by_its_end(finder: Finder) -> None:
    agent = new_id("agent")
    filler = " ".join(f"Point {number} of the meeting was about budgets." for number in range(80))
    await finder.stores.insert(agent, f"{filler} The spare key lies under the flower pot.", "tea")
    await finder.indexer.index_pending()
    hit = await find(finder, agent, "Where is the spare key?")
    assert hit[0].item.text.endswith("flower pot.")
    assert len({one.item.id for one in hit}) == len(hit)


async def test_another_projects_passages_are_never_found(finder: Finder) -> None:
    agent = new_id("agent")
    await finder.stores.insert(agent, "the launch code is 1234")
    await finder.indexer.index_pending()
    with context.use(as_project()):
        with pytest.raises(NotFoundError):
            await find(finder, agent, "launch code")
        (stranger,) = await finder.stores.insert(agent, "nothing to see")
        hit = await finder.search.search(
            Search(
                query="launch code",
                top_k=5,
                archive_ids=(stranger.passage.archive_id,),
            )
        )
        assert "the launch code is 1234" not in texts(hit.hits)


async def test_without_the_engine_full_text_search_answers_and_indexing_resumes_later(
    mortal_finder: Finder, mortal_engine: EmbeddedVectors
) -> None:
    agent = new_id("agent")
    await mortal_finder.stores.insert(agent, "The cat is called Momo.")
    await mortal_finder.indexer.index_pending()
    await mortal_finder.stores.insert(agent, "The dog is called Bello.")
    assert mortal_engine.pid is not None
    os.kill(mortal_engine.pid, signal.SIGKILL)
    hit = await find(mortal_finder, agent, "what is the dog called")
    assert "The dog is called Bello." in texts(hit)
    running = asyncio.create_task(mortal_finder.indexer.run())
    try:
        async with asyncio.timeout(60):
            while (await mortal_finder.stores.pending.find(1)).ids:
                await asyncio.sleep(0.1)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    # Only the engine can find them: the words differ. Right after its restart it may not yet.
    names = {"The cat is called Momo.", "The dog is called Bello."}

    async def are_found() -> bool:
        return {*texts(await find(mortal_finder, agent, "name of the pet"))} == names

    await eventually(are_found)


async def test_a_dropped_index_is_rebuilt(finder: Finder, engine: EmbeddedVectors) -> None:
    agent = new_id("agent")
    await finder.stores.insert(agent, "The river is called Spree.")
    await finder.indexer.index_pending()
    client = connect(engine.url, engine.api_key)
    for name in await client.collection_names():
        await client.delete_collection(name)
    await client.close()
    assert (await find(finder, agent, "name of the river"))[0].mode == "fts"
    running = asyncio.create_task(finder.indexer.run())
    try:
        async with asyncio.timeout(60):
            # Until it is indexed it is found by full text, except in the moment of indexing.
            while not any(
                item.vector_rank for item in await find(finder, agent, "name of the river")
            ):
                await asyncio.sleep(0.1)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


FACTS = ("She is allergic to peanuts.", "The car is blue.", "\U0001f389 The exam went well.")


async def test_unrelated_query_finds_nothing(finder: Finder) -> None:
    agent = new_id("agent")
    await finder.stores.insert(agent, *FACTS)
    await finder.index_all()
    for query in (
        "zzzqqq",
        "what is the zzzqqq",
        "Is she the zzzqqq?",
        "asdf qwer",
        "\u7ae0\u9c7c",
    ):
        assert await find(finder, agent, query) == [], query
    answer = await ask(finder, agent, "tungsten", explain=True)
    assert answer.hits == ()
    assert [(exclusion.condition, exclusion.count) for exclusion in answer.exclusions] == [
        ("relevance", 3)
    ]


async def test_words_unknown_to_the_model_are_found_by_full_text(finder: Finder) -> None:
    agent, folder = new_id("agent"), new_id("folder")
    await finder.stores.insert(agent, *FACTS)
    await finder.stores.index_file(folder, new_id("file"), *FACTS)
    await finder.index_all()
    assert texts(await find(finder, agent, "\U0001f389")) == [FACTS[2]]
    [chunk] = await finder.find_chunks([folder], "\U0001f389")
    assert chunk.stored.chunk.text == FACTS[2]


async def test_a_newer_statement_marks_an_older_one_that_the_same_agent_stored(
    finder: Finder,
) -> None:
    agent = new_id("agent")
    stored = [
        (await finder.stores.insert(agent, text, created=NOW + timedelta(days=day), writer=writer))[
            0
        ].passage.id
        for day, (text, writer) in enumerate(
            (
                ("The user lives in Bristol.", agent),
                ("The user lives in Leeds.", new_id("agent")),
                ("The user lives in Hull.", ""),
                ("The user lives in York.", agent),
                ("The user moved to Cardiff.", agent),
            )
        )
    ]
    oldest, *_, edited, newest = stored
    change = PassageChange(text=new_text("The user lives in Oslo."))
    await finder.stores.history.update(edited, change, NOW + timedelta(days=9))
    hits = await find(finder, agent, "where has the user moved", top_k=10)
    assert len(hits) == len(stored)
    assert {hit.item.id: hit.outdated.newer_id for hit in hits if hit.outdated} == {oldest: newest}
