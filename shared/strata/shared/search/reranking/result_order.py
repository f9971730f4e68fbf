"""Puts search results into the order of a reranker, if one is configured."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from strata.shared import context
from strata.shared.logs import get_logger
from strata.shared.metric_names import RERANK_SECONDS, RERANKS
from strata.shared.search.reranking.base import Reranker, RerankingOutcome, RerankingReport
from strata.shared.search.result_merge import ResultRank
from strata.shared.telemetry import Telemetry

_Item = TypeVar("_Item")
_log = get_logger(__name__)

# Share of the caller's remaining time; the rest is for the other steps of the search.
_SHARE_OF_DEADLINE = 0.5


@dataclass(frozen=True, slots=True)
class Ranked(Generic[_Item]):
    """A result with its ranks before and after reranking.

    Attributes:
        item: The result.
        place: Its rank in the fused order, with the reasons.
        fused_rank: Its position in the fused order, from 1.
        rank: Its rank by the reranker's score, from 1; None if it was not scored.
        score: The reranker's score; None if it was not scored.
    """

    item: _Item
    place: ResultRank
    fused_rank: int
    rank: int | None = None
    score: float | None = None


class Reranking:
    """Reorders the best candidates with a reranker, if there is one and it answers in time.

    Args:
        reranker: The model; None leaves the order unchanged.
        candidates: How many of the best results it scores.
        budget: Seconds that a search waits for it.
        telemetry: Registry of the metrics; None for none.
    """

    def __init__(
        self,
        reranker: Reranker | None,
        *,
        candidates: int,
        budget: float,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._reranker = reranker
        self._candidates = candidates
        self._budget = budget
        registry = telemetry or Telemetry()
        self._outcomes = {
            outcome: registry.counter(RERANKS, outcome=outcome.value)
            for outcome in RerankingOutcome
        }
        self._seconds = registry.histogram(RERANK_SECONDS)

    @classmethod
    def off(cls) -> Reranking:
        """Returns a reranking that leaves every order unchanged."""
        return cls(None, candidates=0, budget=0)

    def depth(self, limit: int) -> int:
        """Returns how many results a search must fetch to return the best `limit`."""
        return limit if self._reranker is None else max(limit, self._candidates)

    async def order(
        self,
        query: str,
        results: Sequence[tuple[_Item, ResultRank]],
        text_of: Callable[[_Item], str],
    ) -> tuple[list[Ranked[_Item]], RerankingReport | None]:
        """Returns the same results, the first candidates in the order of the reranker.

        Failures of the reranker are logged, not raised: the search keeps its fused order.

        Args:
            query: The query.
            results: The results in fused order.
            text_of: Returns the text of a result that the reranker reads; called in a thread.

        Returns:
            The results, and a report; None if nothing was reranked.
        """
        fused = [Ranked(item, place, rank) for rank, (item, place) in enumerate(results, start=1)]
        candidates = fused[: self._candidates]
        if self._reranker is None or not candidates:
            return fused, None
        started = asyncio.get_running_loop().time()
        outcome, scores = await self._ask(self._reranker, query, candidates, text_of)
        self._seconds.observe(asyncio.get_running_loop().time() - started)
        self._outcomes[outcome].inc()
        report = RerankingReport(self._reranker.model_id, len(candidates), outcome)
        return [*_sorted(candidates, scores), *fused[len(candidates) :]], report

    async def _ask(
        self,
        reranker: Reranker,
        query: str,
        candidates: Sequence[Ranked[_Item]],
        text_of: Callable[[_Item], str],
    ) -> tuple[RerankingOutcome, Sequence[float]]:
        try:
            async with asyncio.timeout(self._time()) as limit:
                texts = await asyncio.to_thread(
                    lambda: [text_of(candidate.item) for candidate in candidates]
                )
                return RerankingOutcome.DONE, _checked(
                    await reranker.score(query, texts), len(texts)
                )
        except Exception as error:  # noqa: BLE001 - a search must not fail because of its order
            if isinstance(error, TimeoutError) and limit.expired():
                _log.info("the reranker ran out of time", model=reranker.model_id)
                return RerankingOutcome.OUT_OF_TIME, ()
            _log.warning(
                "the reranker failed",
                model=reranker.model_id,
                error=type(error).__name__,
                detail=str(error)[:300],
            )
            return RerankingOutcome.FAILED, ()

    def _time(self) -> float:
        left = context.current().remaining()
        return self._budget if left is None else min(self._budget, left * _SHARE_OF_DEADLINE)


def explain_rank(ranked: Ranked[_Item], place: int, report: RerankingReport | None) -> str:
    """Describes the effect of the reranker on a result; empty if it was not scored.

    Args:
        ranked: The result.
        place: Its final position, from 1.
        report: The report of the reranking.
    """
    if report is None or ranked.score is None:
        return ""
    moved = f"moved from place {ranked.fused_rank} to place {place}"
    if place == ranked.fused_rank:
        moved = f"stays at place {place}"
    explanation = f"The reranker puts it at rank {ranked.rank} of {report.candidates}"
    preferred = ranked.place.preferred
    too = f", to which the same {preferred:.2f} is added" if preferred else ""
    return f"{explanation} with a score of {ranked.score:.4f}{too}: it {moved}."


def _checked(scores: Sequence[float], count: int) -> Sequence[float]:
    if len(scores) != count or not all(map(math.isfinite, scores)):
        raise ValueError("a score is missing or is not a finite number")
    return scores


def _sorted(candidates: Sequence[Ranked[_Item]], scores: Sequence[float]) -> list[Ranked[_Item]]:
    if not scores:
        return list(candidates)
    scored = [
        replace(candidate, score=float(s)) for candidate, s in zip(candidates, scores, strict=True)
    ]
    # Stable: of equal ones, the fused order is kept.
    scored.sort(key=_score, reverse=True)
    scored = [replace(candidate, rank=rank) for rank, candidate in enumerate(scored, start=1)]
    # The bonuses for preferences (a time, an author) and for being new are added as in the fusion,
    # because the reranker does not know them. The logistic function maps large scores to nearly
    # the same likelihood.
    return sorted(
        scored, key=lambda candidate: -(_likelihood(_score(candidate)) + candidate.place.preferred)
    )


def _score(ranked: Ranked[_Item]) -> float:
    assert ranked.score is not None
    return ranked.score


def _likelihood(score: float) -> float:
    """Maps log-odds to 0..1, the scale of the fused scores (logistic function)."""
    if score >= 0:
        return 1 / (1 + math.exp(-score))
    return math.exp(score) / (1 + math.exp(score)) if score > -700 else 0.0
