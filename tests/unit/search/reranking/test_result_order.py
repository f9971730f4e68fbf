"""The order of results with a reranker."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loop_time import put_forward
from strata.shared import context
from strata.shared.context import RequestContext
from strata.shared.metric_names import RERANK_SECONDS, RERANKS
from strata.shared.search.reranking import Reranker, RerankingOutcome, RerankingReport
from strata.shared.search.reranking.result_order import (
    Ranked,
    Reranking,
    explain_rank,
)
from strata.shared.search.result_merge import ResultRank
from strata.shared.telemetry import Histogram, Telemetry

SCORES = st.floats(allow_nan=False, allow_infinity=False)
# Scores like those of models, among them equal ones.
LIKELY = st.one_of(SCORES, st.integers(min_value=-12, max_value=12).map(float))


class Fixed:
    """A reranker for texts that are numbers; the number is the index of the score."""

    model_id = "fixed"

    def __init__(self, scores: Sequence[float], pause: float = 0) -> None:
        self.scores = scores
        self.pause = pause
        self.read: list[str] = []

    async def score(self, query: str, texts: Sequence[str]) -> list[float]:
        self.read += texts
        await asyncio.sleep(self.pause)
        return [self.scores[int(text)] for text in texts if int(text) < len(self.scores)]


def results(count: int, bonuses: Sequence[float] = ()) -> list[tuple[int, ResultRank]]:
    padded = [*bonuses, *[0.0] * count]
    return [(n, ResultRank("hybrid", 2 - n / 100, n + 1, None, padded[n])) for n in range(count)]


def reranking(model: Reranker, candidates: int = 30, budget: float = 60) -> Reranking:
    return Reranking(model, candidates=candidates, budget=budget)


async def ordered(
    model: Reranker, items: list[tuple[int, ResultRank]], candidates: int
) -> list[int]:
    ranked, _ = await reranking(model, candidates).order("?", items, str)
    return [result.item for result in ranked]


@given(st.lists(LIKELY, max_size=12), st.integers(min_value=1, max_value=15), st.data())
async def test_only_the_candidates_are_reordered(
    scores: list[float], candidates: int, data: st.DataObject
) -> None:
    bonuses = data.draw(st.lists(st.sampled_from([0.0, 0.15, 0.2]), max_size=len(scores)))
    items = results(len(scores), bonuses)
    model = Fixed(scores)
    ranked, report = await reranking(model, candidates).order("?", items, str)
    assert sorted(result.item for result in ranked) == list(range(len(scores)))
    assert [result.item for result in ranked][candidates:] == list(range(len(scores)))[candidates:]
    assert model.read == [str(n) for n in range(min(candidates, len(scores)))]
    for result in ranked:
        assert (result.item, result.place) == items[result.fused_rank - 1]
        assert result.score == (scores[result.item] if result.fused_rank <= candidates else None)
    ranks = sorted(result.rank for result in ranked if result.rank is not None)
    assert ranks == list(range(1, min(candidates, len(scores)) + 1))
    if scores:
        assert report == RerankingReport(
            "fixed", min(candidates, len(scores)), RerankingOutcome.DONE
        )
    else:
        assert report is None


@given(st.lists(LIKELY, min_size=1, max_size=12))
async def test_candidates_are_ordered_by_score_and_ties_keep_their_order(
    scores: list[float],
) -> None:
    expected = sorted(range(len(scores)), key=lambda n: (-scores[n], n))
    ranked, _ = await reranking(Fixed(scores)).order("?", results(len(scores)), str)
    assert [result.item for result in ranked] == expected
    assert [result.rank for result in ranked] == list(range(1, len(scores) + 1))


@given(st.lists(LIKELY, min_size=1, max_size=12))
async def test_the_same_scores_produce_the_same_order(scores: list[float]) -> None:
    items = results(len(scores))
    first = await ordered(Fixed(scores), items, 30)
    assert await ordered(Fixed(scores), items, 30) == first


async def test_preferences_decide_close_scores_only() -> None:
    # 0.5 + 0.2 is more than the 0.67 of log-odds 0.7, and less than the 0.88 of 2.
    for score, first in ((0.7, 1), (2.0, 0)):
        ranked, report = await reranking(Fixed([score, 0.0])).order(
            "?", results(2, [0.0, 0.2]), str
        )
        assert ranked[0].item == first
        # The rank is the rank by the reranker's own score.
        assert [result.rank for result in sorted(ranked, key=lambda entry: entry.item)] == [1, 2]
    assert "the same 0.20 is added: it stays at place 2" in explain_rank(ranked[1], 2, report)


@pytest.mark.parametrize("scores", [[1.0], [1.0, 2.0, math.nan], [1.0, 2.0, math.inf], [0.0] * 2])
async def test_missing_and_invalid_scores_keep_the_order(scores: list[float]) -> None:
    telemetry = Telemetry()
    made = Reranking(Fixed(scores), candidates=30, budget=60, telemetry=telemetry)
    ranked, report = await made.order("?", results(3), str)
    assert ([result.item for result in ranked], {result.rank for result in ranked}) == (
        [0, 1, 2],
        {None},
    )
    assert report == RerankingReport("fixed", 3, RerankingOutcome.FAILED)
    assert telemetry.total(RERANKS, outcome="failed") == 1


async def test_a_timeout_of_the_model_itself_is_a_failure() -> None:
    class Refusing(Fixed):
        async def score(self, query: str, texts: Sequence[str]) -> list[float]:
            raise TimeoutError

    _, report = await reranking(Refusing([])).order("?", results(1), str)
    assert report is not None
    assert report.outcome is RerankingOutcome.FAILED


async def test_after_a_timeout_the_fused_order_is_kept() -> None:
    telemetry = Telemetry()
    made = Reranking(Fixed([1, 2, 3], 60), candidates=2, budget=0.01, telemetry=telemetry)
    ranked, report = await made.order("?", results(3), str)
    assert [(result.item, result.score) for result in ranked] == [(0, None), (1, None), (2, None)]
    assert report == RerankingReport("fixed", 2, RerankingOutcome.OUT_OF_TIME)
    assert telemetry.total(RERANKS, outcome="out_of_time") == 1
    [seconds] = [sample.metric for sample in telemetry.samples() if sample.name == RERANK_SECONDS]
    assert isinstance(seconds, Histogram)
    assert seconds.count == 1
    assert explain_rank(ranked[0], 1, report) == ""


async def test_a_short_deadline_skips_the_reranker_in_time() -> None:
    class Slow(Fixed):
        async def score(self, query: str, texts: Sequence[str]) -> list[float]:
            put_forward(25)
            return await super().score(query, texts)

    loop = asyncio.get_running_loop()
    deadline = loop.time() + 40
    with context.use(RequestContext(deadline=deadline)):
        _, report = await reranking(Slow([1], 60)).order("?", results(1), str)
    assert report is not None
    assert report.outcome is RerankingOutcome.OUT_OF_TIME
    # Time is left for the rest of the search.
    assert loop.time() < deadline


async def test_a_cancelled_search_is_cancelled() -> None:
    search = asyncio.create_task(reranking(Fixed([1], 60)).order("?", results(1), str))
    await asyncio.sleep(0.05)
    search.cancel()
    with pytest.raises(asyncio.CancelledError):
        await search


async def test_without_a_reranker_there_is_no_report() -> None:
    off = Reranking.off()
    ranked, report = await off.order("?", results(2), str)
    assert ([result.item for result in ranked], report) == ([0, 1], None)
    assert (off.depth(5), reranking(Fixed([]), 30).depth(5)) == (5, 30)
    assert reranking(Fixed([]), 30).depth(100) == 100
    assert explain_rank(Ranked(0, results(1)[0][1], 1, 1, 2.0), 1, None) == ""


def test_the_change_of_rank_by_the_reranker_is_explained() -> None:
    report = RerankingReport("fixed", 7, RerankingOutcome.DONE)
    moved = Ranked(0, results(1)[0][1], 4, 1, 3.25)
    assert explain_rank(moved, 1, report) == (
        "The reranker puts it at rank 1 of 7 with a score of 3.2500:"
        " it moved from place 4 to place 1."
    )
    assert explain_rank(moved, 4, report).endswith("it stays at place 4.")


def test_the_test_double_implements_the_reranker_interface() -> None:
    assert isinstance(Fixed([]), Reranker)
