"""The training of the learned order."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from benchmarks.retrieval import short_chats
from benchmarks.retrieval.train_order import TRAINED_ON, Search, figures, fit, searches

from strata.shared.search.learned_order import MatchFeatures, shipped_order


def search(*rows: tuple[float, float, bool], evidence: int = 1) -> Search:
    """Returns a search; each match has a score, the relevance before, and whether it answers."""
    matches = [
        MatchFeatures(score, 0.1, 0.0, before, 0.0, 0.0, 0.0, 3.0, 0.0) for score, before, _ in rows
    ]
    answers = np.array([answers for *_, answers in rows])
    return Search(np.array(matches), [30] * len(rows), answers, evidence)


def test_a_feature_of_the_answers_gets_weight_and_other_features_none() -> None:
    training = [
        search((0.9, 0.0, False), (0.8, 0.7, True), (0.7, 0.1, False)),
        search((0.9, 0.0, True), (0.5, 0.0, False)),
    ]
    order = fit(training)
    assert order.weights["before"] > 0
    assert order.weights["after"] == 0
    assert figures(training, None)["hit@1"] == 0.5
    assert figures(training, order)["hit@1"] == 1.0


def test_answers_that_were_not_retrieved_count_as_missed() -> None:
    assert figures([search((0.9, 0.0, True), evidence=2)], None)["recall@10"] == 0.5
    nothing = Search(np.empty((0, len(MatchFeatures._fields))), [], np.array([], np.bool_), 1)
    assert figures([nothing], shipped_order())["recall@5"] == 0.0


@pytest.mark.slow
def test_training_reproduces_the_shipped_order() -> None:
    sets = {
        short_chats.NAME: short_chats.short_chats(),
        short_chats.DIALOGUES: short_chats.dialogues(),
    }
    assert set(sets) == set(TRAINED_ON)
    trained = asyncio.run(searches(sets))
    order = fit(one for group in trained.values() for one in group)
    shipped = shipped_order()
    assert order.half_chars == shipped.half_chars
    assert dict(order.weights) == pytest.approx(dict(shipped.weights), abs=0.05)
