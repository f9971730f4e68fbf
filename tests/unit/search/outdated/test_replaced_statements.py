"""Statements that newer ones replace: precision and recall on the labelled pairs."""

from __future__ import annotations

from collections import Counter

import pytest
from benchmarks.retrieval.datasets import HALVES
from benchmarks.retrieval.replaced_statements import UPDATE, Pair, pairs, precision_and_recall
from benchmarks.retrieval.short_chats import LANGUAGES


@pytest.fixture(scope="module")
def labelled() -> list[Pair]:
    return pairs()


def test_each_half_has_every_kind_in_every_language(labelled: list[Pair]) -> None:
    counts = Counter((pair.half, pair.language, pair.kind) for pair in labelled)
    kinds = (UPDATE, "compatible", "unrelated")
    assert {*counts} == {
        (half, code, kind) for half in HALVES for code in LANGUAGES for kind in kinds
    }
    assert min(counts.values()) >= 3


def test_no_pair_of_the_test_half_is_in_the_calibration_half(labelled: list[Pair]) -> None:
    texts = {
        half: {(pair.older, pair.newer) for pair in labelled if pair.half == half}
        for half in HALVES
    }
    assert not texts["calibration"] & texts["test"]


@pytest.mark.parametrize("half", HALVES)
def test_marks_have_high_precision_and_sufficient_recall(labelled: list[Pair], half: str) -> None:
    precision, recall = precision_and_recall(pair for pair in labelled if pair.half == half)
    assert precision.part >= 0.97 * precision.whole
    assert recall.part >= 0.75 * recall.whole


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_language_marks_updates(labelled: list[Pair], language: str) -> None:
    _, recall = precision_and_recall(pair for pair in labelled if pair.language == language)
    assert recall.part >= 0.6 * recall.whole
