"""Search over passages with a reranker whose scores are known."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from archival_stores import NOW, Finder, ask, texts
from cross_encoders import BREAKS, export, export_breaking, export_slow, overlap, reranking_with
from strata.archival.search.passage_search import PassageSearch
from strata.shared.clock import ManualClock
from strata.shared.ids import new_id
from strata.shared.metric_names import RERANKS
from strata.shared.search.reranking import RerankingOutcome
from strata.shared.telemetry import Telemetry

QUESTION = "What was the name of the boat?"
SAID = (
    "The boat is called Nora.",
    "Nora is the name of the boat.",
    # Little of what is asked for, and most of its words.
    "It is the end of the day, the end of the week, the end of the month.",
    "We sail on Sundays.",
    "Taxes are due in May.",
)

# The order of texts is compared, also of those that have little to do with the question.
pytestmark = pytest.mark.parametrize("finder", [0.0], indirect=True)


@asynccontextmanager
async def reranked(finder: Finder, folder: Path, **options: Any) -> AsyncIterator[Finder]:
    async with reranking_with(folder, **options) as reranking:
        stores, index = finder.stores, finder.index
        search = PassageSearch(stores.passages, index, ManualClock(NOW), reranking)
        yield replace(finder, search=search)


@pytest.fixture
async def agent(finder: Finder) -> str:
    name = new_id("agent")
    for number, words in enumerate(SAID):
        tags = ("odd",) if number % 2 else ("even",)
        await finder.stores.insert(name, words, tags=tags)
    await finder.index_all()
    return name


async def test_the_best_candidates_are_in_the_order_of_the_reranker(
    finder: Finder, agent: str, tmp_path: Path
) -> None:
    fused = texts((await ask(finder, agent, QUESTION)).hits)
    assert sorted(fused) == sorted(SAID)
    expected = sorted(fused, key=lambda text: -overlap(QUESTION, text))
    assert expected != fused
    async with reranked(finder, export(tmp_path, [QUESTION, *SAID])) as reranking:
        answer = await ask(reranking, agent, QUESTION, explain=True)
        assert texts(answer.hits) == expected
        assert [hit.rerank_score for hit in answer.hits] == [
            overlap(QUESTION, text) for text in expected
        ]
        assert [hit.rerank_rank for hit in answer.hits] == [1, 2, 3, 4, 5]
        assert answer.reranking is not None
        assert (answer.reranking.candidates, answer.reranking.outcome) == (5, RerankingOutcome.DONE)
        # What the fusion found stays what it is.
        before = {hit.item.id: hit for hit in (await ask(finder, agent, QUESTION)).hits}
        for hit in answer.hits:
            was = before[hit.item.id]
            assert (hit.mode, hit.vector_rank, hit.fts_rank, hit.score) == (
                was.mode,
                was.vector_rank,
                was.fts_rank,
                was.score,
            )
        for place, hit in enumerate(answer.hits, start=1):
            was_at = fused.index(hit.item.text) + 1
            moved = f"it moved from place {was_at} to place {place}."
            stays = f"it stays at place {place}."
            assert hit.why.endswith(stays if was_at == place else moved)
            assert hit.why.startswith("Found by ")
        again = await ask(reranking, agent, QUESTION, explain=True)
        assert again == answer


async def test_results_beyond_the_limit_are_among_the_candidates(
    finder: Finder, agent: str, tmp_path: Path
) -> None:
    fused = texts((await ask(finder, agent, QUESTION)).hits)
    best = max(fused, key=lambda text: overlap(QUESTION, text))
    assert fused[0] != best
    async with reranked(finder, export(tmp_path / "all", [QUESTION, *SAID])) as reranking:
        assert texts((await ask(reranking, agent, QUESTION, top_k=1)).hits) == [best]
    async with reranked(
        finder, export(tmp_path / "two", [QUESTION, *SAID]), candidates=2
    ) as reranking:
        answer = await ask(reranking, agent, QUESTION)
        assert sorted(texts(answer.hits)[:2]) == sorted(fused[:2])
        assert texts(answer.hits)[2:] == fused[2:]
        assert [hit.rerank_rank for hit in answer.hits] == [1, 2, None, None, None]
        assert answer.hits[2].rerank_score is None


async def test_filters_hold_before_the_candidates_are_chosen(
    finder: Finder, agent: str, tmp_path: Path
) -> None:
    async with reranked(finder, export(tmp_path, [QUESTION, *SAID]), candidates=1) as reranking:
        answer = await ask(reranking, agent, QUESTION, tags=("odd",), explain=True, top_k=1)
    assert texts(answer.hits) == ["Nora is the name of the boat."]
    assert answer.hits[0].rerank_rank == 1
    # The exclusions are those of the fused order, with and without a reranker.
    assert (
        answer.exclusions
        == (await ask(finder, agent, QUESTION, tags=("odd",), explain=True, top_k=1)).exclusions
    )


async def test_unindexed_items_are_reranked_too(finder: Finder, tmp_path: Path) -> None:
    name = new_id("agent")
    # Until it is indexed full text finds it: each text has a word that is not a stop word.
    waiting = (*SAID[:2], "We sail the boat on Sundays.")
    await finder.stores.insert(name, *waiting)
    async with reranked(finder, export(tmp_path, [QUESTION, *SAID])) as reranking:
        answer = await ask(reranking, name, QUESTION)
    scores = [hit.rerank_score for hit in answer.hits]
    assert scores == sorted((overlap(QUESTION, text) for text in waiting), reverse=True)
    assert {hit.mode for hit in answer.hits} == {"fts"}


async def test_time_preference_counts_with_reranking(finder: Finder, tmp_path: Path) -> None:
    name = new_id("agent")
    # The one with two friends has a little more of any such question.
    for days, friend in ((40, "Ada and with Eve"), (1, "Ben")):
        created = NOW - timedelta(days=days)
        await finder.stores.insert(name, f"Went climbing with {friend}.", created=created)
    await finder.index_all()
    async with reranked(finder, export(tmp_path, "went climbing with")) as reranking:
        for words, friend in (
            ("yesterday", "Ben"),
            ("in October", "Ada and with Eve"),
            ("then", "Ada and with Eve"),
        ):
            asked = f"Who was I climbing with {words}?"
            answer = await ask(reranking, name, asked, explain=True)
            assert texts(answer.hits)[0] == f"Went climbing with {friend}."
            assert {hit.rerank_score for hit in answer.hits} == {2.0, 3.0}
            # The rank is that of the score alone.
            assert answer.hits[0].rerank_rank == (2 if friend == "Ben" else 1)
            added = "to which the same 0.20 is added" in answer.hits[0].why
            assert added == (words != "then")


async def test_fused_order_stays_if_the_reranker_is_slow_or_fails(
    finder: Finder, agent: str, tmp_path: Path
) -> None:
    words = [QUESTION, *SAID]
    asked = f"{QUESTION} {BREAKS}"
    fused = await ask(finder, agent, asked)
    for name, folder, budget, outcome in (
        ("slow", export_slow(tmp_path / "slow", words), 0.001, RerankingOutcome.OUT_OF_TIME),
        ("broken", export_breaking(tmp_path / "broken", words), 60.0, RerankingOutcome.FAILED),
        ("mad", export_breaking(tmp_path / "mad", words, nan=True), 60.0, RerankingOutcome.FAILED),
    ):
        telemetry = Telemetry()
        async with reranked(finder, folder, budget=budget, telemetry=telemetry) as reranking:
            answer = await ask(reranking, agent, asked)
            assert answer.hits == fused.hits
            assert answer.reranking is not None
            assert (answer.reranking.outcome, answer.reranking.candidates) == (outcome, 5)
            assert answer.reranking.model.startswith(f"{name}@")
            assert telemetry.total(RERANKS, outcome=outcome.value) == 1
            if outcome is RerankingOutcome.FAILED:  # and the next question is answered as ever
                well = await ask(reranking, agent, QUESTION)
                assert well.reranking is not None
                assert well.reranking.outcome is RerankingOutcome.DONE


async def test_reranker_is_not_called_without_candidates(finder: Finder, tmp_path: Path) -> None:
    agent = new_id("agent")
    await finder.stores.archives.prepare(agent)
    async with reranked(finder, export(tmp_path, SAID)) as reranking:
        for query in ("boat", "  "):
            answer = await ask(reranking, agent, query)
            assert (answer.hits, answer.reranking) == ((), None)
