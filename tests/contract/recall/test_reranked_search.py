"""Search over messages with a reranker whose scores are known."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cross_encoders import BREAKS, export, export_breaking, export_slow, overlap, reranking_with
from message_finder import Finder, finder_on
from strata.recall.domain.messages import Message
from strata.recall.domain.search import Mode
from strata.recall.domain.search_text import searchable_text
from strata.recall.search.message_search import MessageSearch
from strata.shared.clock import SystemClock
from strata.shared.db import Database
from strata.shared.messages import MessageRole
from strata.shared.metric_names import RERANKS
from strata.shared.search.embedding import Embedder
from strata.shared.search.reranking import RerankingOutcome
from strata.shared.telemetry import Telemetry
from strata.standalone.vectors import EmbeddedVectors

QUESTION = "What was the name of the boat?"
SAID = (
    "The boat is called Nora.",
    "Nora is the name of the boat.",
    # It has most words of the question, and little of its meaning.
    "It is the end of the day, the end of the week, the end of the month.",
    "We sail on Sundays.",
    "Taxes are due in May.",
)


@pytest.fixture
async def finder(
    vectors: EmbeddedVectors, embedder: Embedder, database: Database, worker: Database
) -> AsyncIterator[Finder]:
    # The order of all texts is compared, also of those that have little to do with the question.
    made = await finder_on(vectors, embedder, database, worker, floor=0.0)
    yield made
    await made.vectors.close()


@asynccontextmanager
async def reranked(finder: Finder, folder: Path, **options: Any) -> AsyncIterator[Finder]:
    async with reranking_with(folder, **options) as reranking:
        search = MessageSearch(finder.search._store, finder.index, SystemClock(), reranking)
        yield replace(finder, search=search)


@pytest.fixture
async def stored_messages(finder: Finder) -> list[Message]:
    messages = [await finder.writer.say(text) for text in SAID]
    await finder.index_all()
    return messages


async def search_texts(finder: Finder, text: str, **fields: Any) -> list[str]:
    answer = await finder.ask(text, **fields)
    return [searchable_text(hit.item) for hit in answer.hits]


async def test_the_best_candidates_are_in_the_order_of_the_reranker(
    finder: Finder, stored_messages: list[Message], tmp_path: Path
) -> None:
    fused = await search_texts(finder, QUESTION)
    assert sorted(fused) == sorted(SAID)
    expected = sorted(fused, key=lambda text: -overlap(QUESTION, text))
    assert expected != fused
    async with reranked(finder, export(tmp_path, [QUESTION, *SAID])) as reranking:
        for mode in (Mode.HYBRID, Mode.SEMANTIC):
            assert (await search_texts(reranking, QUESTION, mode=mode))[0] == expected[0]
        answer = await reranking.ask(QUESTION, explain=True)
        assert [searchable_text(hit.item) for hit in answer.hits] == expected
        assert [hit.rerank_score for hit in answer.hits] == [
            overlap(QUESTION, text) for text in expected
        ]
        assert [hit.rerank_rank for hit in answer.hits] == [1, 2, 3, 4, 5]
        assert answer.reranking is not None
        assert (answer.reranking.candidates, answer.reranking.outcome) == (5, RerankingOutcome.DONE)
        for place, hit in enumerate(answer.hits, start=1):
            was_at = fused.index(searchable_text(hit.item)) + 1
            moved = f"it moved from place {was_at} to place {place}."
            stays = f"it stays at place {place}."
            assert hit.why.endswith(stays if was_at == place else moved)
        assert await reranking.ask(QUESTION, explain=True) == answer


async def test_searches_by_words_only_are_not_reranked(
    finder: Finder, stored_messages: list[Message], tmp_path: Path
) -> None:
    plain = await finder.ask(QUESTION, mode=Mode.FULL_TEXT)
    async with reranked(finder, export(tmp_path, [QUESTION, *SAID])) as reranking:
        assert await reranking.ask(QUESTION, mode=Mode.FULL_TEXT) == plain
    assert plain.reranking is None


async def test_results_beyond_the_limit_are_among_the_candidates(
    finder: Finder, stored_messages: list[Message], tmp_path: Path
) -> None:
    fused = await search_texts(finder, QUESTION)
    best = max(fused, key=lambda text: overlap(QUESTION, text))
    assert fused[0] != best
    async with reranked(finder, export(tmp_path / "all", [QUESTION, *SAID])) as reranking:
        assert await search_texts(reranking, QUESTION, limit=1) == [best]
    folder = export(tmp_path / "two", [QUESTION, *SAID])
    async with reranked(finder, folder, candidates=2) as reranking:
        answer = await reranking.ask(QUESTION)
        texts = [searchable_text(hit.item) for hit in answer.hits]
        assert sorted(texts[:2]) == sorted(fused[:2])
        assert texts[2:] == fused[2:]
        assert [hit.rerank_rank for hit in answer.hits] == [1, 2, None, None, None]


async def test_conditions_phrases_and_neighbours_work_as_without_a_reranker(
    finder: Finder, stored_messages: list[Message], tmp_path: Path
) -> None:
    reply = await finder.writer.say("The name of the boat is Nora.", MessageRole.ASSISTANT)
    await finder.index_all()
    async with reranked(finder, export(tmp_path, [QUESTION, *SAID])) as reranking:
        only: dict[str, Any] = {"roles": (MessageRole.ASSISTANT,), "explain": True}
        answer = await reranking.ask(QUESTION, **only)
        assert [hit.item.id for hit in answer.hits] == [reply.id]
        assert answer.exclusions == (await finder.ask(QUESTION, **only)).exclusions != ()
        assert await reranking.ids('the "called nora"') == [stored_messages[0].id]
        later = await reranking.ids(
            QUESTION, start_time=stored_messages[3].create_time, roles=(MessageRole.USER,)
        )
        assert set(later) == {stored_messages[3].id, stored_messages[4].id}
        around = {
            hit.item.id: [neighbour.id for neighbour in hit.neighbours]
            for hit in (await reranking.ask(QUESTION, neighbours=1)).hits
        }
        assert around[stored_messages[1].id] == [stored_messages[0].id, stored_messages[2].id]


async def test_role_preference_counts_with_reranking(finder: Finder, tmp_path: Path) -> None:
    mine = await finder.writer.say("The best pizza is at Da Remo.")
    # One word more of the question, so that the reranker alone would rank it first.
    yours = await finder.writer.say("The best pizza is at the Da Remo.", MessageRole.ASSISTANT)
    await finder.index_all()
    async with reranked(finder, export(tmp_path, "the best pizza is")) as reranking:
        assert await reranking.ids("Where did I say the best pizza is?") == [mine.id, yours.id]
        assert await reranking.ids("Which pizza did you recommend?") == [yours.id, mine.id]
        assert await reranking.ids("Where is the best pizza?") == [yours.id, mine.id]


async def test_fused_order_stays_if_the_reranker_is_slow_or_fails(
    finder: Finder, stored_messages: list[Message], tmp_path: Path
) -> None:
    words = [QUESTION, *SAID]
    asked = f"{QUESTION} {BREAKS}"
    fused = await finder.ask(asked)
    for name, folder, budget, outcome in (
        ("slow", export_slow(tmp_path / "slow", words), 0.001, RerankingOutcome.OUT_OF_TIME),
        ("broken", export_breaking(tmp_path / "broken", words), 60.0, RerankingOutcome.FAILED),
        ("mad", export_breaking(tmp_path / "mad", words, nan=True), 60.0, RerankingOutcome.FAILED),
    ):
        telemetry = Telemetry()
        async with reranked(finder, folder, budget=budget, telemetry=telemetry) as reranking:
            answer = await reranking.ask(asked)
            assert answer.hits == fused.hits
            assert answer.reranking is not None
            assert (answer.reranking.outcome, answer.reranking.candidates) == (outcome, 5)
            assert answer.reranking.model.startswith(f"{name}@")
            assert telemetry.total(RERANKS, outcome=outcome.value) == 1
            if outcome is RerankingOutcome.FAILED:
                well = await reranking.ask(QUESTION)
                assert well.reranking is not None
                assert well.reranking.outcome is RerankingOutcome.DONE
