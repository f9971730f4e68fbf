"""Detection of outdated texts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.shared.search.outdated import DatedText, possibly_outdated

BRISTOL, CARDIFF = "I live in Bristol.", "We moved to Cardiff last week."


def text(name: str, words: str, time: float, speaker: str = "") -> DatedText:
    return DatedText(name, words, speaker, time)


def test_a_mark_has_both_sentences_and_the_time_of_the_newer_text() -> None:
    older = text("a", f"What a day. {BRISTOL} It is loud.", 1.0)
    newer = text("b", f"News! {CARDIFF}", 2.0)
    for texts in ([older, newer], [newer, older]):
        marks = possibly_outdated(texts)
        assert {*marks} == {"a"}
        assert (marks["a"].newer_id, marks["a"].newer_time) == ("b", 2.0)
        assert (marks["a"].statement, marks["a"].newer_statement) == (BRISTOL, CARDIFF)


@pytest.mark.parametrize(
    "texts",
    [
        [text("a", BRISTOL, 2.0), text("b", CARDIFF, 1.0)],
        [text("a", BRISTOL, 1.0), text("b", CARDIFF, 1.0)],
        [text("a", BRISTOL, 1.0, "Ada"), text("b", CARDIFF, 2.0, "Ben")],
        [text("a", f"{BRISTOL} {CARDIFF}", 1.0)],
    ],
    ids=["newer before", "same time", "another speaker", "one text"],
)
def test_only_an_older_text_of_the_same_speaker_is_marked(texts: list[DatedText]) -> None:
    assert possibly_outdated(texts) == {}


def test_the_newest_of_several_newer_statements_is_used() -> None:
    texts = [
        text("a", BRISTOL, 1.0),
        text("b", CARDIFF, 2.0),
        text("c", "I now live in York.", 3.0),
    ]
    marks = possibly_outdated(texts)
    assert {name: mark.newer_id for name, mark in marks.items()} == {"a": "c", "b": "c"}


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        (BRISTOL, "Should we have moved to Cardiff?"),
        (BRISTOL, "If we moved to Cardiff, I would sell the car."),
        (BRISTOL, "I want to live in Cardiff now."),
        (BRISTOL, "Anna now lives in Cardiff."),
        ("I used to live in Bristol.", "I now live in Cardiff."),
        ("The meeting with Lisa is on Monday.", "We moved the meeting to Friday."),
        ("Nuri is learning to drive.", "Nuri can't any more."),
        ("Her boss is called Tom.", "My new boss is called Eve."),
        ("I work at the zoo on Mondays.", "I now work at the port on Fridays."),
        ("I smoke.", "My cousin no longer smokes."),
    ],
)
def test_statements_that_can_both_be_true_are_not_marked(older: str, newer: str) -> None:
    assert possibly_outdated([text("a", older, 1.0), text("b", newer, 2.0)]) == {}


def test_only_the_beginning_of_a_long_text_is_read() -> None:
    late = f"{'It rained. ' * 100}{CARDIFF}"
    assert possibly_outdated([text("a", BRISTOL, 1.0), text("b", late, 2.0)]) == {}
    early = f"{CARDIFF} {'It rained. ' * 100}"
    assert {*possibly_outdated([text("a", BRISTOL, 1.0), text("b", early, 2.0)])} == {"a"}


@given(st.lists(st.text(max_size=300), min_size=2, max_size=4))
def test_any_text_is_accepted(texts: list[str]) -> None:
    marks = possibly_outdated([text(str(n), words, float(n)) for n, words in enumerate(texts)])
    assert {*marks} <= {str(number) for number in range(len(texts))}
