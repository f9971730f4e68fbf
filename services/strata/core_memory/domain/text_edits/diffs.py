"""Unified diffs of block values."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from strata.core_memory.domain.text_edits.three_way_merge import lines_of

_CONTEXT = 3
# Above this many line pairs the matcher may take seconds.
_MATCHER_PAIRS = 400_000


def unified_diff(before: str, after: str) -> str:
    """Returns the diff from `before` to `after`, without file headers; empty if they are equal.

    Very long texts get one hunk that spans everything from the first to the last
    changed line: correct, but not minimal.
    """
    if before == after:
        return ""
    old, new = lines_of(before), lines_of(after)
    if len(old) * len(new) > _MATCHER_PAIRS:
        return "\n".join(_one_hunk(old, new))
    return "\n".join(list(difflib.unified_diff(old, new, n=_CONTEXT, lineterm=""))[2:])


def _one_hunk(old: Sequence[str], new: Sequence[str]) -> list[str]:
    shorter = min(len(old), len(new))
    head = 0
    while head < shorter and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < shorter - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    start, rest = max(0, head - _CONTEXT), min(tail, _CONTEXT)
    old_end, new_end = len(old) - tail, len(new) - tail
    return [
        f"@@ -{_range(start, old_end + rest)} +{_range(start, new_end + rest)} @@",
        *(f" {line}" for line in old[start:head]),
        *(f"-{line}" for line in old[head:old_end]),
        *(f"+{line}" for line in new[head:new_end]),
        *(f" {line}" for line in old[old_end : old_end + rest]),
    ]


def _range(start: int, end: int) -> str:
    """Returns a line range in diff notation: counted from 1, or from 0 if it is empty."""
    length = end - start
    return f"{start + 1 if length else start},{length}"
