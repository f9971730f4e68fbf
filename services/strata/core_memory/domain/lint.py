"""Checks the lines of core memory for problems such as duplicates.

Rules prefer false negatives to false positives: people stop reading findings when most
of them are wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from strata.core_memory.domain.blocks import Block, is_nearly_full, used_percent

LONG_LINE_CHARS = 500
MOST_FINDINGS = 1_000
"""At most this many findings are returned: the first ones."""

_SHOWN_CHARS = 200
# Short lines, such as rulers, may be in every block.
_SHORTEST_DUPLICATE = 8

_BULLET = re.compile(r"(?:[-*+•]|\d{1,3}[.)])\s+(?:\[[ xX]\]\s+)?")
_BLANKS = re.compile(r"\s+")


class LintRule(StrEnum):
    """The kind of problem that a finding reports."""

    DUPLICATE = "duplicate"
    RELATIVE_DATE = "relative_date"
    LONG_LINE = "long_line"
    NEARLY_FULL = "nearly_full"


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem, for a person to check.

    Attributes:
        line: Line number, from 1; 0 for the whole block.
        text: The line, shortened.
        message: The problem and the remedy.
        other_label: Block of the other line of a duplicate; empty otherwise.
        other_line: Line number in that block; 0 if there is none.
    """

    rule: LintRule
    block_id: str
    label: str
    line: int
    text: str
    message: str
    other_label: str = ""
    other_line: int = 0


def lint(blocks: Sequence[Block]) -> list[Finding]:
    """Returns the findings for some blocks, by block in the given order, then by line."""
    linter = _Linter()
    findings: list[Finding] = []
    for block in blocks:
        findings += sorted(linter.check(block), key=lambda finding: finding.line)
        if len(findings) >= MOST_FINDINGS:
            break
    return findings[:MOST_FINDINGS]


class _Linter:
    """Checks blocks one after another and collects their lines, to find duplicates."""

    def __init__(self) -> None:
        # By text of the line: label and line number of its first occurrence.
        self._first_lines: dict[str, tuple[str, int]] = {}

    def check(self, block: Block) -> Iterator[Finding]:
        """Yields the findings for a block; its lines are also compared with earlier blocks."""
        if is_nearly_full(block):
            yield _finding(
                LintRule.NEARLY_FULL,
                block,
                None,
                f"{used_percent(block)}% of {block.limit} characters are used. Remove what is no "
                "longer needed, move details to archival memory, or raise the limit.",
            )
        for line in lines_of(block.value):
            yield from self._check_line(block, line)

    def _check_line(self, block: Block, line: TextLine) -> Iterator[Finding]:
        if len(line.text) > LONG_LINE_CHARS:
            yield _finding(
                LintRule.LONG_LINE,
                block,
                line,
                f"This line has {len(line.text)} characters. Split it into lines of one fact "
                "each, so that each fact can be changed alone.",
            )
        word = relative_date(line.words)
        if word:
            yield _finding(
                LintRule.RELATIVE_DATE,
                block,
                line,
                f'"{word}" means another time when it is read later. Write the date instead.',
            )
        duplicate = self._duplicate(block, line)
        if duplicate:
            yield duplicate

    def _duplicate(self, block: Block, line: TextLine) -> Finding | None:
        key = line.plain
        if line.heading or len(key) < _SHORTEST_DUPLICATE or not any(map(str.isalpha, key)):
            return None
        label, number = self._first_lines.setdefault(key, (block.label, line.number))
        if (label, number) == (block.label, line.number):
            return None
        where = f"line {number}" if label == block.label else f"line {number} of block '{label}'"
        return _finding(
            LintRule.DUPLICATE,
            block,
            line,
            f"The same text is in {where}. Keep it in one place.",
            (label, number),
        )


_UNITS = "day|week|weekend|month|quarter|year|spring|summer|autumn|fall|winter"
_WEEKDAYS = "monday|tuesday|wednesday|thursday|friday|saturday|sunday"
_COUNT = r"\d+|an?|one|two|three|four|five|six|several|some|a\ few|a\ couple\ of"
# Words before "next" and "last" that make them relative to something else than the
# time of writing.
_TIED = r"(?<!\bthe\ )(?<!\bevery\ )(?<!\beach\ )(?<!\bmy\ )(?<!\bour\ )(?<!\byour\ )(?<!\bits\ )"
_RELATIVE = re.compile(
    rf"""\b(?:
        (?<!usa\ )(?:today|tomorrow|yesterday)(?!'s\ date)
        | tonight
        | this\ (?:morning|afternoon|evening|week|weekend|month|quarter|year)
        | {_TIED}(?:next|last)\ (?:night|{_UNITS}|{_WEEKDAYS})(?!\ (?:of|in|at)\b)
        | (?:{_COUNT})\ (?:minute|hour|day|week|month|year)s?\ ago
        | in\ (?:{_COUNT})\ (?:minute|hour|day|week|month|year)s?(?='?\ ?(?:[.,;]|$))
        | (?<!from\ )(?<!until\ )(?<!till\ )(?<!by\ )(?<!up\ to\ )now
          (?!\ (?:and\ (?:then|again)|that)\b)
    )\b""",
    re.IGNORECASE | re.VERBOSE,
)
_MONTHS = (
    "jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|"
    "sep(?:t(?:ember)?)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?"
)
# A line that also contains a date is unambiguous.
_DATE = re.compile(
    rf"\b(?:(?:19|20)\d\d|\d{{1,2}}[./]\d{{1,2}}[./]\d{{2,4}}|(?:{_MONTHS})\.?\ \d{{1,2}}"
    rf"|\d{{1,2}}(?:st|nd|rd|th)?\.?\ (?:{_MONTHS}))\b",
    re.IGNORECASE,
)


def relative_date(text: str) -> str:
    """Returns the first relative date in a line, such as "tomorrow"; empty if there is none."""
    match = _RELATIVE.search(text)
    return "" if match is None or _DATE.search(text) else match[0]


def _finding(
    rule: LintRule,
    block: Block,
    line: TextLine | None,
    message: str,
    other: tuple[str, int] = ("", 0),
) -> Finding:
    text = line.text if line else ""
    return Finding(
        rule=rule,
        block_id=block.id,
        label=block.label,
        line=line.number if line else 0,
        text=text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}...",
        message=message,
        other_label=other[0],
        other_line=other[1],
    )


@dataclass(frozen=True, slots=True)
class TextLine:
    """A line that is not blank.

    Attributes:
        number: Line number, from 1.
        text: The stored line.
        words: The line without indentation, bullet and final punctuation, with single
            blanks.
        heading: The line is a title: it starts with "#" or ends with ":".
    """

    number: int
    text: str
    words: str
    heading: bool

    @property
    def plain(self) -> str:
        """The words in a form that is equal for lines that differ only in case or apostrophes."""
        return self.words.casefold().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")


def lines_of(text: str) -> Iterator[TextLine]:
    """Yields the lines of a text, except blank lines and fenced code."""
    fenced = False
    for number, line in enumerate(text.split("\n"), start=1):
        stripped = line.strip()
        if stripped.startswith("```"):
            fenced = not fenced
            continue
        # Repeated lines are normal in code.
        if fenced or not stripped:
            continue
        heading = stripped.startswith("#") or stripped.endswith(":")
        words = _BLANKS.sub(" ", _BULLET.sub("", stripped, count=1)).rstrip(" .;,!")
        yield TextLine(number, line, words, heading)
