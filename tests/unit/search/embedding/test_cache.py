"""The cache of embedded texts."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedder_doubles import EmbedderDouble
from strata.shared.search.embedding import CachingEmbedder, Embedder, Kind


class CountingEmbedder(EmbedderDouble):
    """Vectors that depend on text and kind."""

    def vector_of(self, text: str, kind: Kind) -> list[float]:
        return [len(text) / 3, 1.0 if kind == "query" else 0.0]


async def test_a_repeated_text_is_taken_from_the_cache() -> None:
    inner = CountingEmbedder()
    cache = CachingEmbedder(inner)
    assert isinstance(cache, Embedder)
    first = await cache.embed(["a", "bb", "a"], "document")
    second = await cache.embed(["bb", "a"], "document")
    assert inner.texts_of("document") == ["a", "bb"]
    assert second == [first[1], first[0]]
    assert (cache.hits, cache.misses) == (3, 2)


async def test_queries_and_documents_are_cached_separately() -> None:
    cache = CachingEmbedder(CountingEmbedder())
    assert await cache.embed(["a"], "query") != await cache.embed(["a"], "document")


async def test_the_least_recently_used_entry_is_dropped_first() -> None:
    inner = CountingEmbedder()
    cache = CachingEmbedder(inner, max_entries=2)
    for text in ("a", "b", "a", "c", "a", "b"):
        await cache.embed([text], "query")
    assert inner.texts_of("query") == ["a", "b", "c", "b"]


async def test_callers_cannot_change_the_stored_values() -> None:
    cache = CachingEmbedder(CountingEmbedder())
    (await cache.embed(["a"], "query"))[0][0] = 99.0
    assert (await cache.embed(["a"], "query"))[0][0] != 99.0


@given(st.lists(st.lists(st.text(max_size=3), max_size=6), max_size=8), st.integers(1, 4))
async def test_cached_vectors_equal_those_of_the_embedder(
    batches: list[list[str]], size: int
) -> None:
    cache = CachingEmbedder(CountingEmbedder(), max_entries=size)
    for batch in batches:
        expected = await CountingEmbedder().embed(batch, "query")
        assert await cache.embed(batch, "query") == [array("f", one).tolist() for one in expected]


def test_a_cache_without_space_is_refused() -> None:
    with pytest.raises(ValueError, match="space"):
        CachingEmbedder(CountingEmbedder(), max_entries=0)
