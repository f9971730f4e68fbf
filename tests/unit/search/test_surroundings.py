"""Scores for the neighbours and the session of a text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.shared.search.surroundings import (
    REACH,
    SESSION_GAP_S,
    Place,
    Scored,
    SurroundingWeights,
    surroundings_of,
)

WEIGHTS = SurroundingWeights(neighbour=0.5, half_chars=100, session=0.0)
SCORES = st.floats(min_value=0, max_value=2, allow_nan=False)


def text(position: int, relevance: float, **more: float) -> Scored:
    """A text of one conversation; texts are a second apart."""
    place = Place("talk", position, int(more.get("chars", 0)))
    return Scored(place, more.get("time", float(position)), relevance, more.get("words", 0.0))


def test_a_text_gets_a_share_of_the_relevance_of_its_neighbours() -> None:
    scores = surroundings_of({"a": text(1, 0.8), "b": text(2, 0.1), "c": text(3, 0.4)}, WEIGHTS)
    assert scores["b"].neighbours == pytest.approx(0.5 * (0.8 + 0.4))
    assert scores["a"].neighbours == pytest.approx(0.5 * 0.4 / 2)
    assert scores["b"].best_neighbour == 0.8


def test_a_long_text_gets_a_smaller_share() -> None:
    scores = surroundings_of({"a": text(1, 0.8), "b": text(2, 0.1, chars=100)}, WEIGHTS)
    assert scores["b"].neighbours == pytest.approx(0.5 * 0.8 / 2)


def test_a_distant_neighbour_counts_less_and_is_not_a_direct_one() -> None:
    scores = surroundings_of({"a": text(1, 0.6), "b": text(4, 0.1)}, WEIGHTS)
    assert scores["b"].neighbours == pytest.approx(0.5 * 0.6 / 3)
    assert scores["b"].best_neighbour == 0.0


def test_texts_beyond_the_reach_are_not_neighbours() -> None:
    scores = surroundings_of({"a": text(1, 0.6), "b": text(2 + REACH, 0.1)}, WEIGHTS)
    assert [(around.neighbours, around.before, around.after) for around in scores.values()] == [
        (0.0, 0.0, 0.0)
    ] * 2


@pytest.mark.parametrize("other", [Place("other", 2), Place("talk", 2)])
def test_texts_of_another_conversation_or_session_are_not_neighbours(other: Place) -> None:
    later = SESSION_GAP_S + 2 if other.group == "talk" else 2.0
    texts = {"a": text(1, 0.6), "b": Scored(other, later, 0.1, 0.0)}
    assert surroundings_of(texts, WEIGHTS) == {}


def test_matching_words_of_a_session_count_for_all_texts_of_the_session_only() -> None:
    weights = SurroundingWeights(neighbour=0.0, session=0.5)
    later = SESSION_GAP_S * 2
    texts = {
        "a": text(1, 0.0, words=0.4),
        "b": text(9, 0.0, words=0.2),
        "c": text(10, 0.0, time=later),
    }
    scores = surroundings_of(texts, weights)
    assert scores["a"].session == scores["b"].session == pytest.approx(0.5 * (0.4 + 0.2 / 2))
    assert "c" not in scores


def test_the_similarity_of_a_session_is_that_of_its_best_text() -> None:
    later = SESSION_GAP_S * 2
    texts = {
        "a": text(1, 0.9, words=0.2),
        "b": text(9, 0.5),
        "c": text(10, 0.6, time=later),
    }
    scores = surroundings_of(texts, WEIGHTS)
    assert scores["a"].session_meaning == pytest.approx(0.9 - 0.2)
    assert scores["b"].session_meaning == scores["a"].session_meaning
    assert "c" not in scores


@given(st.lists(st.tuples(st.sampled_from("xy"), st.integers(0, 30), SCORES, SCORES), max_size=20))
def test_scores_are_bounded_by_the_weights(
    rows: list[tuple[str, int, float, float]],
) -> None:
    texts = {
        f"{group}{position}": Scored(Place(group, position), position * 1_000.0, relevance, words)
        for group, position, relevance, words in rows
    }
    weights = SurroundingWeights()
    scores = surroundings_of(texts, weights)
    assert scores.keys() <= texts.keys()
    highest = max((scored.relevance for scored in texts.values()), default=0.0)
    for around in scores.values():
        assert 0 <= around.neighbours <= 2 * weights.neighbour * highest + 1e-9
        assert 0 <= around.best_neighbour <= highest
        assert around.session >= 0


@given(st.lists(st.tuples(st.integers(0, 30), SCORES), max_size=12), st.data())
def test_the_order_of_the_texts_has_no_effect(
    rows: list[tuple[int, float]], data: st.DataObject
) -> None:
    texts = {str(position): text(position, relevance) for position, relevance in rows}
    shuffled = dict(data.draw(st.permutations(list(texts.items()))))
    assert surroundings_of(texts, WEIGHTS) == surroundings_of(shuffled, WEIGHTS)


def test_negative_weights_are_refused() -> None:
    with pytest.raises(ValueError, match="not negative"):
        SurroundingWeights(neighbour=-0.1)
