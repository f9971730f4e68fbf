"""Asking index and database so that nothing is missed on its way from the one to the other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from strata.shared.errors import UnavailableError
from strata.shared.vectors import Hit, Moment
from strata.shared.vectors.merging import Matches, find


def hit(name: str) -> Hit:
    return Hit(name, 1.0, 1, None, 0.5, None)


class Rooms:
    """A database and an index whose every step waits until the test lets it go on."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.begins, self.words, self.index = (asyncio.Event() for _ in range(3))
        self.fails: Exception | None = None
        self.away = False

    def open(self) -> Rooms:
        for gate in (self.begins, self.words, self.index):
            gate.set()
        return self

    async def by_words(self, *, waiting_only: bool, begun: Moment) -> Sequence[tuple[str, float]]:
        self.seen.append("waiting" if waiting_only else "all words")
        await self.begins.wait()
        if self.fails is not None:
            raise self.fails
        self.seen.append("begun")
        try:
            await begun()
            self.seen.append("statement")
            await self.words.wait()
        except asyncio.CancelledError:
            self.seen.append("called off")
            raise
        return [("by words", 0.5)]

    async def ask(self, after: Moment) -> list[Hit]:
        self.seen.append("vector")
        await after()
        self.seen.append("index")
        await self.index.wait()
        if self.away:
            raise UnavailableError("gone")
        return [hit("by index")]

    async def by_ids(self, ids: Sequence[str]) -> Sequence[str]:
        self.seen.append("ids")
        return ids

    def find(self) -> asyncio.Task[Matches[str]]:
        return asyncio.create_task(find(self.by_words, self.ask, self.by_ids))


async def run_dry() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_the_index_is_asked_when_the_moment_of_the_database_is_fixed_and_not_before() -> None:
    rooms = Rooms()
    finding = rooms.find()
    await run_dry()
    assert rooms.seen == ["waiting", "vector"]  # what is asked is made meanwhile
    rooms.begins.set()
    await run_dry()
    # Both search now, the index first: it takes longer.
    assert rooms.seen[2:] == ["begun", "index", "statement"]
    rooms.open()
    found = await finding
    assert [each.document_id for each in found.hits] == ["by index"]
    assert (found.by_id, found.by_words) == (["by index"], [("by words", 0.5)])


@pytest.mark.parametrize("index_first", [True, False])
async def test_it_waits_for_both(index_first: bool) -> None:
    rooms = Rooms()
    finding = rooms.find()
    rooms.begins.set()
    gates = [rooms.index, rooms.words]
    for gate in gates if index_first else reversed(gates):
        await run_dry()
        assert not finding.done()
        gate.set()
    assert (await finding).by_words == [("by words", 0.5)]


async def test_a_database_that_fails_is_an_error_and_nothing_is_left_running() -> None:
    rooms = Rooms().open()
    rooms.fails = UnavailableError("no database")
    with pytest.raises(UnavailableError, match="no database"):
        await rooms.find()
    assert "ids" not in rooms.seen


async def test_without_the_index_all_is_searched_by_words() -> None:
    rooms = Rooms().open()
    rooms.away = True
    found = await rooms.find()
    asked = ["waiting", "begun", "vector", "index", "statement"]
    assert rooms.seen == [*asked, "all words", "begun", "statement"]
    assert (found.hits, found.by_id, found.by_words) == ((), (), [("by words", 0.5)])


async def test_what_is_called_off_calls_off_the_search_of_the_database() -> None:
    rooms = Rooms()
    rooms.begins.set()
    finding = rooms.find()
    await run_dry()
    finding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await finding
    assert rooms.seen[-1] == "called off"


async def test_an_error_of_the_index_that_is_no_outage_is_told() -> None:
    rooms = Rooms()
    rooms.begins.set()

    async def broken(_: Moment) -> list[Hit]:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await find(rooms.by_words, broken, rooms.by_ids)
    assert rooms.seen[-1] == "called off"
