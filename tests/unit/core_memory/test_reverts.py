"""Undoing edits, without a store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.core_memory.domain.blocks import DELETE, Authorship, Block, Origin, Version
from strata.core_memory.domain.versions.reverts import UndoConflict, undo
from strata.core_memory.domain.versions.revision_ranges import (
    RevisionRange,
    already_undone,
    read_revision_ranges,
    revision_ranges_of,
    write_revision_ranges,
)

NOW = datetime(2026, 11, 21, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)


def block(value: str = "", **more: Any) -> Block:
    return replace(Block("block-1", "human", value, "About.", 20_000, False, 1, NOW, NOW), **more)


def version_of(state: Block) -> Version:
    operation = "update" if state.delete_time is None else DELETE
    return Version(
        state.id,
        state.revision,
        state.label,
        state.value,
        state.description,
        state.limit,
        state.read_only,
        state.metadata,
        Authorship(operation, Origin(), "key-1", NOW),
    )


def undone(current: Block, before: Block | None, after: Block) -> Block:
    return undo(current, version_of(before) if before else None, version_of(after), LATER)


def test_consecutive_revisions_form_one_range() -> None:
    assert revision_ranges_of([9, 8, 5, 3, 2, 1]) == [
        RevisionRange(8, 9),
        RevisionRange(5, 5),
        RevisionRange(1, 3),
    ]
    assert revision_ranges_of([]) == []


@given(st.lists(st.integers(1, 10**9), unique=True))
def test_ranges_round_trip_as_text(revisions: list[int]) -> None:
    spans = revision_ranges_of(sorted(revisions, reverse=True))
    assert read_revision_ranges(write_revision_ranges(spans)) == spans
    assert sum(span.last - span.first + 1 for span in spans) == len(revisions)


@pytest.mark.parametrize(
    ("reverts", "selected", "undone"),
    [
        ({}, [], set()),
        ({4: "2-2"}, [], {2}),
        ({4: "2-2"}, [4], set()),
        ({4: "2-2", 5: "4-4"}, [], {4}),
        ({4: "2-2", 5: "4-4", 6: "5-5"}, [], {2, 5}),
        ({4: "2-2", 5: "4-4"}, [5], {2}),
        ({9: "6-8,2-3"}, [3], {6, 7, 8, 2, 3}),
    ],
)
def test_undoing_a_revert_restores_the_undone_edit(
    reverts: Mapping[int, str], selected: list[int], undone: set[int]
) -> None:
    assert already_undone(reverts, selected) == undone


def test_reverting_the_last_edit_restores_the_block_exactly() -> None:
    before, after = block("a\r\n\tb \n"), block("quite\nanother text", label="friend", limit=99)
    assert undone(after, before, after) == before


def test_later_edits_of_other_text_stay() -> None:
    before, after = block("one\ntwo\nthree"), block("one\nTWO\nthree")
    assert undone(block("one\nTWO\nthree\nfour"), before, after).value == "one\ntwo\nthree\nfour"


def test_a_later_edit_of_the_same_text_is_a_conflict() -> None:
    before, after = block("one\ntwo"), block("one\nTWO")
    with pytest.raises(UndoConflict):
        undone(block("one\n2"), before, after)


def test_edits_that_were_reverted_before_are_skipped() -> None:
    before, after = block("a", label="x"), block("b", label="y")
    assert undone(before, before, after) == before


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("label", ("old", "new", "other")),
        ("description", ("old", "new", "other")),
        ("limit", (10, 20, 30)),
    ],
)
def test_fields_are_reverted_unless_they_were_changed_again(
    field: str, values: tuple[Any, Any, Any]
) -> None:
    old, new, other = (block(**{field: value}) for value in values)
    assert undone(new, old, new) == old
    assert undone(other, new, new) == other
    with pytest.raises(UndoConflict):
        undone(other, old, new)


def test_pairs_of_metadata_are_reverted_singly() -> None:
    before, after = block(metadata={"a": "1", "b": "2"}), block(metadata={"a": "9", "c": "3"})
    current = block(metadata={"a": "9", "c": "3", "d": "4"})
    assert undone(current, before, after).metadata == {"a": "1", "b": "2", "d": "4"}
    with pytest.raises(UndoConflict):
        undone(block(metadata={"a": "8"}), before, after)


def test_reverting_a_deletion_restores_the_block() -> None:
    live, ended = block("text"), block("text", delete_time=NOW)
    assert undone(ended, live, ended) == live


def test_undoing_the_creation_of_a_block_deletes_it() -> None:
    made = block("text")
    assert undone(made, None, made).delete_time == LATER
    with pytest.raises(UndoConflict):
        undone(block("text\nof others"), None, made)


TEXTS = st.text("ab \t\n\r\N{GRINNING FACE}", max_size=30)
PAIRS: st.SearchStrategy[Mapping[str, str]] = st.dictionaries(
    st.sampled_from("kl"), st.text("xy", min_size=1, max_size=2)
)


@st.composite
def states(draw: st.DrawFn) -> Block:
    return block(
        draw(TEXTS),
        label=draw(st.sampled_from(["human", "friend"])),
        description=draw(st.sampled_from(["", "About."])),
        limit=draw(st.sampled_from([100, 200])),
        read_only=draw(st.booleans()),
        metadata=draw(PAIRS),
        delete_time=draw(st.sampled_from([None, NOW])),
    )


@given(states(), states())
def test_reverting_any_last_edit_restores_the_block(before: Block, after: Block) -> None:
    restored = undone(after, before, after)
    assert replace(restored, delete_time=None) == replace(before, delete_time=None)
    assert (restored.delete_time is None) == (before.delete_time is None)


@given(states(), states())
def test_reverting_a_revert_restores_the_edit(before: Block, after: Block) -> None:
    restored = undone(after, before, after)
    again = undone(restored, after, before)
    assert replace(again, delete_time=None) == replace(after, delete_time=None)


@given(st.lists(st.text("ab", min_size=1, max_size=3), min_size=2, max_size=6), st.data())
def test_reverting_one_of_several_added_lines_keeps_the_others(
    added: list[str], data: st.DataObject
) -> None:
    texts = ["top", *(f"{number} {text}" for number, text in enumerate(added))]
    at = data.draw(st.integers(1, len(added)))
    before, after = block("\n".join(texts[:at])), block("\n".join(texts[: at + 1]))
    current = block("\n".join(texts))
    expected = [text for number, text in enumerate(texts) if number != at]
    assert undone(current, before, after).value == "\n".join(expected)
