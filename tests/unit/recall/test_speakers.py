"""Detection of the speakers that a query names."""

from __future__ import annotations

import pytest

from strata.recall.domain.speakers import in_first_person, named_speakers

NAMES = ("Nell", "Jory Tregear", "Dr Osei", "Will", "怜", "紗季", "Иван")


@pytest.mark.parametrize(
    ("query", "speakers"),
    [
        ("What does Nell drive?", ("Nell",)),
        ("what does nell drive", ("Nell",)),
        ("Nell\u2019s car, and Jory's", ("Nell", "Jory Tregear")),
        ("Where did Jory Tregear go?", ("Jory Tregear",)),
        ("怜の今の職場は?", ("怜",)),
        ("Nellの職場は?", ("Nell",)),
        ("Где работает Иван?", ("Иван",)),
        ("Did Dr Osei call?", ("Dr Osei",)),
    ],
)
def test_speakers_are_found_by_their_full_or_first_name(
    query: str, speakers: tuple[str, ...]
) -> None:
    assert named_speakers(query, NAMES) == speakers


@pytest.mark.parametrize(
    "query", ["Where is Nellie?", "What will she wear?", "Did the Dr call?", "Nell_2", ""]
)
def test_a_part_of_a_word_another_word_and_a_title_are_no_names(query: str) -> None:
    assert named_speakers(query, NAMES) == ()


@pytest.mark.parametrize(
    ("query", "wording"),
    [
        ("What does Nell drive?", "What does I drive?"),
        ("what did nell's repair cost", "what did I repair cost"),
        ("When did Jory Tregear meet Nell?", "When did I meet I?"),
        ("怜の今の職場は?", "Iの今の職場は?"),
    ],
)
def test_names_of_speakers_become_the_first_person(query: str, wording: str) -> None:
    assert in_first_person(query, named_speakers(query, NAMES)) == wording


@pytest.mark.parametrize("query", ["Nell", "nell?", "Who is Nell?", "Nell, Jory"])
def test_a_query_for_a_name_alone_has_no_wording_in_the_first_person(query: str) -> None:
    assert in_first_person(query, named_speakers(query, NAMES)) == ""
