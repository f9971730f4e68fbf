"""Patterns over lines and names."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from strata.core_memory.files.domain.grep import GrepQuery, check_query
from strata.core_memory.files.domain.patterns import LinePattern, name_filter
from strata.protocol.errors import InvalidArgumentError


def lines(pattern: str, text: str, limit: int = 1_000) -> list[int]:
    return LinePattern(pattern).lines(text, limit=limit, expired=lambda: False)


ATOMS = st.sampled_from(
    ["a", "b", "A", ".", "x", "[ab]", "[^a]", r"\s", r"\d", r"\w", "1", " ", r"\b", "^", "$", "ä"]
)
PATTERNS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"(?:{pair[0]}|{pair[1]})"),
        st.tuples(inner, st.sampled_from("*+?")).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
    ),
    max_leaves=6,
)
# RE2's classes know only ASCII, so other digits and letters are left out where the results would
# differ.
TEXTS = st.text(alphabet="abAxX1 -\n", max_size=60)


@given(PATTERNS, TEXTS)
@example("a*$", "b\n\nb")
@example(r"\s", "a\nb")
@example("^$", "\n")
def test_lines_match_as_if_searched_singly(pattern: str, text: str) -> None:
    reference = re.compile(pattern, re.IGNORECASE | re.ASCII)
    expected = [number for number, line in enumerate(text.split("\n")) if reference.search(line)]
    assert lines(pattern, text) == expected


@pytest.mark.parametrize(
    "pattern", [r"\Aab", r"ab\z", r"(?-m)^ab", r"(?i-m:ab$)", r"(?s)a.b", "a\\nb", "b|(?-m:^)a"]
)
def test_anchors_of_the_text_match_at_the_ends_of_lines(pattern: str) -> None:
    line_pattern = LinePattern(pattern)
    text = "ab\nxab\nabx\nab\na\nb"
    alone = [
        number
        for number, line in enumerate(text.split("\n"))
        if line_pattern.lines(line, limit=1, expired=lambda: False)
    ]
    assert lines(pattern, text) == alone


def test_a_long_text_searched_in_pieces_loses_no_line() -> None:
    text = "\n".join(
        f"{number} {'hit' if number % 7 == 0 else 'ä' * 40}" for number in range(5_000)
    )
    assert lines("HIT", text) == list(range(0, 5_000, 7))
    assert lines(r"\Ahit|hit\z", text) == list(range(0, 5_000, 7))
    assert lines("hit", text, limit=3) == [0, 7, 14]


def test_a_search_ends_when_the_time_is_over() -> None:
    text = "\n".join("hit" for _ in range(50_000))
    asked: list[float] = []

    def expired() -> bool:
        asked.append(time.monotonic())
        return len(asked) > 2

    lines = LinePattern("hit").lines(text, limit=100_000, expired=expired)
    assert 0 < len(lines) < 20_000


@pytest.mark.parametrize("pattern", [r"(a+)+$", r"(a|aa)+$", r"(a*)*b", r"([a-z]+)*!\?$"])
def test_patterns_with_catastrophic_backtracking_elsewhere_are_fast(pattern: str) -> None:
    assert lines(pattern, "a" * 1_000_000 + "!") == []


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (r"a(?=b)", "Invalid regex pattern: lookahead and lookbehind"),
        (r"(?<!a)b", "Invalid regex pattern: lookahead and lookbehind"),
        (r"(a)\1", "Invalid regex pattern: backreferences"),
        (r"(?P<n>a)(?P=n)", "Invalid regex pattern: backreferences"),
        (r"(a", "Invalid regex pattern: missing ): (a"),
        (r"[a", "Invalid regex pattern: missing ]: [a"),
        (r"*a", "Invalid regex pattern: no argument for repetition operator: *"),
        (r"((a{90}){9}){9}", "Invalid regex pattern: repetitions, nested ones multiplied,"),
        (r"(.{0,900}\d)(.{0,900}\d){1}" * 12, "Invalid regex pattern: it is too complex"),
        (r"\pL{1,1000}", "Invalid regex pattern: it is too complex"),
        ("\ud800", "Invalid regex pattern: it is not valid text"),
    ],
)
def test_wrong_patterns_are_explained(pattern: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        LinePattern(pattern)
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (GrepQuery("agent-1", ""), "Empty search pattern provided"),
        (GrepQuery("agent-1", "  "), "Empty search pattern provided"),
        (GrepQuery("agent-1", "a" * 1_001), "Pattern too long: 1001 characters (max 1000)"),
        (
            GrepQuery("agent-1", "a", context_lines=21),
            "context_lines must be from 0 to 20, got 21",
        ),
        (GrepQuery("agent-1", "a", offset=-1), "offset must be from 0 to 1000000, got -1"),
    ],
)
def test_wrong_queries_are_explained(query: GrepQuery, message: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        check_query(query)
    assert caught.value.message == message


@pytest.mark.parametrize(
    ("include", "name", "is_included"),
    [
        ("", "docs/a.py", True),
        ("*.py", "docs/a.py", True),
        ("*.py", "docs/a.pyc", False),
        ("*.PY", "docs/a.py", True),
        ("docs/*.md", "docs/a.md", True),
        ("docs/*.md", "other/a.md", False),
        ("a?.txt", "docs/ab.txt", True),
        ("a?.txt", "docs/abc.txt", False),
        ("[ab].txt", "docs/b.txt", True),
        ("[!ab].txt", "docs/b.txt", False),
        (r".*\.(py|md)$", "docs/a.md", True),
        (r".*\.(py|md)$", "docs/a.txt", False),
        ("^docs/", "docs/a.txt", True),
        ("report.pdf", "docs/Report.pdf", True),
        ("report.pdf", "docs/reportXpdf", False),
        ("notes (1).txt", "docs/notes (1).txt", True),
        ("[x", "docs/[x.txt", True),
    ],
)
def test_names_are_filtered_by_glob_expression_or_part(
    include: str, name: str, is_included: bool
) -> None:
    assert name_filter(include)(name) is is_included


def test_a_wrong_expression_over_names_is_explained() -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        name_filter(r"(a")
    assert caught.value.message == "Invalid include pattern: missing ): (a"


@pytest.mark.parametrize("pattern", ["caf\u00e9", "cafe\u0301"])
def test_composed_and_decomposed_letters_match_each_other(pattern: str) -> None:
    text = "tea\nCaf\u00e9\nCafe\u0301 au lait"
    assert LinePattern(pattern).lines(text, limit=10, expired=lambda: False) == [1, 2]
    assert LinePattern(pattern).span("a cafe\u0301 here") == (2, 6)
    assert all(map(name_filter(f"{pattern}*"), ["x/caf\u00e9.md", "x/cafe\u0301.md"]))
