"""The fusion of two rankings."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from strata.shared.search.fusion import (
    SHORT_QUERY_SHARE,
    Candidate,
    FusionConfig,
    Hit,
    floor_share,
    fuse,
    merge_rankings,
    rarest_word_score,
)
from strata.shared.search.surroundings import Place

CONFIG = FusionConfig()
SCORES = st.floats(min_value=-1, max_value=1, allow_nan=False)
BM25 = st.floats(min_value=0, max_value=40, allow_nan=False)


def candidates(scores: st.SearchStrategy[float]) -> st.SearchStrategy[list[Candidate]]:
    return st.lists(st.builds(_candidate, st.sampled_from("abcdefghij"), scores), max_size=20)


def _candidate(document_id: str, score: float) -> Candidate:
    return Candidate(document_id, score)


@given(dense=candidates(SCORES), sparse=candidates(BM25), limit=st.integers(0, 12), data=st.data())
def test_the_result_does_not_depend_on_the_order_of_the_input(
    dense: list[Candidate], sparse: list[Candidate], limit: int, data: st.DataObject
) -> None:
    hits = fuse(dense, sparse, limit=limit, depth=20, config=CONFIG, corpus=1_000)
    again = fuse(
        data.draw(st.permutations(dense)),
        data.draw(st.permutations(sparse)),
        limit=limit,
        depth=20,
        config=CONFIG,
        corpus=1_000,
    )
    assert hits == again


@given(dense=candidates(SCORES), sparse=candidates(BM25))
def test_every_found_document_is_listed_once_with_its_ranks(
    dense: list[Candidate], sparse: list[Candidate]
) -> None:
    hits = fuse(dense, sparse, limit=100, depth=100, config=CONFIG, corpus=1_000)
    words = {hit.document_id for hit in sparse if hit.score > 0}
    meaning = {hit.document_id for hit in dense}
    assert sorted(hit.document_id for hit in hits) == sorted(words | meaning)
    vector_ranks = sorted(hit.vector_rank for hit in hits if hit.vector_rank is not None)
    fts_ranks = sorted(hit.fts_rank for hit in hits if hit.fts_rank is not None)
    assert vector_ranks == list(range(1, len(meaning) + 1))
    assert fts_ranks == list(range(1, len(words) + 1))
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert all(0 <= hit.score <= 1 + CONFIG.sparse_weight + 1e-9 for hit in hits)


@given(dense=candidates(SCORES), sparse=candidates(BM25), limit=st.integers(0, 12))
def test_the_limit_only_truncates_the_result(
    dense: list[Candidate], sparse: list[Candidate], limit: int
) -> None:
    everything = fuse(dense, sparse, limit=100, depth=20, config=CONFIG, corpus=1_000)
    some = fuse(dense, sparse, limit=limit, depth=20, config=CONFIG, corpus=1_000)
    assert some == everything[:limit]


@given(dense=candidates(SCORES), sparse=candidates(BM25))
def test_a_document_better_by_both_scores_is_never_ranked_lower(
    dense: list[Candidate], sparse: list[Candidate]
) -> None:
    hits = fuse(dense, sparse, limit=100, depth=100, config=CONFIG, corpus=1_000)
    place = {hit.document_id: number for number, hit in enumerate(hits)}
    for left in hits:
        for right in hits:
            both = (left.vector_score, left.fts_score, right.vector_score, right.fts_score)
            if None in both:
                continue
            by_meaning = left.vector_score > right.vector_score  # type: ignore[operator]
            by_words = left.fts_score > right.fts_score  # type: ignore[operator]
            if by_meaning and by_words:
                assert place[left.document_id] < place[right.document_id]


@given(candidates(BM25))
@example([Candidate("a", 39.99999999999999), Candidate("b", 40.0)])
def test_results_found_by_words_only_are_ordered_by_their_scores(sparse: list[Candidate]) -> None:
    hits = fuse([], sparse, limit=100, depth=100, config=CONFIG, corpus=1_000)
    assert [hit.fts_rank for hit in hits] == list(range(1, len(hits) + 1))
    assert all(0 <= hit.score <= 1 for hit in hits)


def test_the_weighted_scores_are_added_up() -> None:
    three_rare_words = 3 * rarest_word_score(1_000)
    dense = [Candidate("a", 0.8), Candidate("b", 0.6)]
    sparse = [Candidate("b", three_rare_words), Candidate("c", three_rare_words / 3)]
    hits = fuse(
        dense,
        sparse,
        limit=3,
        depth=10,
        config=FusionConfig(sparse_weight=0.6, half_words=3),
        corpus=1_000,
    )
    assert [(hit.document_id, round(hit.score, 6)) for hit in hits] == [
        ("b", 0.9),
        ("a", 0.8),
        ("c", 0.15),
    ]


def test_a_document_missing_from_a_truncated_list_gets_its_lowest_score() -> None:
    dense = [Candidate("a", 0.8), Candidate("b", 0.6)]
    sparse = [Candidate("c", 3 * rarest_word_score(50))]
    config = FusionConfig(sparse_weight=0.2, half_words=3)
    [_, second, _] = fuse(dense, sparse, limit=3, depth=2, config=config, corpus=50)
    assert (second.document_id, round(second.score, 6)) == ("c", 0.7)


def test_a_rare_word_has_the_same_weight_in_few_and_many_texts() -> None:
    config = FusionConfig(sparse_weight=1, half_words=3)
    scores = [
        fuse([], [Candidate("a", rarest_word_score(n))], limit=1, depth=9, config=config, corpus=n)[
            0
        ].score
        for n in (1, 3, 1_000, 10_000_000)
    ]
    assert scores == pytest.approx([0.25] * 4)


def test_a_bonus_is_added_to_the_score_of_a_match() -> None:
    dense = [Candidate("a", 0.6, bonus=0.15), Candidate("b", 0.7)]
    hits = fuse(dense, [], limit=3, depth=10, config=CONFIG, corpus=1)
    assert [(hit.document_id, round(hit.score, 6), hit.bonus) for hit in hits] == [
        ("a", 0.75, 0.15),
        ("b", 0.7, 0.0),
    ]


def test_documents_without_a_word_of_the_query_are_dropped() -> None:
    hits = fuse([], [Candidate("a", 0.0)], limit=5, depth=5, config=CONFIG, corpus=1_000)
    assert hits == []


def test_a_narrow_range_of_cosines_is_rescaled() -> None:
    config = FusionConfig(sparse_weight=0.1, dense_low=0.7, dense_high=0.9)
    dense = [Candidate("a", 0.86), Candidate("b", 0.80)]
    words = [Candidate("b", 3.0)]
    hits = fuse(dense, words, limit=2, depth=10, config=config, corpus=1_000)
    assert [hit.document_id for hit in hits] == ["a", "b"]
    assert hits[0].score == pytest.approx(0.8)


def test_the_rrf_score_is_computed_from_the_ranks() -> None:
    dense, sparse = [Candidate("a", 0.5)], [Candidate("a", 2.0)]
    [hit] = fuse(dense, sparse, limit=1, depth=9, config=CONFIG, corpus=9)
    assert hit.rrf_score == pytest.approx(2 / 61)


def found_by(
    model: str, dense: list[Candidate], sparse: list[Candidate], config: FusionConfig = CONFIG
) -> list[Hit]:
    """Returns the hits of a model, in separate documents."""
    theirs = [
        [candidate._replace(document_id=f"{candidate.document_id} {model}") for candidate in arm]
        for arm in (dense, sparse)
    ]
    return fuse(*theirs, limit=100, depth=100, config=config, corpus=1_000)


ARMS = st.tuples(candidates(SCORES), candidates(BM25))


@given(arms=st.lists(ARMS, max_size=4), limit=st.integers(0, 30), data=st.data())
def test_hits_of_several_models_have_each_rank_once(
    arms: list[tuple[list[Candidate], list[Candidate]]], limit: int, data: st.DataObject
) -> None:
    groups = [found_by(str(number), *both) for number, both in enumerate(arms)]
    whole = merge_rankings(groups, 1_000)
    assert sorted(h.document_id for h in whole) == sorted(h.document_id for g in groups for h in g)
    vector_ranks = [hit.vector_rank for hit in whole if hit.vector_rank is not None]
    fts_ranks = [hit.fts_rank for hit in whole if hit.fts_rank is not None]
    assert sorted(vector_ranks) == list(range(1, len(vector_ranks) + 1))
    assert sorted(fts_ranks) == list(range(1, len(fts_ranks) + 1))
    assert [hit.score for hit in whole] == sorted((hit.score for hit in whole), reverse=True)
    # The order by one arm is kept, within a model and between models.
    ranked = [hit for hit in whole if hit.vector_rank is not None]
    for left in ranked:
        for right in ranked:
            if left.meaning > right.meaning:
                assert left.vector_rank < right.vector_rank  # type: ignore[operator]
    for group in groups:
        ranks = {hit.document_id: hit for hit in whole}
        order = sorted((h for h in group if h.vector_rank), key=lambda h: h.vector_rank or 0)
        joint = [ranks[hit.document_id].vector_rank or 0 for hit in order]
        assert joint == sorted(joint)
    # Neither the limit nor the order of the models changes the explanation of a hit.
    assert merge_rankings(groups, limit) == whole[:limit]
    assert merge_rankings(data.draw(st.permutations(groups)), 1_000) == whole


def test_ranks_are_calibrated_by_model() -> None:
    wide = found_by("wide", [Candidate("a", 0.6), Candidate("b", 0.3)], [])
    narrow = FusionConfig(dense_low=0.7)
    tight = found_by("tight", [Candidate("a", 0.85), Candidate("b", 0.73)], [], narrow)
    ranks = {hit.document_id: hit.vector_rank for hit in merge_rankings([wide, tight], 9)}
    assert ranks == {"a wide": 1, "a tight": 2, "b wide": 3, "b tight": 4}


@pytest.mark.parametrize(("weight", "low", "high"), [(-0.1, 0, 1), (0.3, 1, 1), (0.3, 0.9, 0.7)])
def test_impossible_weights_are_refused(weight: float, low: float, high: float) -> None:
    with pytest.raises(ValueError, match="weights"):
        FusionConfig(weight, 3.0, low, high)


def test_results_below_the_floor_are_omitted_unless_requested() -> None:
    config = FusionConfig(floor=0.3)
    dense = [Candidate("near", 0.4), Candidate("far", 0.2), Candidate("preferred", 0.1, bonus=0.5)]
    hits = fuse(dense, [], limit=9, depth=9, config=config, corpus=9)
    assert [(hit.document_id, hit.weak) for hit in hits] == [("near", False)]
    hits = fuse(dense, [], limit=9, depth=9, config=config, corpus=9, weak=True)
    assert {hit.document_id: hit.weak for hit in hits} == {
        "near": False,
        "far": True,
        "preferred": True,
    }


@pytest.mark.parametrize(
    ("query", "share"),
    [
        ("city", SHORT_QUERY_SHARE),
        ("trip  to\nPorto", SHORT_QUERY_SHARE),
        ("", SHORT_QUERY_SHARE),
        ("\u5de5\u4f5c", SHORT_QUERY_SHARE),
        ("\u6211\u7684\u8f66\u662f\u4e00\u8f86\u65e7\u6c83\u5c14\u6c83", 1),
        ("where is she going", 1),
        ("Am I married?", 1),
        ("\u7d50\u5a5a\uff1f ", 1),
    ],
)
def test_short_queries_have_a_lower_floor(query: str, share: float) -> None:
    assert floor_share(query) == share


def test_a_share_of_the_floor_applies_to_excluded_and_to_weak_results() -> None:
    config = FusionConfig(floor=0.2)
    dense = [Candidate("near", 0.21), Candidate("topic", 0.16), Candidate("far", 0.1)]

    def weak_of(share: float, *, weak: bool = False) -> dict[str, bool]:
        hits = fuse(
            dense, [], limit=9, depth=9, config=config, corpus=9, floor_share=share, weak=weak
        )
        return {hit.document_id: hit.weak for hit in hits}

    assert weak_of(1.0) == {"near": False}
    assert weak_of(0.75) == {"near": False, "topic": False}
    assert weak_of(0.75, weak=True) == {"near": False, "topic": False, "far": True}


def test_matching_words_raise_a_document_over_the_floor() -> None:
    config = FusionConfig(floor=0.3)
    dense = [Candidate("both", 0.2), Candidate("meaning", 0.2)]
    hits = fuse(dense, [Candidate("both", 9.0)], limit=9, depth=9, config=config, corpus=9)
    assert [hit.document_id for hit in hits] == ["both"]


def test_meaning_is_weighted_by_the_known_words_of_the_query() -> None:
    dense = [Candidate("a", 0.8)]
    [hit] = fuse(dense, [], limit=9, depth=9, config=FusionConfig(), corpus=9, dense_weight=0.5)
    assert hit.score == pytest.approx(0.4)


def test_half_of_the_floor_is_enough_beside_a_clear_match() -> None:
    """The floor decides whether a query has any related text."""
    config = FusionConfig(floor=0.2)

    def related(*cosines: float) -> list[float | None]:
        dense = [Candidate(f"d{number}", score) for number, score in enumerate(cosines)]
        hits = fuse(dense, [], limit=9, depth=9, config=config, corpus=9)
        return [hit.vector_score for hit in hits]

    assert related(0.31, 0.11, 0.09) == [0.31, 0.11]
    assert related(0.29, 0.11, 0.09) == [0.29]
    assert related(0.19, 0.11, 0.09) == []


def test_without_the_learned_order_the_floor_is_the_same_beside_a_clear_match() -> None:
    config = FusionConfig(floor=0.2, order=None)
    dense = [Candidate("clear", 0.6), Candidate("less", 0.15)]
    hits = fuse(dense, [], limit=9, depth=9, config=config, corpus=9)
    assert [hit.document_id for hit in hits] == ["clear"]


def test_a_weak_match_beside_a_good_one_is_found() -> None:
    config = FusionConfig(floor=0.3)
    question = Candidate("question", 0.4, place=Place("talk", 4))
    answer = Candidate("answer", 0.24, place=Place("talk", 5))
    unrelated = Candidate("unrelated", 0.1, place=Place("talk", 3))
    far = Candidate("far", 0.25, place=Place("talk", 90))
    candidates_ = [question, answer, unrelated, far]
    hits = fuse(candidates_, [], limit=9, depth=9, config=config, corpus=100)
    assert [hit.document_id for hit in hits] == ["question", "answer"]
    assert hits[1].surroundings.neighbours > 0


def test_neighbours_of_a_match_below_the_floor_are_not_found() -> None:
    config = FusionConfig(floor=0.3)
    pair = [Candidate(str(place), 0.2, place=Place("talk", place)) for place in (1, 2)]
    assert fuse(pair, [], limit=9, depth=9, config=config, corpus=100) == []
    weak = fuse(pair, [], limit=9, depth=9, config=config, corpus=100, weak=True)
    assert [hit.weak for hit in weak] == [True, True]


def test_the_newest_good_match_comes_first_if_the_query_is_about_the_present() -> None:
    candidates_by_age = [
        Candidate("old", 0.62, time=1.0),
        Candidate("new", 0.6, time=3.0),
        Candidate("newest", 0.2, time=9.0),
    ]

    def ranked(newest_share: float) -> list[str]:
        hits = fuse(
            candidates_by_age,
            [],
            limit=9,
            depth=9,
            config=CONFIG,
            corpus=100,
            newest_share=newest_share,
        )
        return [hit.document_id for hit in hits]

    assert ranked(0.0) == ["old", "new", "newest"]
    # A poor match does not rise, however new it is.
    assert ranked(1.0) == ["new", "old", "newest"]


def test_documents_that_were_stored_together_are_equally_new() -> None:
    imported = [
        Candidate("z", 0.6, time=5.0),
        Candidate("a", 0.6, time=5.0),
        Candidate("old", 0.6, time=1.0),
    ]
    hits = fuse(imported, [], limit=9, depth=9, config=CONFIG, corpus=100, newest_share=1.0)
    newest = {hit.document_id: hit.newest for hit in hits}
    assert newest == {"z": CONFIG.newest, "a": CONFIG.newest, "old": 0.0}


def test_a_single_good_match_gets_no_bonus_for_being_new() -> None:
    one = [Candidate("a", 0.6, time=5.0)]
    (hit,) = fuse(one, [], limit=9, depth=9, config=CONFIG, corpus=100, newest_share=1.0)
    assert hit.newest == 0.0
