"""What the index found and what only PostgreSQL knows yet, in one order.

The text and the conditions of each result are those of PostgreSQL, so that an index that
lags behind can miss something but never show what is wrong. Without the index the words
alone are searched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from strata.shared.errors import (
    FailedPreconditionError,
    ResourceExhaustedError,
    UnavailableError,
)
from strata.shared.logs import get_logger
from strata.shared.vectors.fusion import Hit
from strata.shared.vectors.index import StartGate

# What waits for the index is found by words alone. Its score is set between those of the
# hits: a good match by words ranks with a fair one by meaning.
_PENDING_WEIGHT = 0.5
# Turns of the event loop until a request that is being made is on its way.
_STEPS_OF_A_REQUEST = 3
# A connection is kept so long for an answer of the index; more at once than there are connections
# must not wait for a model elsewhere, which takes a second.
_HELD_SECONDS = 0.025
BELOW_FLOOR = "relevance"
"""Name of the floor among the conditions that leave matches out of a search."""

_Item = TypeVar("_Item")
_Item_co = TypeVar("_Item_co", covariant=True)
_log = get_logger(__name__)


class DatabaseSnapshot(Protocol[_Item_co]):
    """The database as it was at one moment, for one question."""

    async def waiting(self) -> Sequence[tuple[_Item_co, float]]:
        """Returns, of what the index lacks, the best by words with their scores."""
        ...

    async def by_ids(self, ids: Sequence[str]) -> Mapping[str, _Item_co]:
        """Returns by name what there is of those that the index named, under all conditions."""
        ...


@dataclass(frozen=True, slots=True)
class ResultRank:
    """Where a result stands, and why.

    Attributes:
        mode: ``hybrid``, ``vector`` or ``fts``: which arms found it.
        score: What the results are ordered by.
        vector_rank: Place by meaning, from 1; None if not found so.
        fts_rank: Place by words, from 1; None if not found so.
        bonus: What the score holds for being preferred.
        waiting: It is not in the index yet.
        weak: It is below the floor: it has nothing to do with the query.
    """

    mode: str
    score: float
    vector_rank: int | None
    fts_rank: int | None
    bonus: float = 0.0
    waiting: bool = False
    weak: bool = False


def merge(
    hits: Sequence[Hit],
    by_id: Mapping[str, _Item],
    by_words: Sequence[tuple[str, _Item, float]],
    bonus: Callable[[_Item], float] = lambda _: 0.0,
    *,
    unknown_words: bool = False,
) -> list[tuple[_Item, ResultRank]]:
    """Puts what the index found and what only the words found into one order.

    Args:
        hits: From the index.
        by_id: What PostgreSQL says of them; what is not there is not shown.
        by_words: Found by PostgreSQL's own search: name, item and score, best first.
        bonus: What is preferred of these; in the scores of the hits it is there already.
        unknown_words: The index does not know every word of the query. PostgreSQL does: what it
            found counts also for the hits of the index.
    """
    best = max((score for _, _, score in by_words), default=0.0) or 1.0
    more: dict[str, tuple[int, float]] = {}
    if unknown_words:
        more = {
            name: (rank, _PENDING_WEIGHT * score / best)
            for rank, (name, _, score) in enumerate(by_words, start=1)
        }
    ranked = [
        (by_id[hit.document_id], _place(hit, more.get(hit.document_id)))
        for hit in hits
        if hit.document_id in by_id
    ] + [
        (item, _waiting(score / best, rank, bonus(item)))
        for rank, (name, item, score) in enumerate(by_words, start=1)
        if name not in by_id
    ]
    # Stable: of equal ones, each list keeps its own order.
    ranked.sort(key=lambda pair: -pair[1].score)
    return ranked


@dataclass(frozen=True, slots=True)
class Matches(Generic[_Item]):
    """What index and database have for a question.

    Attributes:
        hits: What the index found.
        by_id: What the database has of these, by name.
        by_words: What the database found by words, best first, with the scores.
    """

    hits: Sequence[Hit]
    by_id: Mapping[str, _Item]
    by_words: Sequence[tuple[_Item, float]]


async def search_both(
    look: Callable[[], AbstractAsyncContextManager[DatabaseSnapshot[_Item]]],
    index: Callable[[StartGate], Awaitable[list[Hit]]],
    by_words: Callable[[], Awaitable[Sequence[tuple[_Item, float]]]],
) -> Matches[_Item]:
    """Asks index and database, so that nothing is missed that is on its way into the index.

    The moment at which the database is looked at for what waits comes before the index is asked:
    the other way round, what the index takes in meanwhile would be found by neither. From then on
    both search at the same time. What is asked of the index (a vector of the question, mostly) is
    made while the database fixes the moment. What the index names is read in the same
    transaction, unless the answer takes so long that others would want for its connection.

    Args:
        look: Looks at the database; the moment is fixed when the context is entered.
        index: Searches the index, after the moment that it is given.
        by_words: Searches all of the database, for when the index cannot be asked.
    """
    begun = asyncio.Event()

    async def ask() -> list[Hit] | None:
        return await hits_or_none(index(begun.wait))

    asked = asyncio.create_task(ask())
    named: dict[str, _Item] = {}
    try:
        async with look() as seen:
            begun.set()
            # The index takes longer: what it is asked goes out before a statement is made.
            for _ in range(_STEPS_OF_A_REQUEST):
                await asyncio.sleep(0)
            waiting = await seen.waiting()
            await asyncio.wait({asked}, timeout=_HELD_SECONDS)
            if asked.done():
                named.update(await _named(seen, asked.result()))
        hits = await asked
    finally:
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
    if hits is None:
        return Matches((), {}, await by_words())
    if missing := [hit for hit in hits if hit.document_id not in named]:
        # Not read yet, or younger than the moment.
        async with look() as seen:
            named.update(await _named(seen, missing))
    return Matches(hits, named, waiting)


async def _named(look: DatabaseSnapshot[_Item], hits: Sequence[Hit] | None) -> Mapping[str, _Item]:
    # Also where there are none: what a search costs does not depend on what it finds.
    return {} if hits is None else await look.by_ids([hit.document_id for hit in hits])


async def hits_or_none(asked: Awaitable[list[Hit]]) -> list[Hit] | None:
    """Returns what the index answers; None if it cannot be asked."""
    try:
        return await asked
    except (UnavailableError, ResourceExhaustedError, FailedPreconditionError) as error:
        # The model of the vectors can limit the rate, or have lost its key.
        _log.warning("searching by words only", reason=error.reason.value)
        return None


def explain_result(place: ResultRank, reasons: Sequence[str]) -> str:
    """Tells in words why something stands where it stands.

    Args:
        place: Where it stands.
        reasons: Why it was preferred, if it was.
    """
    arms = []
    if place.vector_rank is not None:
        arms.append(f"by meaning at rank {place.vector_rank}")
    if place.fts_rank is not None:
        arms.append(f"by its words at rank {place.fts_rank}")
    parts = [f"Found {' and '.join(arms)}, with a score of {place.score:.4f}."]
    if place.bonus:
        parts.append(f"{place.bonus:.2f} of it because {' and '.join(reasons)}.")
    if place.waiting:
        parts.append(
            "Only its words were searched: the index does not have it, cannot read the query, or"
            " is away."
        )
    return " ".join(parts)


def _waiting(share: float, rank: int, bonus: float) -> ResultRank:
    return ResultRank("fts", _PENDING_WEIGHT * share + bonus, None, rank, bonus, waiting=True)


def _place(hit: Hit, words: tuple[int, float] | None = None) -> ResultRank:
    """Returns the place of a hit; ``words`` is what PostgreSQL adds, as rank and score."""
    fts_rank, added = (hit.fts_rank, 0.0) if words is None else words
    mode = "fts"
    if hit.vector_rank is not None:
        mode = "vector" if fts_rank is None else "hybrid"
    weak = hit.weak and words is None
    return ResultRank(mode, hit.score + added, hit.vector_rank, fts_rank, hit.bonus, weak=weak)
