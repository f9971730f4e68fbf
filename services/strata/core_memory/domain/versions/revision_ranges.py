"""Ranges of revisions, and the revisions that reverts have undone."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RevisionRange:
    """Consecutive revisions of a block: the first and the last one."""

    first: int
    last: int


def revision_ranges_of(revisions: Iterable[int]) -> list[RevisionRange]:
    """Returns revisions, newest first, as ranges, newest first."""
    ranges: list[RevisionRange] = []
    for revision in revisions:
        if ranges and ranges[-1].first == revision + 1:
            ranges[-1] = RevisionRange(revision, ranges[-1].last)
        else:
            ranges.append(RevisionRange(revision, revision))
    return ranges


def write_revision_ranges(ranges: Sequence[RevisionRange]) -> str:
    """Returns ranges as text: ``7-9,3-3``."""
    return ",".join(f"{range_.first}-{range_.last}" for range_ in ranges)


def read_revision_ranges(text: str) -> list[RevisionRange]:
    """Parses the text that `write_revision_ranges` returns."""
    pairs = [part.split("-") for part in text.split(",") if part]
    return [RevisionRange(int(first), int(last)) for first, last in pairs]


def already_undone(reverts: Mapping[int, str], selected: Container[int]) -> set[int]:
    """Returns the revisions that are undone and stay so.

    Args:
        reverts: The ranges that each revert undid, by the revision of the revert.
        selected: Revisions that are about to be undone. Undoing a revert restores the
            revisions that it undid.
    """
    undone: set[int] = set()
    for revision in sorted(reverts, reverse=True):
        if revision in undone or revision in selected:
            continue
        for range_ in read_revision_ranges(reverts[revision]):
            undone.update(range(range_.first, range_.last + 1))
    return undone
