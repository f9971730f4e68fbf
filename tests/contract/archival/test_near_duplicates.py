"""Near-duplicates of passages are reported, and no others."""

from __future__ import annotations

import pytest

from archival_stores import NOW, Stores, archive, new_passage, new_text
from callers import as_project
from strata.archival.domain.history import Author, PassageChange
from strata.archival.domain.passages import ArchiveRef, InsertedPassage
from strata.shared import context
from strata.shared.idempotency.keys import RequestKey
from strata.shared.ids import new_id

GREEN = "The user's favourite colour is green, and she lives in Lisbon near the river."


async def home(stores: Stores) -> ArchiveRef:
    return ArchiveRef(
        archive_id=(await stores.archives.create(archive(new_id("x")), "", RequestKey())).id
    )


async def put(stores: Stores, place: ArchiveRef, *texts: str) -> list[InsertedPassage]:
    return await stores.passages.insert(place, [new_passage(text) for text in texts], archive("-"))


@pytest.mark.parametrize(
    ("words", "near"),
    [
        ("The user's favourite colour is blue, and she lives in Lisbon near the river.", True),
        ("the users favourite colour is GREEN and she lives in lisbon, near the river!", True),
        (f"{GREEN} And more.", True),
        ("The user's favourite colour is something that I have not been told yet.", False),
        ("She lives in Lisbon.", False),
        ("?!", False),
    ],
)
async def test_near_duplicates_are_reported(stores: Stores, words: str, near: bool) -> None:
    place = await home(stores)
    (first,) = await put(stores, place, GREEN)
    (second,) = await put(stores, place, words)
    expected = (first.passage.id,) if near else ()
    assert not second.duplicate
    assert second.passage.near_duplicate_ids == expected
    assert (await stores.passages.get(second.passage.id)).near_duplicate_ids == expected
    # The earlier one was alone when it was stored.
    assert (await stores.passages.get(first.passage.id)).near_duplicate_ids == ()


async def test_scripts_without_spaces_are_compared(stores: Stores) -> None:
    place = await home(stores)
    (first,) = await put(stores, place, "彼女は大阪の駅の近くで小さな寿司屋を営んでいる。")
    near, other = await put(
        stores,
        place,
        "彼女は大阪の駅の近くで小さな寿司屋を営んでいます。",
        "明日は東京で雨が降るでしょう。",
    )
    assert near.passage.near_duplicate_ids == (first.passage.id,)
    assert other.passage.near_duplicate_ids == ()


async def test_near_duplicates_are_ordered_by_similarity_and_limited(stores: Stores) -> None:
    place = await home(stores)
    made = await put(stores, place, *(f"{GREEN} {n} {'x' * n}" for n in range(1, 9)))
    (last,) = await put(stores, place, f"{GREEN} 1  x.")
    assert last.passage.near_duplicate_ids[0] == made[0].passage.id
    assert len(last.passage.near_duplicate_ids) == 5


async def test_only_existing_passages_of_the_archive_are_near_duplicates(stores: Stores) -> None:
    place, elsewhere = await home(stores), await home(stores)
    await put(stores, elsewhere, f"{GREEN} A")
    with context.use(as_project()):
        await put(stores, await home(stores), f"{GREEN} B")
    (deleted,) = await put(stores, place, f"{GREEN} C")
    await stores.history.delete(deleted.passage.id, Author(), NOW)
    (alone,) = await put(stores, place, GREEN)
    assert alone.passage.near_duplicate_ids == ()
    (second,) = await put(stores, place, f"{GREEN} D")
    assert second.passage.near_duplicate_ids == (alone.passage.id,)
    await stores.history.delete(alone.passage.id, Author(), NOW)
    assert (await stores.passages.get(second.passage.id)).near_duplicate_ids == ()
    await stores.history.restore(alone.passage.id, 0, PassageChange(), NOW)
    assert (await stores.passages.get(second.passage.id)).near_duplicate_ids == (alone.passage.id,)


async def test_near_duplicates_are_updated_with_the_text(stores: Stores) -> None:
    place = await home(stores)
    green, other = await put(stores, place, GREEN, "The car is in the garage.")
    changed = await stores.history.update(
        other.passage.id, PassageChange(text=new_text(f"{GREEN} Yes.")), NOW
    )
    assert changed.near_duplicate_ids == (green.passage.id,)
    # It is found by what it says now, not by what it said.
    (third,) = await put(stores, place, "The car is in the garage!")
    assert third.passage.near_duplicate_ids == ()
    back = await stores.history.restore(other.passage.id, 1, PassageChange(), NOW)
    assert back.near_duplicate_ids == (third.passage.id,)


async def test_an_exact_duplicate_returns_the_near_duplicates_of_the_stored_passage(
    stores: Stores,
) -> None:
    place = await home(stores)
    (first,) = await put(stores, place, GREEN)
    (near,) = await put(stores, place, f"{GREEN}!")
    (again,) = await put(stores, place, f"{GREEN}!")
    assert again.duplicate
    assert again.passage.near_duplicate_ids == near.passage.near_duplicate_ids
    assert near.passage.near_duplicate_ids == (first.passage.id,)
