"""Labels of the tags in the prompt: counts of labelled passages, maintained by triggers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from archival_stores import NOW, Stores, archive, new_passage, new_text, taint_of_tags
from strata.archival.domain.history import Author, PassageChange
from strata.archival.domain.passages import ArchiveRef, Filter, Origin, Passage
from strata.protocol.errors import (
    AbortedError,
    AlreadyExistsError,
    NotFoundError,
    UnavailableError,
)
from strata.shared.context import current_project
from strata.shared.db import sql
from strata.shared.idempotency.keys import RequestKey
from strata.shared.ids import new_id

WEB, MCP = ("web",), ("mcp",)
TAINTS = ((), WEB, MCP, (*WEB, *MCP))
# The counts of all tags, and those that the passages have.
COUNTS = """
    SELECT archive_id, tag, count, labelled_count, web_count, mcp_count
    FROM archival.archive_tags WHERE count > 0
    ORDER BY archive_id, tag
"""
RECOUNTED = """
    SELECT archive_id, tag, count(*), count(*) FILTER (WHERE origin ? 'taint'),
           count(*) FILTER (WHERE origin -> 'taint' ? 'web'),
           count(*) FILTER (WHERE origin -> 'taint' ? 'mcp')
    FROM archival.passages, unnest(tags) AS tag WHERE NOT deleted
    GROUP BY archive_id, tag ORDER BY archive_id, tag
