"""The benchmark of scale: its generated texts and vectors."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.scale.material import questions, texts, vector_of, with_vectors
from benchmarks.scale.passages import check, total

from strata.api.archival.v1 import passage_service_pb2 as pb
from strata.api.common.v1 import search_pb2

DIM = 16


def test_generated_texts_are_reproducible_and_all_different() -> None:
    first = list(texts(200, words=12, seed=1))
    assert first == list(texts(200, words=12, seed=1))
    assert len(set(first)) == 200
    assert first != list(texts(200, words=12, seed=2))
    lengths = [len(text.split()) for text in first]
    assert 10 < sum(lengths) / len(lengths) < 18


def test_word_frequencies_are_skewed() -> None:
    counts: dict[str, int] = {}
    for text in texts(500, words=40, seed=3):
        for word in text.split():
            counts[word] = counts.get(word, 0) + 1
    ordered = sorted(counts.values(), reverse=True)
    assert ordered[0] > 500
    assert sum(1 for count in ordered if count == 1) > len(ordered) / 2


def test_vectors_have_unit_length_and_common_words_make_them_similar() -> None:
    for sized in with_vectors(5, words=12, seed=1, dim=DIM):
        assert len(sized.vector) == DIM
        assert np.linalg.norm(sized.vector) == pytest.approx(1.0, abs=1e-5)
    text = next(texts(1, words=30, seed=4))
    near = " ".join(text.split()[:25])
    other = next(texts(1, words=30, seed=5))
    here = np.array(vector_of(text, DIM))
    assert here @ np.array(vector_of(near, DIM)) > here @ np.array(vector_of(other, DIM))


def test_unknown_words_have_vectors() -> None:
    assert not np.isnan(vector_of("Qqq.", DIM)).any()


def test_questions_contain_common_and_rare_words() -> None:
    asked = questions(50, seed=1)
    assert asked == questions(50, seed=1)
    assert all(question.endswith("?") and len(question.split()) == 7 for question in asked)


def test_a_search_answered_without_the_index_is_refused() -> None:
    def hit(explanation: str) -> pb.PassageHit:
        return pb.PassageHit(relevance=search_pb2.Relevance(explanation=explanation))

    check([hit("Found by meaning at rank 1.")])
    with pytest.raises(RuntimeError):
        check([])
    with pytest.raises(RuntimeError):
        check([hit("Found by its words at rank 1. Only its words were searched: ...")])


def test_the_memory_of_all_parts_is_added_up() -> None:
    assert total("postgres 12, strata 30, vectors 8") == 50
