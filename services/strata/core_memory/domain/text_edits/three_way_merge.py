"""Three-way merges of texts: two sides changed copies of the same base.

Each side's difference to the base is a list of hunks. Hunks that do not overlap are all
applied. Where hunks of both sides overlap, the lines are compared again by words, so that
changes of different words of one line merge. Hunks of words that overlap are a conflict.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TypeAlias

# Words, runs of blanks, line feeds and single other characters: joined they are the text.
_TOKEN = re.compile(r"\w+|[^\S\n]+|\n|[^\w\s]")

# The search takes time proportional to the square of the number of changes. Texts that
# differ more become one hunk: such a merge may conflict, but is never wrong.
_MOST_CHANGES = 300

# Needed between two insertions at one place: "red" and "green" must not become "redgreen".
_SEPARATORS = (" ", "\t", "\n", ",", ";")

Texts: TypeAlias = Sequence[str]


@dataclass(frozen=True, slots=True)
class Hunk:
    """Replaces ``base[start:end]`` by `new`; an insertion if start equals end."""

    start: int
    end: int
    new: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Clash:
    """A part of the base that both sides changed, and its text on each side."""

    base: Texts
    current: Texts
    mine: Texts


_Overlap: TypeAlias = Callable[[Hunk, Hunk], bool]
_Resolve: TypeAlias = Callable[[_Clash], "list[str] | None"]


def merge3_text(base: str, current: str, mine: str) -> str | None:
    """Returns `current` with the changes that lead from `base` to `mine`.

    A change that both sides made is applied once. Lines that both sides inserted at one
    place are both kept, first the ones of `current`.

    Args:
        base: The text that both sides started from.
        current: The stored text, with the changes of others.
        mine: The text of the editor, who saw `base`.

    Returns:
        The merged text, or None if the changes conflict.
    """
    if current in (base, mine):
        return mine
    if mine == base:
        return current
    merged = _merge(lines_of(base), lines_of(current), lines_of(mine), _share_lines, _merged_lines)
    return None if merged is None else "\n".join(merged)


def hunks_between(old: Texts, new: Texts) -> list[Hunk]:
    """Returns the changes from `old` to `new`, in order, never adjacent to each other."""
    head = _common(old, new)
    tail = _common(old[head:][::-1], new[head:][::-1])
    before, after = old[head : len(old) - tail], new[head : len(new) - tail]
    return [Hunk(head + h.start, head + h.end, h.new) for h in _smallest(before, after)]


def apply_hunks(base: Texts, hunks: Sequence[Hunk], start: int, end: int) -> list[str]:
    """Applies ordered, non-overlapping hunks to ``base[start:end]``."""
    result: list[str] = []
    for hunk in hunks:
        result += base[start : hunk.start]
        result += hunk.new
        start = hunk.end
    return [*result, *base[start:end]]


def lines_of(text: str) -> list[str]:
    """Splits a text at line feeds; an empty text has no lines."""
    return text.split("\n") if text else []


def _merge(
    base: Texts, current: Texts, mine: Texts, overlap: _Overlap, resolve: _Resolve
) -> list[str] | None:
    merged: list[str] = []
    merged_until = 0
    for theirs, ours in _groups(hunks_between(base, current), hunks_between(base, mine), overlap):
        both = [*theirs, *ours]
        start, end = min(hunk.start for hunk in both), max(hunk.end for hunk in both)
        merged += base[merged_until:start]
        merged_until = end
        if not (theirs and ours):
            merged += apply_hunks(base, both, start, end)
            continue
        current_part, my_part = (apply_hunks(base, side, start, end) for side in (theirs, ours))
        resolved: list[str] | None = current_part
        if current_part != my_part:
            resolved = resolve(_Clash(base[start:end], current_part, my_part))
        if resolved is None:
            return None
        merged += resolved
    return [*merged, *base[merged_until:]]


def _groups(
    theirs: list[Hunk], ours: list[Hunk], overlap: _Overlap
) -> Iterator[tuple[list[Hunk], list[Hunk]]]:
    """Yields the hunks of both sides in order, grouped so that groups do not overlap."""
    ranges = [(hunk.start, hunk.end, 0, hunk) for hunk in theirs]
    ranges += [(hunk.start, hunk.end, 1, hunk) for hunk in ours]
    group: tuple[list[Hunk], list[Hunk]] = ([], [])
    for _, _, side, hunk in sorted(ranges, key=lambda range_: range_[:3]):
        if (group[0] or group[1]) and not any(overlap(hunk, met) for met in group[1 - side]):
            yield group
            group = ([], [])
        group[side].append(hunk)
    if group[0] or group[1]:
        yield group


def _share_lines(one: Hunk, other: Hunk) -> bool:
    """Returns whether two hunks change the same lines; adjacent hunks do not."""
    if one.start == one.end == other.start == other.end:
        return True
    return one.start < other.end and other.start < one.end


def _touch(one: Hunk, other: Hunk) -> bool:
    """Returns whether two hunks overlap or are adjacent, without an unchanged word between.

    Adjacent words belong together: "green tea" and "coffee", both changed from "tea",
    must not merge to "green coffee".
    """
    return one.start <= other.end and other.start <= one.end


def _merged_lines(clash: _Clash) -> list[str] | None:
    """Merges lines that both sides changed, by words."""
    if not clash.base:
        return [*clash.current, *clash.mine]
    if not clash.current or not clash.mine:
        return None
    base, current, mine = (
        _TOKEN.findall("\n".join(lines)) for lines in (clash.base, clash.current, clash.mine)
    )
    merged = _merge(base, current, mine, _touch, _both_insertions)
    return None if merged is None else "".join(merged).split("\n")


def _both_insertions(clash: _Clash) -> list[str] | None:
    """Joins two insertions at one place, if a separator keeps their words apart."""
    if clash.base:
        return None
    apart = clash.current[-1].endswith(_SEPARATORS) or clash.mine[0].startswith(_SEPARATORS)
    return [*clash.current, *clash.mine] if apart else None


def _smallest(old: Texts, new: Texts) -> list[Hunk]:
    """Returns the fewest changes from one list to the other.

    E. W. Myers, "An O(ND) difference algorithm and its variations" (1986): after d
    changes, ``furthest[k]`` is the largest index into `old` reachable on diagonal k.
    """
    if not old and not new:
        return []
    furthest, trace = {1: 0}, []
    for changes in range(_MOST_CHANGES + 1):
        trace.append(dict(furthest))
        for diagonal in range(-changes, changes + 1, 2):
            x = furthest[_came_from(furthest, diagonal, changes)]
            x += 0 if _inserted(furthest, diagonal, changes) else 1
            while x < len(old) and x - diagonal < len(new) and old[x] == new[x - diagonal]:
                x += 1
            furthest[diagonal] = x
            if x >= len(old) and x - diagonal >= len(new):
                return _traced_back(trace, old, new)
    return [Hunk(0, len(old), tuple(new))]


def _inserted(furthest: dict[int, int], diagonal: int, changes: int) -> bool:
    """Returns whether the last change towards a diagonal is an insertion, else a removal."""
    if diagonal in (-changes, changes):
        return diagonal == -changes
    return furthest[diagonal - 1] < furthest[diagonal + 1]


def _came_from(furthest: dict[int, int], diagonal: int, changes: int) -> int:
    return diagonal + 1 if _inserted(furthest, diagonal, changes) else diagonal - 1


def _traced_back(trace: list[dict[int, int]], old: Texts, new: Texts) -> list[Hunk]:
    """Follows the changes from end to start; joins adjacent ones into hunks."""
    hunks: list[Hunk] = []
    diagonal = len(old) - len(new)
    for changes in range(len(trace) - 1, 0, -1):
        furthest = trace[changes]
        inserted = _inserted(furthest, diagonal, changes)
        diagonal = _came_from(furthest, diagonal, changes)
        x = furthest[diagonal]
        hunk = Hunk(x, x, (new[x - diagonal],)) if inserted else Hunk(x, x + 1, ())
        if hunks and hunks[-1].start == hunk.end:
            later = hunks.pop()
            hunk = Hunk(hunk.start, later.end, hunk.new + later.new)
        hunks.append(hunk)
    return hunks[::-1]


def _common(one: Texts, other: Texts) -> int:
    """Counts the equal elements at the beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
