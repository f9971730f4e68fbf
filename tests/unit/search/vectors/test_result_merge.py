"""Merging hits of the index with texts that only PostgreSQL has."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from strata.protocol.errors import UnavailableError
from strata.shared.search.result_merge import ResultRank, explain_result, hits_or_none, merge
from strata.shared.search.vectors import Hit

NAMES = "abcdefghij"
RANKS = st.none() | st.integers(1, 9)
HITS = st.lists(
    st.builds(
        Hit,
        st.sampled_from(NAMES),
        st.just(0),
        st.floats(0, 2, allow_nan=False),
        RANKS,
        st.integers(1, 9),
        st.none(),
        st.none(),
    ),
    max_size=8,
    unique_by=lambda hit: hit.document_id,
)
WORDS = st.lists(
    st.tuples(st.sampled_from(NAMES), st.floats(0.001, 3, allow_nan=False)),
    max_size=8,
    unique_by=lambda pair: pair[0],
)


@given(hits=HITS, known=st.sets(st.sampled_from(NAMES)), words=WORDS)
def test_results_are_unique_and_existing_and_best_first(
    hits: list[Hit], known: set[str], words: list[tuple[str, float]]
) -> None:
    merged = merge(
        hits, {name: name for name in known}, [(name, name, score) for name, score in words]
    )
    expected = {hit.document_id for hit in hits} & known
    waiting = {name for name, _ in words} - known
    names = [name for name, _ in merged]
    assert sorted(names) == sorted(expected | waiting)
    assert [place.score for _, place in merged] == sorted(
        (place.score for _, place in merged), reverse=True
    )
    for name, place in merged:
        assert place.waiting == (name in waiting)
        assert (place.mode == "fts") == (place.vector_rank is None)


async def test_an_unreachable_index_returns_none() -> None:
    async def away() -> list[Hit]:
        raise UnavailableError("gone")

    async def there() -> list[Hit]:
        return []

    assert await hits_or_none(away()) is None
    assert await hits_or_none(there()) == []


def test_preferences_apply_to_texts_that_are_not_indexed_yet() -> None:
    waiting = [("a", "a", 4.0), ("b", "b", 3.0)]
    plain = merge([], {}, waiting)
    assert [item for item, _ in plain] == ["a", "b"]
    preferred = merge([], {}, waiting, lambda item: 0.2 if item == "b" else 0.0)
    assert [item for item, _ in preferred] == ["b", "a"]
    assert [place.bonus for _, place in preferred] == [0.2, 0.0]


def test_the_rank_of_a_result_is_explained() -> None:
    both = explain_result(ResultRank("hybrid", 1.25, 1, 3, 0.2), ["it is blue", "it is new"])
    assert both == (
        "Found by meaning at rank 1 and by its words at rank 3, with a score of 1.2500."
        " 0.20 of it because it is blue and it is new."
    )
    waits = explain_result(ResultRank("fts", 0.5, None, 1, waiting=True), [])
    assert "meaning" not in waits
    assert "Only its words were searched" in waits
