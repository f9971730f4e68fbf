"""Runs of revisions, and which of them are undone already."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """Edits of a block that follow each other directly: their first and last revision."""

    first: int
    last: int


def revision_ranges_of(revisions: Iterable[int]) -> list[Span]:
    """Returns revisions, newest first, as spans, newest first."""
    spans: list[Span] = []
    for revision in revisions:
        if spans and spans[-1].first == revision + 1:
            spans[-1] = Span(revision, spans[-1].last)
        else:
            spans.append(Span(revision, revision))
    return spans


def write_revision_ranges(spans: Sequence[Span]) -> str:
    """Returns spans as text: ``7-9,3-3``."""
    return ",".join(f"{span.first}-{span.last}" for span in spans)


def read_revision_ranges(text: str) -> list[Span]:
    """Returns the spans that `write_revision_ranges` wrote."""
    pairs = [each.split("-") for each in text.split(",") if each]
    return [Span(int(first), int(last)) for first, last in pairs]


def already_undone(reverts: Mapping[int, str], selected: Container[int]) -> set[int]:
    """Returns the revisions that reverts have undone for good.

    Args:
        reverts: What each revert undid, by its own revision.
        selected: Revisions that are about to be undone. With a revert among them, what it
            undid is there again.
    """
    undone: set[int] = set()
    for revision in sorted(reverts, reverse=True):
        if revision in undone or revision in selected:
            continue
        for span in read_revision_ranges(reverts[revision]):
            undone.update(range(span.first, span.last + 1))
    return undone
