"""Chunks fit the model, contain all words, and overlap within a sentence."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedder_doubles import EmbedderDouble
from strata.shared.search.embedding import Embedder, Kind, chunk_text, embed_chunked
from strata.shared.search.embedding.wordpiece import WordPieceTokenizer

TOKENIZER = WordPieceTokenizer.bert_uncased()


def count(text: str) -> int:
    return len(TOKENIZER.tokenize(text)) + 2


class LengthEmbedder(EmbedderDouble):
    """One component, the length of the text, by which a test recognizes the vector of a text."""

    dim = 1
    max_tokens = 32

    def vector_of(self, text: str, kind: Kind) -> list[float]:
        del kind
        return [float(len(text))]

    def count_tokens(self, text: str) -> int:
        return count(text)


def test_short_text_is_returned_as_it_is() -> None:
    text = "  A short fact.\n"
    assert chunk_text(text, count, 32, 4) == [text]


def test_chunks_end_with_sentences_where_possible() -> None:
    text = " ".join(f"This is the sentence number {number} of the text." for number in range(20))
    chunks = chunk_text(text, count, 64, 8)
    assert len(chunks) > 2
    assert all(chunk.endswith(".") for chunk in chunks)


def test_chunks_do_not_overlap_after_a_whole_sentence_or_line() -> None:
    sentences = [f"This is the sentence number {number} of the text." for number in range(20)]
    for separator in (" ", "\n"):
        chunks = chunk_text(separator.join(sentences), count, 64, 8)
        assert separator.join(chunks) == separator.join(sentences)
    lines = [f"entry {number} of a list without full stops" for number in range(20)]
    chunks = chunk_text("\n".join(lines), count, 64, 8)
    assert len(chunks) > 2
    assert "\n".join(chunks) == "\n".join(lines)


def test_chunks_overlap_within_a_sentence() -> None:
    words = [f"word{number}" for number in range(200)]
    chunks = chunk_text(" ".join(words), count, 64, 16)
    for left, right in pairwise(chunks):
        assert right.split()[0] in left.split()


@given(
    st.text(alphabet=st.characters(codec="utf-8"), max_size=600),
    st.integers(min_value=8, max_value=64),
)
def test_chunks_fit_and_lose_nothing(text: str, limit: int) -> None:
    chunks = chunk_text(text, count, limit, limit // 8)
    assert all(count(chunk) <= limit for chunk in chunks)
    # Every visible character is present, in order, after overlaps are removed.
    position = 0
    joined = text.strip()
    for chunk in chunks:
        start = joined.find(chunk.strip())
        assert start >= 0
        position = max(position, joined.find(chunk.strip()) + len(chunk.strip()))
    if len(set(chunks)) == len(chunks):
        assert position == len(joined)


@given(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=300))
def test_every_word_is_in_some_chunk_in_order(letters: list[str]) -> None:
    words = [f"{letter}{place}x" for place, letter in enumerate(letters)]
    chunks = chunk_text(" ".join(words), count, 40, 10)
    seen = list(dict.fromkeys(word for chunk in chunks for word in chunk.split()))
    assert seen == words


def test_a_very_long_word_is_split() -> None:
    chunks = chunk_text("私は寿司が好きです" * 40, count, 32, 0)
    assert "".join(chunks) == "私は寿司が好きです" * 40
    assert all(count(chunk) <= 32 for chunk in chunks)


@pytest.mark.parametrize(("limit", "overlap"), [(2, 0), (32, 16), (32, -1)])
def test_impossible_sizes_are_refused(limit: int, overlap: int) -> None:
    with pytest.raises(ValueError, match="space"):
        chunk_text("text", count, limit, overlap)


async def test_embed_chunked_returns_the_vectors_of_each_text_in_one_call() -> None:
    embedder = LengthEmbedder()
    assert isinstance(embedder, Embedder)
    texts = ["short", "many words " * 60, ""]
    result = await embed_chunked(embedder, texts)
    assert len(embedder.calls) == 1
    assert [len(chunks) > 1 for chunks in result] == [False, True, False]
    for chunks in result:
        assert all(chunk.vector == [float(len(chunk.text))] for chunk in chunks)
