"""Merges the hits of the vector index with texts that are not indexed yet.

PostgreSQL provides the text of each result and checks the conditions, so an index that lags
behind can miss results but never return wrong ones. Without the index, PostgreSQL searches by
words alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from strata.protocol.errors import (
    FailedPreconditionError,
    ResourceExhaustedError,
    UnavailableError,
)
from strata.shared.logs import get_logger
from strata.shared.search.fusion import Hit
from strata.shared.search.learned_order import MatchFeatures
from strata.shared.search.outdated import Outdated
from strata.shared.search.vectors.index import StartGate

# Texts that are not indexed yet are found by words alone. This weight places a good match by words
# beside a fair match by meaning.
_PENDING_WEIGHT = 0.5
# How long a database connection is held while the index answers. A query that waits for a remote
# model takes a second; concurrent ones must not use up the connection pool.
_HELD_SECONDS = 0.025
# Smaller parts of a score are not mentioned in explanations, which show two digits.
_SHOWN = 0.005
# The features of the learned order in explanations; the score itself is named before them.
_FEATURES = {
    "meaning": "its meaning",
    "bonus": "the time or speaker that the query names",
    "before": "texts before it",
    "after": "texts after it",
    "session": "words of its session",
    "session_meaning": "the meaning of its session",
    "length": "its length",
    "recency": "being new",
}
BELOW_FLOOR = "relevance"
"""Name of the floor among the conditions that leave matches out of a search."""

_Item = TypeVar("_Item")
_Item_co = TypeVar("_Item_co", covariant=True)
_log = get_logger(__name__)


class DatabaseSnapshot(Protocol[_Item_co]):
    """A consistent snapshot of the database, queried for one search."""

    async def waiting(self) -> Sequence[tuple[_Item_co, float]]:
        """Returns the best matches by words among the texts not indexed yet, with scores."""
        ...

    async def by_ids(self, ids: Sequence[str]) -> Mapping[str, _Item_co]:
        """Returns the texts with these ids that meet all conditions, by id."""
        ...


@dataclass(frozen=True, slots=True)
class ResultRank:
    """The score of a result and its parts.

    Attributes:
        mode: ``hybrid``, ``vector`` or ``fts``: the arms that found it.
        score: The score that the results are ordered by.
        vector_rank: Rank by meaning, from 1; None if not found by meaning.
        fts_rank: Rank by words, from 1; None if not found by words.
        bonus: The part of the score for preferences.
        neighbours: The part for texts beside it.
        session: The part for its session.
        newest: The part for being new.
        earlier_rank: Its rank in the index before the learned order, from 1; 0 if not moved.
        learned: Contribution of each feature to its value for that order; None if it is not in it.
        waiting: It is not indexed yet.
        weak: It is below the floor, so it counts as unrelated to the query.
    """

    mode: str
    score: float
    vector_rank: int | None
    fts_rank: int | None
    bonus: float = 0.0
    neighbours: float = 0.0
    session: float = 0.0
    newest: float = 0.0
    earlier_rank: int = 0
    learned: MatchFeatures | None = None
    waiting: bool = False
    weak: bool = False

    @property
    def preferred(self) -> float:
        """The part of the score that does not come from the text itself."""
        return self.bonus + self.newest


def merge(
    hits: Sequence[Hit],
    by_id: Mapping[str, _Item],
    by_words: Sequence[tuple[str, _Item, float]],
    bonus: Callable[[_Item], float] = lambda _: 0.0,
    *,
    unknown_words: bool = False,
) -> list[tuple[_Item, ResultRank]]:
    """Merges hits of the index and matches of PostgreSQL into one order.

    Args:
        hits: Hits of the index.
        by_id: The items of the hits in PostgreSQL; hits without an item are dropped.
        by_words: Matches of PostgreSQL's search by words: id, item and score, best first.
        bonus: Returns the bonus of such a match; scores of hits already include theirs.
        unknown_words: Whether the index does not know all words of the query. If so, the scores
            of PostgreSQL also count for hits of the index.
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
    # The sort is stable: results with equal scores keep the order of their list.
    ranked.sort(key=lambda pair: -pair[1].score)
    return ranked


@dataclass(frozen=True, slots=True)
class Matches(Generic[_Item]):
    """The matches of index and database for a search.

    Attributes:
        hits: Hits of the index.
        by_id: The items of the hits in the database, by id.
        by_words: Matches of the database by words with scores, best first.
    """

    hits: Sequence[Hit]
    by_id: Mapping[str, _Item]
    by_words: Sequence[tuple[_Item, float]]


class _RequestGate:
    """Delays the request to the index until the snapshot of the database is taken."""

    def __init__(self) -> None:
        self._reached = False
        self._opened = asyncio.Event()
        self._passed = asyncio.Event()

    async def wait(self) -> None:
        """Waits until the gate opens; a `StartGate`."""
        self._reached = True
        try:
            await self._opened.wait()
        finally:
            # Callbacks run in their order: by then the index has started its call, without waiting
            # in between, and the task in which grpc.aio sends the request has begun.
            asyncio.get_running_loop().call_soon(self._passed.set)

    async def open(self) -> None:
        """Opens the gate; if a request waits there, also waits until the index has started it."""
        self._opened.set()
        if self._reached:
            await self._passed.wait()


