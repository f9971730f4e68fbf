"""Three-way merges."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.core_memory.domain.text_edits.three_way_merge import (
    apply_hunks,
    hunks_between,
    merge3_text,
)


@pytest.mark.parametrize(
    ("base", "current", "mine", "merged"),
    [
        # Different lines, also adjacent ones.
        ("a\nb\nc", "A\nb\nc", "a\nb\nC", "A\nb\nC"),
        ("a\nb", "A\nb", "a\nB", "A\nB"),
        ("a\nb\nc", "a\nc", "a\nb\nC", "a\nC"),
        # Insertions at one place, in the order in which they were made.
        ("a\nc", "a\nb1\nc", "a\nb2\nc", "a\nb1\nb2\nc"),
        ("a", "a\nx", "a\ny", "a\nx\ny"),
        ("", "x", "y", "x\ny"),
        # An insertion next to a change.
        ("a\nb", "a\nB", "a\nnew\nb", "a\nnew\nB"),
        # The same change on both sides is one change.
        ("a\nb", "a\nB", "a\nB", "a\nB"),
        ("a\nb\nc", "a\nB\nc\nd", "0\na\nB\nc", "0\na\nB\nc\nd"),
        # Different words of one line.
        ("red car", "blue car", "red bus", "blue bus"),
        ("Likes tea. Has a cat.", "Likes coffee. Has a cat.", "Likes tea. Has a dog.",
         "Likes coffee. Has a dog."),
        ("a\tb  c", "A\tb  c", "a\tb  C", "A\tb  C"),
        ("Colours: red", "Colours: red, blue", "Colours: red, green", "Colours: red, blue, green"),
        # A deleted text keeps what the other side added.
        ("a\nb", "", "a\nb\nc", "c"),
        # Blanks and line feeds at the end are merged like any other text.
        ("a\n\tb\n", "a\n\tb\n\nend", "top\na\n\tb\n", "top\na\n\tb\n\nend"),
    ],
)  # fmt: skip
def test_changes_of_different_text_merge(base: str, current: str, mine: str, merged: str) -> None:
    assert merge3_text(base, current, mine) == merged


@pytest.mark.parametrize(
    ("base", "current", "mine"),
    [
        ("likes tea", "likes coffee", "likes milk"),
        ("likes tea", "", "likes milk"),
        ("a\nb\nc", "a\nc", "a\nB\nc"),
        ("a b", "a", "b"),
        # Adjacent words depend on each other.
        ("likes tea", "likes green tea", "likes coffee"),
        ("Hello", "Hello.", "Hello!"),
        ("one (", "one (two", "one (three"),
    ],
)
def test_changes_of_the_same_text_conflict(base: str, current: str, mine: str) -> None:
    assert merge3_text(base, current, mine) is None
    assert merge3_text(base, mine, current) is None


@pytest.mark.parametrize("text", ["", "a", "a\nb\n", "\n"])
def test_an_unchanged_side_takes_the_text_of_the_other(text: str) -> None:
    assert merge3_text(text, text, "new\n") == "new\n"
    assert merge3_text(text, "new\n", text) == "new\n"


def test_very_different_sides_are_merged() -> None:
    base = [f"line {number}" for number in range(2000)]
    current = [f"new {number}" if number < 1000 else line for number, line in enumerate(base)]
    mine = [*base[:-1], "last"]
    merged = merge3_text("\n".join(base), "\n".join(current), "\n".join(mine))
    assert merged == "\n".join([*current[:-1], "last"])


LINES = st.lists(st.sampled_from("abcd"), max_size=14)


@given(LINES, LINES)
def test_hunks_transform_one_text_into_the_other(old: list[str], new: list[str]) -> None:
    hunks = hunks_between(old, new)
    assert apply_hunks(old, hunks, 0, len(old)) == new
    assert all(one.end < other.start for one, other in pairwise(hunks))
    assert all(list(hunk.new) != old[hunk.start : hunk.end] for hunk in hunks)


@st.composite
def edits(draw: st.DrawFn) -> tuple[list[str], list[list[str]], list[list[str]]]:
    """Draws a text, and for each line the versions of both sides: at most one changes it."""
    base = [f"line {number} of it" for number in range(draw(st.integers(1, 12)))]
    sides: list[list[list[str]]] = [[[line] for line in base] for _ in range(2)]
    for at, line in enumerate(base):
        side = draw(st.integers(0, 1))
        change = draw(st.sampled_from(["keep", "keep", "change", "remove", "insert"]))
        sides[side][at] = {
            "keep": [line],
            "change": [f"changed {at}"],
            "remove": [],
            "insert": [line, f"new {at}"],
        }[change]
    return base, sides[0], sides[1]


@given(edits())
def test_separate_edits_merge_as_if_made_one_after_the_other(
    case: tuple[list[str], list[list[str]], list[list[str]]],
) -> None:
    base, theirs, ours = case
    current, mine = (_joined(side) for side in (theirs, ours))
    in_turn = [
        one if one != [line] else other for line, one, other in zip(base, theirs, ours, strict=True)
    ]
    assert merge3_text("\n".join(base), current, mine) == _joined(in_turn)


def _joined(parts: list[list[str]]) -> str:
    return "\n".join(line for part in parts for line in part)


@st.composite
def versions(draw: st.DrawFn) -> tuple[str, str, str]:
    """Draws three texts that share words; no word occurs twice in a text."""
    words = [f"w{number}" for number in range(12)]
    separators = st.sampled_from([" ", " ", "\n", ", "])
    base = draw(st.permutations(words))[: draw(st.integers(0, 8))]

    def side(prefix: str) -> str:
        kept = [word for word in base if draw(st.integers(0, 4))]
        for number in range(draw(st.integers(0, 3))):
            kept.insert(draw(st.integers(0, len(kept))), f"{prefix}{number}")
        return "".join(word + draw(separators) for word in kept)

    return "".join(word + draw(separators) for word in base), side("c"), side("m")


@given(versions())
def test_no_word_of_either_side_is_lost(case: tuple[str, str, str]) -> None:
    merged = merge3_text(*case)
    if merged is None:
        return
    base, current, mine = (set(re.findall(r"\w+", text)) for text in case)
    words = set(re.findall(r"\w+", merged))
    assert words >= (current - base) | (mine - base) | (base & current & mine)
    assert words <= current | mine


@given(versions())
def test_conflicts_do_not_depend_on_the_order_of_sides(
    case: tuple[str, str, str],
) -> None:
    base, current, mine = case
    one, other = merge3_text(base, current, mine), merge3_text(base, mine, current)
    assert (one is None) == (other is None)
