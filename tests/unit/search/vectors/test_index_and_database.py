"""Concurrent search of index and database, without missing texts that are being indexed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import pytest

from polling import settle
from strata.protocol.errors import UnavailableError
from strata.shared.search.result_merge import Matches, search_both
from strata.shared.search.vectors import Hit, StartGate


def hit(name: str) -> Hit:
    return Hit(name, 1.0, 1, None, 0.5, None)


class Services:
    """A database and an index whose steps wait for the test.

    Attributes:
        young: Items newer than the first snapshot.
    """

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.begins, self.words, self.index = (asyncio.Event() for _ in range(3))
        self.fails: Exception | None = None
        self.away = False
        self.hits = ["by index"]
        self.young: set[str] = set()

    def open(self) -> Services:
        for gate in (self.begins, self.words, self.index):
            gate.set()
        return self

    @asynccontextmanager
    async def look(self) -> AsyncIterator[Services]:
        self.seen.append("look")
        await self.begins.wait()
        if self.fails is not None:
            raise self.fails
        self.seen.append("begun")
        try:
            yield self
        finally:
            self.seen.append("done")
            self.young.clear()

    async def waiting(self) -> Sequence[tuple[str, float]]:
        self.seen.append("statement")
        await self.words.wait()
        return [("by words", 0.5)]

    async def by_ids(self, ids: Sequence[str]) -> Mapping[str, str]:
        self.seen.append(f"ids {' '.join(ids)}")
        return {name: name.upper() for name in ids if name not in self.young}

    async def by_words(self) -> Sequence[tuple[str, float]]:
        self.seen.append("all words")
        return [("by words", 0.5)]

    async def ask(self, after: StartGate) -> list[Hit]:
        self.seen.append("vector")
        await after()
        self.seen.append("index")
        try:
            await self.index.wait()
        except asyncio.CancelledError:
            self.seen.append("called off")
            raise
        if self.away:
            raise UnavailableError("gone")
        return [hit(name) for name in self.hits]

    def search_both(self) -> asyncio.Task[Matches[str]]:
        return asyncio.create_task(search_both(self.look, self.ask, self.by_words))


async def until_seen(services: Services, what: str) -> None:
    async with asyncio.timeout(30):
        while what not in services.seen:
            await asyncio.sleep(0.001)


async def test_the_index_is_searched_after_the_snapshot_is_taken() -> None:
    services = Services()
    finding = services.search_both()
    await settle()
    assert services.seen == ["look", "vector"]  # the query is embedded meanwhile
    services.begins.set()
    await settle()
    # Both search now, the index first, because it takes longer.
    assert services.seen[2:] == ["begun", "index", "statement"]
    services.open()
    matches = await finding
    # In the same transaction.
    assert services.seen[5:] == ["ids by index", "done"]
    assert [hit.document_id for hit in matches.hits] == ["by index"]
    assert (matches.by_id, matches.by_words) == ({"by index": "BY INDEX"}, [("by words", 0.5)])


async def test_a_prepared_request_is_sent_before_the_statement_is_built() -> None:
    services = Services()
    services.words.set()
    services.index.set()

    async def send() -> list[Hit]:
        services.seen.append("sent")
        return []

    async def by_task(after: StartGate) -> list[Hit]:
        await after()
        # Like grpc.aio: a separate task sends the call.
        return await asyncio.create_task(send())

    finding = asyncio.create_task(search_both(services.look, by_task, services.by_words))
    await settle()
    services.begins.set()
    await finding
    assert services.seen[:4] == ["look", "begun", "sent", "statement"]


async def test_the_database_does_not_wait_for_a_request_in_preparation() -> None:
    services = Services().open()
    prepared = asyncio.Event()

    async def slow_vector(after: StartGate) -> list[Hit]:
        await prepared.wait()
        return await services.ask(after)

    finding = asyncio.create_task(search_both(services.look, slow_vector, services.by_words))
    await until_seen(services, "statement")
    assert "index" not in services.seen
    prepared.set()
    assert (await finding).by_id == {"by index": "BY INDEX"}


async def test_a_request_cancelled_before_it_is_sent_does_not_delay_the_database() -> None:
    services = Services()
    services.words.set()

    timed_out = asyncio.Event()

    async def impatient(after: StartGate) -> list[Hit]:
        try:
            async with asyncio.timeout(0.001):
                await after()
        finally:
            timed_out.set()
        return []

    finding = asyncio.create_task(search_both(services.look, impatient, services.by_words))
    await timed_out.wait()
    services.begins.set()
    await until_seen(services, "statement")
    with pytest.raises(TimeoutError):
        await finding


@pytest.mark.parametrize("index_first", [True, False])
async def test_the_search_waits_for_the_index_and_the_database(index_first: bool) -> None:
    services = Services()
    finding = services.search_both()
    services.begins.set()
    gates = [services.index, services.words]
    for gate in gates if index_first else reversed(gates):
        await settle()
        assert not finding.done()
        gate.set()
    assert (await finding).by_words == [("by words", 0.5)]


async def test_the_connection_is_released_while_the_index_is_slow() -> None:
    services = Services()
    services.begins.set()
    services.words.set()
    finding = services.search_both()
    await until_seen(services, "done")
    assert not finding.done()
    services.index.set()
    matches = await finding
    assert services.seen[5:] == ["done", "look", "begun", "ids by index", "done"]
    assert (matches.by_id, matches.by_words) == ({"by index": "BY INDEX"}, [("by words", 0.5)])


async def test_items_newer_than_the_snapshot_are_read_in_another_one() -> None:
    services = Services().open()
    services.hits, services.young = ["old", "young"], {"young"}
    matches = await services.search_both()
    assert matches.by_id == {"old": "OLD", "young": "YOUNG"}
    assert [query for query in services.seen if query.startswith("ids")] == [
        "ids old young",
        "ids young",
    ]


async def test_a_search_without_hits_runs_the_same_queries() -> None:
    services = Services().open()
    services.hits = []
    assert (await services.search_both()).by_id == {}
    queries = [what for what in services.seen if what not in ("vector", "index")]
    assert queries == ["look", "begun", "statement", "ids ", "done"]


async def test_a_database_error_is_raised_and_no_task_is_left() -> None:
    services = Services().open()
    services.index.clear()
    services.fails = UnavailableError("no database")
    with pytest.raises(UnavailableError, match="no database"):
        await services.search_both()
    assert "index" not in services.seen


async def test_without_the_index_the_database_searches_by_words() -> None:
    services = Services().open()
    services.away = True
    matches = await services.search_both()
    assert services.seen[-2:] == ["done", "all words"]
    assert (matches.hits, matches.by_id, matches.by_words) == ((), {}, [("by words", 0.5)])


async def test_cancelling_also_cancels_the_search_of_the_index() -> None:
    services = Services()
    services.begins.set()
    services.words.set()
    finding = services.search_both()
    await settle()
    finding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await finding
    assert {"called off", "done"} <= set(services.seen)


async def test_an_index_error_that_is_not_an_outage_is_raised() -> None:
    services = Services().open()

    async def broken(_: StartGate) -> list[Hit]:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await search_both(services.look, broken, services.by_words)
    assert services.seen[-1] == "done"
