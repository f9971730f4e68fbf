"""The learned order of the best matches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.shared.search.fusion import Candidate, FusionConfig, Hit, fuse
from strata.shared.search.learned_order import (
    DEPTH,
    LearnedOrder,
    MatchFeatures,
    shipped_order,
)
from strata.shared.search.result_merge import ResultRank, explain_result
from strata.shared.search.surroundings import Place


class ByScore:
    """An order that keeps the order of the scores."""

    def weighted(
        self, matches: Sequence[MatchFeatures], chars: Sequence[int]
    ) -> Sequence[MatchFeatures]:
        return [MatchFeatures(*[0.0] * len(MatchFeatures._fields))] * len(matches)


ORDERED = FusionConfig()
BY_SCORE = replace(ORDERED, order=ByScore())
HOUR = 3_600.0


def candidate(number: int, score: float, chars: int, *, bonus: float = 0.0) -> Candidate:
    """Returns a message of one conversation; messages are a day apart, each in its own session."""
    place = Place("talk", number, chars)
    return Candidate(f"m{number:03}", score, bonus, place, number * 24 * HOUR)


CANDIDATES = st.lists(
    st.builds(
        candidate,
        st.integers(0, 200),
        st.floats(0, 1),
        st.sampled_from((1, 5, 40, 200, 5_000)),
        bonus=st.sampled_from((0.0, 0.2)),
    ),
    max_size=80,
    unique_by=lambda one: one.document_id,
)


def hits(candidates: list[Candidate], config: FusionConfig, **more: float | bool) -> list[Hit]:
    share = float(more.get("newest_share", 0.0))
    weak = bool(more.get("weak", False))
    return fuse(
        candidates, [], limit=200, depth=300, config=config, corpus=9, newest_share=share, weak=weak
    )


def names(candidates: list[Candidate], config: FusionConfig) -> list[str]:
    return [hit.document_id for hit in hits(candidates, config)]


@given(CANDIDATES, st.sampled_from((0.0, 0.3)), st.booleans(), st.sampled_from((0.0, 1.0)))
def test_only_the_order_of_the_best_matches_changes(
    candidates: list[Candidate], floor: float, weak: bool, newest_share: float
) -> None:
    more = {"weak": weak, "newest_share": newest_share}
    plain = hits(candidates, replace(BY_SCORE, floor=floor), **more)
    ordered = hits(candidates, replace(ORDERED, floor=floor), **more)
    assert [hit.score for hit in ordered] == [hit.score for hit in plain]

    def rest(hit: Hit) -> Hit:
        return replace(hit, score=0.0, earlier_rank=0, learned=None)

    assert sorted(map(rest, ordered), key=str) == sorted(map(rest, plain), key=str)
    # What is below the floor, or beyond the best ones, keeps its place.
    strong = [hit for hit in plain if not hit.weak]
    assert {hit.document_id for hit in ordered if hit.earlier_rank} <= {
        hit.document_id for hit in strong[:DEPTH]
    }
    for hit in ordered:
        if hit.earlier_rank:
            assert strong[hit.earlier_rank - 1].document_id == hit.document_id


@given(CANDIDATES, st.data())
def test_the_result_does_not_depend_on_the_order_of_the_input(
    candidates: list[Candidate], data: st.DataObject
) -> None:
    again = data.draw(st.permutations(candidates))
    assert hits(again, ORDERED) == hits(candidates, ORDERED)


def test_an_answer_precedes_a_similar_message_that_follows_nothing() -> None:
    question = candidate(10, 0.6, 40)
    answer = candidate(11, 0.35, 40)._replace(time=question.time + 60)
    other = candidate(50, 0.5, 40)
    assert names([question, answer, other], BY_SCORE) == ["m010", "m050", "m011"]
    assert names([question, answer, other], ORDERED) == ["m010", "m011", "m050"]


def test_long_texts_keep_the_order_of_their_scores() -> None:
    texts = [candidate(n, 0.9 - n / 20, 3_000 if n % 2 else 9_000) for n in range(10)]
    assert names(texts, ORDERED) == names(texts, BY_SCORE)


def test_a_long_text_among_short_ones_is_not_the_best_match_of_every_question() -> None:
    short = [candidate(n, 0.5, 60) for n in range(9)]
    pasted = candidate(9, 0.25, 200_000)
    assert names([*short, pasted], ORDERED)[-1] == "m009"


def test_texts_of_unknown_length_keep_the_order_of_their_scores() -> None:
    """Messages that an earlier release has indexed have no length."""
    texts = [candidate(0, 0.5, 40), candidate(1, 0.4, 0), candidate(2, 0.3, 190)]
    alone = [one._replace(place=None) for one in texts]
    for candidates in (texts, alone):
        assert names(candidates, ORDERED) == ["m000", "m001", "m002"]
        assert not any(hit.earlier_rank for hit in hits(candidates, ORDERED))


def test_the_order_that_is_shipped_weighs_every_feature() -> None:
    order = shipped_order()
    assert set(order.weights) == set(MatchFeatures._fields) - {"score"}
    assert all(weight > 0 for weight in order.weights.values())


def test_weights_for_other_features_are_refused() -> None:
    weights = dict(shipped_order().weights)
    with pytest.raises(ValueError, match="there must be one weight for each feature"):
        LearnedOrder({**weights, "colour": 1.0}, 300)
    with pytest.raises(ValueError, match="half_chars must be positive"):
        LearnedOrder(weights, 0)


def test_explanations_name_the_rank_before() -> None:
    place = ResultRank("vector", 0.5, 3, None, earlier_rank=7)
    assert "rank 7 before the learned order" in explain_result(place, [])
    assert "learned order" not in explain_result(replace(place, earlier_rank=0), [])


def test_explanations_name_the_features_with_an_effect() -> None:
    learned = MatchFeatures(0.5, 0.1, 0.0, 0.204, 0.001, 0.0, 0.0, 0.3, 0.0)
    explained = explain_result(ResultRank("vector", 0.5, 3, None, learned=learned), [])
    assert "adds +0.10 for its meaning, +0.20 for texts before it, +0.30 for its len" in explained
    assert "after it" not in explained


def test_every_feature_but_the_score_is_explained() -> None:
    learned = MatchFeatures(*[0.25] * len(MatchFeatures._fields))
    explained = explain_result(ResultRank("vector", 0.5, 3, None, learned=learned), [])
    assert explained.count("+0.25") == len(MatchFeatures._fields) - 1