"""


async def rows(stores: Stores, query: str) -> list[tuple[Any, ...]]:
    async with stores.database.transaction(read_only=True) as connection:
        return [tuple(row) for row in await connection.execute(sql(query))]


async def listed(stores: Stores, agent: str) -> list[Passage]:
    archives = tuple(await stores.passages.archive_ids(agent))
    return await stores.passages.page(Filter(archives), 500, None)


@dataclass
class Shelf:
    """An archive that is attached to an agent."""

    stores: Stores
    agent: str
    archive: str

    async def put(self, name: str, *tags: str, taint: tuple[str, ...] = ()) -> str:
        passage = replace(new_passage(name, tuple(sorted(tags))), origin=Origin(taint=taint))
        place = ArchiveRef(archive_id=self.archive)
        (stored,) = await self.stores.passages.insert(place, [passage], archive("-"))
        return stored.passage.id

    async def taint(self) -> dict[str, tuple[str, ...]]:
        return dict((await self.stores.archives.stats(self.agent)).taint)


async def shelf_of(stores: Stores, agent: str) -> Shelf:
    await stores.archives.prepare(agent)
    made = await stores.archives.create(archive(new_id("x")), agent, RequestKey())
    return Shelf(stores, agent, made.id)


@pytest.fixture
async def shelf(stores: Stores) -> Shelf:
    return await shelf_of(stores, new_id("agent"))


async def test_a_tag_has_the_labels_of_its_passages_unless_one_has_none(shelf: Shelf) -> None:
    await shelf.put("one", "trips", "boats", taint=WEB)
    await shelf.put("two", "trips", "birds", taint=MCP)
    assert await shelf.taint() == {"trips": (*WEB, *MCP), "boats": WEB, "birds": MCP}
    clean = await shelf.put("three", "trips", "cats")
    assert await shelf.taint() == {"boats": WEB, "birds": MCP}
    await shelf.stores.history.delete(clean, Author(), NOW)
    assert await shelf.taint() == {"trips": (*WEB, *MCP), "boats": WEB, "birds": MCP}


REMOVALS: dict[str, Callable[[Stores, str], Awaitable[Any]]] = {
    "delete": lambda stores, one: stores.history.delete(one, Author(), NOW),
    "purge": lambda stores, one: stores.history.purge(one, RequestKey()),
    "without tags": lambda stores, one: stores.history.update(one, PassageChange(tags=()), NOW),
    "other tags": lambda stores, one: stores.history.update(one, PassageChange(tags=("b",)), NOW),
    "text of a person": lambda stores, one: stores.history.update(
        one, PassageChange(text=new_text("one")), NOW
    ),
}


@pytest.mark.parametrize("removal", REMOVALS)
async def test_a_tag_loses_its_labels_with_its_last_labelled_passage(
    shelf: Shelf, removal: str
) -> None:
    first = await shelf.put("one", "a", taint=WEB)
    last = await shelf.put("two", "a", taint=WEB)
    await REMOVALS[removal](shelf.stores, first)
    expected = () if removal == "text of a person" else WEB
    assert (await shelf.taint()).get("a", ()) == expected
    await shelf.stores.history.delete(last, Author(), NOW)
    assert "a" not in await shelf.taint()
    await shelf.stores.history.restore(last, 0, PassageChange(), NOW)
    assert (await shelf.taint()).get("a", ()) == expected


async def test_labels_of_tags_follow_the_archives_of_the_agent(shelf: Shelf) -> None:
    stores = shelf.stores
    other = await shelf_of(stores, shelf.agent)
    reader = new_id("agent")
    await stores.archives.prepare(reader)
    await shelf.put("one", "a", taint=WEB)
    await other.put("two", "a")
    await other.put("three", "b", taint=MCP)
    assert await shelf.taint() == {"b": MCP}
    await stores.archives.attach(reader, shelf.archive)
    assert (await stores.archives.stats(reader)).taint == {"a": WEB}
    await stores.archives.detach(shelf.agent, other.archive)
    assert await shelf.taint() == {"a": WEB}
    await stores.archives.delete(shelf.archive)
    assert await shelf.taint() == {}
    assert (await stores.archives.stats(reader)).taint == {}


async def test_indexing_labelled_passages_changes_no_label(shelf: Shelf) -> None:
    """The role of the indexer cannot change tags."""
    pending = shelf.stores.pending
    project = current_project()
    await shelf.put("one", "a", taint=WEB)
    for _ in range(2):
        assert await pending.index_all_again() == 0
        (passage,) = await pending.load(project, (await pending.find(9)).ids[project])
        await pending.done(project, [passage])
        assert await pending.index_all_again() == 1
        assert await shelf.taint() == {"a": WEB}


async def test_expired_passages_label_no_tag(shelf: Shelf) -> None:
    stores = shelf.stores
    await shelf.put("clean", "a", "b")
    await shelf.put("labelled", "a", "c", taint=WEB)
    assert await shelf.taint() == {"c": WEB}
    async with stores.database.transaction() as connection:
        await connection.execute(
            sql("UPDATE archival.archives SET time_to_live = 60 WHERE id = :id"),
            {"id": shelf.archive},
        )
        await connection.execute(
            sql(
                "UPDATE archival.passages SET create_time ="
                " CASE text WHEN 'clean' THEN timestamptz '2020-01-01' ELSE now() END"
            )
        )
    assert await shelf.taint() == {"a": WEB, "c": WEB}
    async with stores.database.transaction() as connection:
        await connection.execute(
            sql(
                "UPDATE archival.passages SET create_time ="
                " CASE text WHEN 'clean' THEN now() ELSE timestamptz '2020-01-01' END"
            )
        )
    assert await shelf.taint() == {}
    assert (await stores.archives.stats(shelf.agent)).tags == ("a", "b")


@pytest.mark.parametrize("seed", range(6))
async def test_labels_of_tags_are_those_of_the_passages_after_concurrent_changes(
    urls: Any, stores: Stores, seed: int
) -> None:
    choose = random.Random(seed)
    agent = new_id("agent")
    shelves = [await shelf_of(stores, agent), await shelf_of(stores, agent)]
    known: list[str] = []

    def tags() -> tuple[str, ...]:
        return tuple(sorted(choose.sample("abcd", choose.randint(0, 3))))

    def author() -> Author:
        run = choose.choice(["", "run-1"])
        return Author(origin=Origin(run_id=run, taint=choose.choice(TAINTS)))

    def insertion() -> Awaitable[Any]:
        passages = [
            replace(
                new_passage(f"text {choose.randint(1, 40)}", tags()),
                origin=Origin(taint=choose.choice(TAINTS)),
            )
            for _ in range(choose.choice([1, 1, 1, 4]))
        ]
        known.extend(passage.id for passage in passages)
        place = ArchiveRef(archive_id=choose.choice(shelves).archive)
        return stores.passages.insert(place, passages, archive("-"))

    def change() -> Awaitable[Any]:
        history, one = stores.history, choose.choice(known)
        text = choose.choice([None, new_text(f"text {choose.randint(1, 40)}")])
        kind = choose.choice(["update", "update", "add", "delete", "restore", "version", "purge"])
        if kind == "update":
            new_tags = choose.choice([None, tags()])
            return history.update(one, PassageChange(author(), text=text, tags=new_tags), NOW)
        if kind == "add":
            return history.add_tags(one, tags(), author(), NOW)
        if kind == "delete":
            return history.delete(one, author(), NOW)
        if kind == "purge":
            return history.purge(one, RequestKey())
        return history.restore(one, int(kind == "version"), PassageChange(author()), NOW)

    # Aborted: concurrent changes can end in a deadlock, of which one is rolled back.
    refused = (AbortedError, AlreadyExistsError, NotFoundError, UnavailableError)
    for _ in range(12):
        works = [choose.choice([insertion, change] if known else [insertion])() for _ in range(8)]
        for outcome in await asyncio.gather(*works, return_exceptions=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, refused):
                raise outcome
        assert await rows(stores, COUNTS) == await rows(stores, RECOUNTED)
        stats = await stores.archives.stats(agent)
        assert stats.taint == taint_of_tags(await listed(stores, agent))
    await stores.archives.delete(shelves[0].archive)
    stats = await stores.archives.stats(agent)
    assert stats.taint == taint_of_tags(await listed(stores, agent))
