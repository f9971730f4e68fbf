"""The check of a rebuilt index: its queries, its decision, and its sample."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.shared.search.embedding.models import EmbeddingModels, ModelInfo
from strata.shared.search.indexing.generations import Serving
from strata.shared.search.indexing.text_index import IndexEntry
from strata.shared.search.reindexing import CopyProgress, FoundCounts, Phase
from strata.shared.search.reindexing.check import Comparison, question, refusal_reason
from strata.shared.search.reindexing.reindexer import Batch, _after
from strata.shared.search.reindexing.routes import StoredRoutes
from strata.shared.search.vectors import Collection


@given(st.text(min_size=2))
def test_the_query_for_a_text_is_a_part_of_it(text: str) -> None:
    asked = question(text)
    assert " ".join(asked.split()) in " ".join(text.split())
    assert len(asked) < len(text)


@given(st.integers(0, 100), st.integers(0, 100), st.integers(0, 100), st.floats(0, 1))
def test_a_new_index_is_refused_below_the_required_share(
    asked: int, old: int, new: int, least: float
) -> None:
    why = refusal_reason(Comparison(FoundCounts(asked, old, new)), least)
    assert bool(why) == (new < least * old or (asked > 0 and new == 0))
    assert not why or f"found {new}, the serving one {old}" in why


@pytest.mark.parametrize(
    ("lost", "gained", "refused"),
    [(1, 0, True), (5, 4, False), (9, 4, False), (12, 4, True), (40, 20, True), (5, 5, False)],
)
def test_losses_that_are_not_significant_do_not_refuse_a_new_index(
    lost: int, gained: int, refused: bool
) -> None:
    both = 3
    comparison = Comparison(FoundCounts(64, both + lost, both + gained), gained)
    assert comparison.lost == lost
    assert bool(refusal_reason(comparison, 0.95)) == refused


@given(st.integers(0, 64), st.integers(1, 64), st.integers(0, 64))
def test_more_losses_never_make_a_refused_index_acceptable(
    both: int, lost: int, gained: int
) -> None:
    def refused(losses: int) -> bool:
        return bool(
            refusal_reason(Comparison(FoundCounts(192, both + losses, both + gained), gained), 0.95)
        )

    assert not refused(lost - 1) or refused(lost)


def test_an_empty_collection_passes() -> None:
    assert not refusal_reason(Comparison(FoundCounts()), 1.0)


def test_the_serving_generation_depends_on_the_phase() -> None:
    assert [phase for phase in Phase if phase.new_serves] == [Phase.SWITCHED, Phase.FINISHED]
    assert [phase.value for phase in Phase if phase.is_active] == [
        "building",
        "checking",
        "switched",
    ]


@pytest.mark.parametrize("size", [1, 7])
def test_every_text_has_the_same_chance_to_be_sampled(size: int) -> None:
    drawn: Counter[str] = Counter()
    rounds = 2_000
    for _ in range(rounds):
        progress = CopyProgress()
        for start in range(0, 21, size):
            entries = [IndexEntry(str(number), "", {}) for number in range(start, start + size)]
            progress = _after(progress, Batch("p", entries, {}, (str(start),), size), 5)
        assert progress.done == 21
        assert len(set(progress.sample)) == 5
        drawn.update(name for _, name in progress.sample)
    expected = rounds * 5 / 21
    # Six standard deviations: a fair draw fails once in a billion.
    assert all(abs(count - expected) < 6 * expected**0.5 for count in drawn.values())
    assert len(drawn) == 21


class SlowLedger:
    """A ledger that answers after one iteration of the event loop."""

    def __init__(self) -> None:
        self.asked = 0

    async def serving(self, slot: str) -> Serving:
        self.asked += 1
        await asyncio.sleep(0)
        return Serving(slot, f"generation-{self.asked}", "model", 2)


async def test_concurrent_searches_share_one_query_for_the_route(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("strata.shared.search.reindexing.routes._REMEMBERED_S", 600.0)
    ledger = SlowLedger()
    info = ModelInfo("model", 2)
    models = EmbeddingModels("model", [(info, None)])  # type: ignore[list-item]
    routes = StoredRoutes(ledger, Collection("texts", {}), models)  # type: ignore[arg-type]
    served = await asyncio.gather(*(routes.serving() for _ in range(3)))
    assert [generation.generation for generation in served] == ["generation-1"] * 3
    assert (await routes.serving(fresh=True)).generation == "generation-2"
    assert (await routes.serving()).generation == "generation-2"
    assert ledger.asked == 2
