"""The decisions are numbered without gaps, indexed, and cited by numbers that exist."""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest

from unit.house.repository import REPOSITORY, texts

FOLDER = REPOSITORY / "docs" / "decisions"
PAGES = sorted(path for path in FOLDER.glob("*.md") if path.name != "README.md")
_ROW = re.compile(
    r"^\| (?:\[(?P<linked>\d{4})\]\((?P<file>[^)]+)\)|(?P<plain>\d{4}))"
    r" \| (?P<title>.+?) \| (?P<summary>.+?) \| (?P<status>.+?) \|$",
    re.MULTILINE,
)
_STATUS = re.compile(r"Accepted|Reserved|(?:Extended|Partly replaced|Replaced) by (\d{4})")
# In prose and code: "decision 0007", "Decisions 0007", "docs/decisions/0007".
_CITATION = re.compile(r"\b[Dd]ecisions? (\d{4})\b|\bdecisions/(\d{4})\b")
# Within the decisions a number alone is a citation: "(0007)".
_NUMBER = re.compile(r"(?<![\w.,\"'`/-])(0[01]\d{2})(?![\w.]*\d|_)\b")


class Row(NamedTuple):
    """A row of the index; `file` is empty for a reserved number."""

    number: str
    file: str
    title: str
    status: str


def rows() -> list[Row]:
    index = (FOLDER / "README.md").read_text("utf-8")
    return [
        Row(match["linked"] or match["plain"], match["file"] or "", match["title"], match["status"])
        for match in _ROW.finditer(index)
    ]


def cited(text: str, *, in_decision: bool = False) -> set[str]:
    """Returns the numbers of decisions that a text cites."""
    numbers = {number for match in _CITATION.finditer(text) for number in match.groups() if number}
    return numbers | (set(_NUMBER.findall(text)) if in_decision else set())


def test_index_numbers_decisions_from_one_without_gaps() -> None:
    numbers = [row.number for row in rows()]
    assert len(numbers) > 100
    assert numbers == [f"{number:04}" for number in range(1, len(numbers) + 1)]


def test_index_lists_every_page_once() -> None:
    # If it fails: a page has a number after the last row. Give it the number of the next row.
    assert [row.file for row in rows() if row.file] == [page.name for page in PAGES]


def test_index_has_number_and_title_of_each_page() -> None:
    pages = {page.name: page.read_text("utf-8") for page in PAGES}
    for row in rows():
        if row.file:
            assert row.file.startswith(f"{row.number}-"), row.file
            assert pages[row.file].startswith(f"# {row.number}: {row.title}\n"), row.file


def test_status_of_each_decision_is_known() -> None:
    numbers = {row.number for row in rows()}
    for row in rows():
        match = _STATUS.fullmatch(row.status)
        assert match is not None, f"{row.number}: {row.status}"
        assert match.group(1) is None or match.group(1) in numbers, row.number
        assert (row.status == "Reserved") == (not row.file), row.number


def test_each_page_is_one_decision() -> None:
    for page in PAGES:
        text = page.read_text("utf-8")
        assert text.count("\n# ") == 0, page.name
        assert "**Decision.**" in text, page.name


def test_cited_decisions_exist() -> None:
    known = {row.number for row in rows()}
    unknown = {
        f"{name}: {number}"
        for name, text in texts().items()
        for number in cited(text, in_decision=name.startswith("docs/decisions/0"))
        if number not in known
    }
    assert unknown == set()


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("as decision 0007 has it", {"0007"}),
        ("see docs/decisions/0024.", {"0024"}),
        ("`decisions/0023-floor-by-query.md`", {"0023"}),
        ("it is bounded (0009, 0010).", {"0009", "0010"}),
        ("in view: 0060.", {"0060"}),
        ("migration `0007_owner_address`, 0.0125, 127.0.0.1, 0177.0.0.1, 2026-11-25", set()),
    ],
)
def test_citations_are_recognized(text: str, numbers: set[str]) -> None:
    assert cited(text, in_decision=True) == numbers
