"""Finds the version that wrote each line of a block; reads versions from newest to oldest."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from strata.core_memory.domain.blocks import Authorship, Version
from strata.core_memory.domain.text_edits.three_way_merge import lines_of

# With more pairs of lines a diff can take seconds. Then all lines between the first and the last
# difference count as new.
_MAX_PAIRS = 400_000


@dataclass(frozen=True, slots=True)
class LineOrigin:
    """A line and the version that wrote it."""

    text: str
    revision: int
    authorship: Authorship


class Blame:
    """Finds the origin of every line of one text.

    Pass the versions to `read`, newest first, until it returns True. The first one is the version
    whose lines are examined.
    """

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._writers: list[Version | None] = []
        # Lines without a writer: index in the oldest version read -> index in the text.
        self._open: dict[int, int] = {}
        self._oldest: Version | None = None

    def read(self, versions: Sequence[Version]) -> bool:
        """Reads older versions; returns True once every line has its writer."""
        for version in versions:
            if self._oldest is None:
                self._lines = lines_of(version.value)
                self._writers = [None] * len(self._lines)
                self._open = {index: index for index in range(len(self._lines))}
            elif self._open:
                self._attribute_new_lines(self._oldest, version)
            self._oldest = version
        return not self._open

    def origins(self) -> list[LineOrigin]:
        """Returns the lines; those without a writer count as the oldest version's."""
        origins = []
        for text, writer in zip(self._lines, self._writers, strict=True):
            version = writer or self._oldest
            assert version is not None
            origins.append(LineOrigin(text, version.revision, version.authorship))
        return origins

    def _attribute_new_lines(self, newer: Version, older: Version) -> None:
        """Makes `newer` the writer of the lines that `older` does not have."""
        if newer.value == older.value:
            return
        older_index = dict(_equal_lines(lines_of(older.value), lines_of(newer.value)))
        still_open: dict[int, int] = {}
        for index, line in self._open.items():
            if index in older_index:
                still_open[older_index[index]] = line
            else:
                self._writers[line] = newer
        self._open = still_open


def _equal_lines(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yields the indexes of equal lines: in the new text, and in the old text."""
    shorter = min(len(old), len(new))
    head = 0
    while head < shorter and old[head] == new[head]:
        yield head, head
        head += 1
    tail = 0
    while tail < shorter - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
        yield len(new) - tail, len(old) - tail
    old_middle, new_middle = old[head : len(old) - tail], new[head : len(new) - tail]
    if not old_middle or len(old_middle) * len(new_middle) > _MAX_PAIRS:
        return
    matcher = difflib.SequenceMatcher(None, old_middle, new_middle, autojunk=False)
    for at_old, at_new, length in matcher.get_matching_blocks():
        for step in range(length):
            yield head + at_new + step, head + at_old + step
