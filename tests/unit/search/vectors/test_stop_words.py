"""Queries without their stop words."""

from __future__ import annotations

import pytest

from strata.shared.search.vectors.stop_words import without_stop_words


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("what is the zzzqqq", "zzzqqq"),
        ("What is the zzzqqq?", "zzzqqq?"),
        ("what\u2019s the plan", "plan"),
        ("who am I", "who am I"),
        ("", ""),
        (" ?! ", " ?! "),
        ('"to be or not" Hamlet', '"to be or not" Hamlet'),
        ("boat -sail", "boat -sail"),
        ("the \U0001f389", "\U0001f389"),
        ("\u65c5\u884c", "\u65c5\u884c"),
        ("wie ist der Plan", "Plan"),
        ("O\u00f9 est la gare ?", "gare"),
        ("\u00bfd\u00f3nde est\u00e1 mi gato?", "gato?"),
        ("Quel est le nom ?", "nom"),
        ("a_b and c++", "a_b c++"),
    ],
)
def test_stop_words_are_removed_unless_there_are_no_others(query: str, expected: str) -> None:
    assert without_stop_words(query) == expected