async def search_both(
    open_snapshot: Callable[[], AbstractAsyncContextManager[DatabaseSnapshot[_Item]]],
    index: Callable[[StartGate], Awaitable[list[Hit]]],
    by_words: Callable[[], Awaitable[Sequence[tuple[_Item, float]]]],
) -> Matches[_Item]:
    """Searches index and database, without missing texts that are being indexed meanwhile.

    The snapshot of the database is taken before the index is searched. In the reverse order, a text
    that is indexed in between would be found by neither. Then both search at the same time. The
    request to the index, mostly the vector of the query, is prepared while the snapshot is taken.
    The items of the hits are read in the same snapshot, unless the index takes so long that the
    connection should be released.

    Args:
        open_snapshot: Opens a snapshot; it is taken when the context is entered.
        index: Searches the index once its gate opens.
        by_words: Searches the whole database by words, if the index cannot be searched.
    """
    gate = _RequestGate()

    async def search_index() -> list[Hit] | None:
        return await hits_or_none(index(gate.wait))

    search = asyncio.create_task(search_index())
    items: dict[str, _Item] = {}
    try:
        async with open_snapshot() as snapshot:
            # The index takes longer, so a prepared request is sent before a statement is built.
            await gate.open()
            waiting = await snapshot.waiting()
            await asyncio.wait({search}, timeout=_HELD_SECONDS)
            if search.done():
                items.update(await _items_of(snapshot, search.result()))
        hits = await search
    finally:
        search.cancel()
        await asyncio.gather(search, return_exceptions=True)
    if hits is None:
        return Matches((), {}, await by_words())
    if missing := [hit for hit in hits if hit.document_id not in items]:
        # Not read yet, or stored after the snapshot.
        async with open_snapshot() as snapshot:
            items.update(await _items_of(snapshot, missing))
    return Matches(hits, items, waiting)


async def _items_of(
    snapshot: DatabaseSnapshot[_Item], hits: Sequence[Hit] | None
) -> Mapping[str, _Item]:
    # Queried even without hits, so that the cost of a search does not depend on its results.
    return {} if hits is None else await snapshot.by_ids([hit.document_id for hit in hits])


async def hits_or_none(search: Awaitable[list[Hit]]) -> list[Hit] | None:
    """Returns the hits of the index; None if the index cannot be searched."""
    try:
        return await search
    except (UnavailableError, ResourceExhaustedError, FailedPreconditionError) as error:
        # The embedding model can limit the rate or refuse its key.
        _log.warning("searching by words only", reason=error.reason.value)
        return None


def explain_result(place: ResultRank, reasons: Sequence[str]) -> str:
    """Describes in words how the rank of a result came about.

    Args:
        place: The rank.
        reasons: The preferences that it meets, if any.
    """
    arms = []
    if place.vector_rank is not None:
        arms.append(f"by meaning at rank {place.vector_rank}")
    if place.fts_rank is not None:
        arms.append(f"by its words at rank {place.fts_rank}")
    parts = [f"Found {' and '.join(arms)}, with a score of {place.score:.4f}."]
    if place.bonus:
        parts.append(f"{place.bonus:.2f} of it because {' and '.join(reasons)}.")
    if place.neighbours >= _SHOWN:
        parts.append(f"{place.neighbours:.2f} of it because texts beside it match.")
    if place.session >= _SHOWN:
        parts.append(f"{place.session:.2f} of it because its session has words of the query.")
    if place.newest >= _SHOWN:
        parts.append(
            f"{place.newest:.2f} of it because the query asks for the present, and it is newer than"
            " other good matches."
        )
    if place.earlier_rank:
        parts.append(f"By its score it was at rank {place.earlier_rank} before the learned order.")
    if place.learned is not None:
        parts.append(_explain_order(place.learned))
    if place.waiting:
        parts.append(
            "Only its words were searched: the index does not have it, cannot read the query, or "
            "cannot be reached."
        )
    return " ".join(parts)


def explain_outdated(outdated: Outdated | None) -> str:
    """Describes in words what seems to replace a result; empty if nothing does."""
    if outdated is None:
        return ""
    return (
        f"Possibly outdated: it states {outdated.statement!r}, and the newer"
        f" {outdated.newer_id} states {outdated.newer_statement!r}."
    )


def _explain_order(learned: MatchFeatures) -> str:
    counted = [
        f"{value:+.2f} for {_FEATURES[name]}"
        for name, value in learned._asdict().items()
        if name in _FEATURES and abs(value) >= _SHOWN
    ]
    if not counted:
        return "The learned order has nothing to add to its score."
    return f"The learned order adds {', '.join(counted)}."


def _waiting(share: float, rank: int, bonus: float) -> ResultRank:
    return ResultRank("fts", _PENDING_WEIGHT * share + bonus, None, rank, bonus, waiting=True)


def _place(hit: Hit, words: tuple[int, float] | None = None) -> ResultRank:
    """Returns the rank of a hit; ``words`` are the rank and score by PostgreSQL, if they count."""
    fts_rank, added = (hit.fts_rank, 0.0) if words is None else words
    mode = "fts"
    if hit.vector_rank is not None:
        mode = "vector" if fts_rank is None else "hybrid"
    weak = hit.weak and words is None
    return ResultRank(
        mode,
        hit.score + added,
        hit.vector_rank,
        fts_rank,
        hit.bonus,
        hit.surroundings.neighbours,
        hit.surroundings.session,
        hit.newest,
        hit.earlier_rank,
        hit.learned,
        weak=weak,
    )
