"""What makes core memory worse, found by looking at its lines.

Every rule would rather miss something than cry wolf: a person reads the findings, and
stops reading when most of them are wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from strata.core_memory.domain.blocks import Block, is_nearly_full, used_percent
from strata.core_memory.domain.claims import Claim, claims_of, contradict
from strata.core_memory.domain.lines import Line, lines_of

LONG_LINE_CHARS = 500
MOST_FINDINGS = 1_000
"""Findings that are told at most; who has more begins with these."""

_SHOWN_CHARS = 200
# A heading or a ruler may stand in every block.
_SHORTEST_DUPLICATE = 8
# Of one subject; a text that says more of it is compared with its first claims only.
_MOST_CLAIMS = 50


class LintRule(StrEnum):
    """What a finding is about."""

    DUPLICATE = "duplicate"
    RELATIVE_DATE = "relative_date"
    CONTRADICTION = "contradiction"
    LONG_LINE = "long_line"
    NEARLY_FULL = "nearly_full"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something to be looked at.

    Attributes:
        line: Number of the line, from 1; 0 for the whole block.
        text: The line, shortened.
        message: What is wrong and what to do.
        other_label: Where the other line stands, if there are two.
        other_line: Its number.
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
    """Returns the findings of some blocks, in their order and by line."""
    linter = _Linter()
    found: list[Finding] = []
    for block in blocks:
        found += sorted(linter.read(block), key=lambda finding: finding.line)
        if len(found) >= MOST_FINDINGS:
            break
    return found[:MOST_FINDINGS]


class _Linter:
    """Remembers what the lines before said."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[str, int]] = {}
        # By subject, then by what was said of it: who said it first.
        self._claims: dict[tuple[str, ...], dict[str, tuple[Claim, str, int]]] = {}

    def read(self, block: Block) -> Iterator[Finding]:
        """Yields what is to be said of a block, beside those read before."""
        if is_nearly_full(block):
            yield _finding(
                LintRule.NEARLY_FULL,
                block,
                None,
                f"{used_percent(block)}% of {block.limit} characters are used. Remove what is no "
                "longer needed, move details to archival memory, or raise the limit.",
            )
        for line in lines_of(block.value):
            yield from self._line(block, line)

    def _line(self, block: Block, line: Line) -> Iterator[Finding]:
        if len(line.text) > LONG_LINE_CHARS:
            yield _finding(
                LintRule.LONG_LINE,
                block,
                line,
                f"This line has {len(line.text)} characters. Break it into several of one fact "
                "each, so that one can be changed without the others.",
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
        else:
            yield from self._contradictions(block, line)

    def _duplicate(self, block: Block, line: Line) -> Finding | None:
        key = line.plain
        if line.heading or len(key) < _SHORTEST_DUPLICATE or not any(map(str.isalpha, key)):
            return None
        label, number = self._seen.setdefault(key, (block.label, line.number))
        if (label, number) == (block.label, line.number):
            return None
        where = f"line {number}" if label == block.label else f"line {number} of block '{label}'"
        return _finding(
            LintRule.DUPLICATE,
            block,
            line,
            f"The same stands in {where}. Keep it in one place.",
            (label, number),
        )

    def _contradictions(self, block: Block, line: Line) -> Iterator[Finding]:
        for claim in claims_of(line):
            # What is said without a name is about another one in another block.
            place = () if claim.named else (block.id, str(line.paragraph))
            group = self._claims.setdefault((*claim.subject, *place), {})
            for earlier, label, number in group.values():
                if contradict(earlier, claim):
                    where = f"Line {number}"
                    if label != block.label:
                        where += f" of block '{label}'"
                    yield _finding(
                        LintRule.CONTRADICTION,
                        block,
                        line,
                        f"{where} seems to say something else of the same. Keep what is true "
                        "now; if both are, say when or in what each is.",
                        (label, number),
                    )
                    break
            if len(group) < _MOST_CLAIMS:
                group.setdefault(claim.object, (claim, block.label, line.number))


_UNITS = "day|week|weekend|month|quarter|year|spring|summer|autumn|fall|winter"
_WEEKDAYS = "monday|tuesday|wednesday|thursday|friday|saturday|sunday"
_COUNT = r"\d+|an?|one|two|three|four|five|six|several|some|a\ few|a\ couple\ of"
# Words before "next" and "last" that tie them to something else than the moment of writing.
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
# A line that names a date says which day is meant.
_DATE = re.compile(
    rf"\b(?:(?:19|20)\d\d|\d{{1,2}}[./]\d{{1,2}}[./]\d{{2,4}}|(?:{_MONTHS})\.?\ \d{{1,2}}"
    rf"|\d{{1,2}}(?:st|nd|rd|th)?\.?\ (?:{_MONTHS}))\b",
    re.IGNORECASE,
)


def relative_date(text: str) -> str:
    """Returns the words of a line that tell a time by when they were written; empty if none."""
    found = _RELATIVE.search(text)
    return "" if found is None or _DATE.search(text) else found[0]


def _finding(
    rule: LintRule,
    block: Block,
    line: Line | None,
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
