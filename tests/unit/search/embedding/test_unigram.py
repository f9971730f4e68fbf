"""The Unigram tokenizer."""

from random import Random

import numpy as np
import pytest

from strata.shared.search.embedding.unigram import (
    UnigramTokenizer,
    Vocabulary,
    tokenizer_arrays,
)
from unigram_reference import ReferenceTokenizer

PIECES = {
    "<s>": 0.0,
    "<unk>": 0.0,
    "\u2581": -4.0,
    "a": -3.0,
    "b": -3.0,
    "ab": -4.0,
    "\u2581a": -3.5,
    "\u2581ab": -6.0,
    "\u2581aba": -7.0,
    "寿司": -5.0,
    "寿": -6.0,
}
NAMES = list(PIECES)


@pytest.fixture(scope="module")
def tokenizer() -> UnigramTokenizer:
    texts = [piece.encode() for piece in PIECES]
    offsets = np.cumsum([0, *map(len, texts)]).astype(np.uint32)
    scores = np.array(list(PIECES.values()), np.float32)
    vocabulary = Vocabulary(b"".join(texts), offsets, scores, (0, 1), 1)
    return UnigramTokenizer(tokenizer_arrays(vocabulary))


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("", []),
        ("a", ["\u2581a"]),
        ("ab", ["\u2581ab"]),
        ("abab", ["\u2581ab", "ab"]),
        ("aba  a", ["\u2581aba", "\u2581a"]),
        ("寿司", ["\u2581", "寿司"]),
        ("寿", ["\u2581", "寿"]),
        ("ac", ["\u2581a", "<unk>"]),
        ("\uff41", ["\u2581a"]),  # NFKC
        ("a\u200ba\tb", ["\u2581a", "\u2581a", "\u2581", "b"]),
        ("a\x07b", ["\u2581ab"]),
        ("\ud800", ["\u2581", "<unk>"]),
    ],
)
def test_pieces_are_the_most_probable_ones(
    tokenizer: UnigramTokenizer, text: str, pieces: list[str]
) -> None:
    assert [NAMES[number] for number in tokenizer.tokenize(text)] == pieces


def test_markers_in_a_text_are_text(tokenizer: UnigramTokenizer) -> None:
    assert 0 not in tokenizer.tokenize("<s> a")


def test_the_limit_cuts_the_pieces(tokenizer: UnigramTokenizer) -> None:
    whole = tokenizer.tokenize("abab aba ab")
    assert [tokenizer.tokenize("abab aba ab", limit) for limit in range(5)] == [
        whole[:limit] for limit in range(5)
    ]


def test_long_words_are_split_like_short_ones(tokenizer: UnigramTokenizer) -> None:
    assert tokenizer.tokenize("ab" * 50) == [NAMES.index("\u2581ab"), *[NAMES.index("ab")] * 49]


def test_information_of_a_word_is_the_sum_of_its_pieces(tokenizer: UnigramTokenizer) -> None:
    assert tokenizer.nats("abab") == pytest.approx(10.0)
    assert tokenizer.is_covered("abab")
    assert not tokenizer.is_covered("xyz")


def test_words_are_split_like_the_reference(tokenizer: UnigramTokenizer) -> None:
    scored = {piece: (NAMES.index(piece), PIECES[piece]) for piece in NAMES[2:]}
    reference = ReferenceTokenizer(scored, 1, min(PIECES.values()) - 10)
    choose = Random(1)
    for _ in range(3_000):
        word = "".join(choose.choices("ab\u2581寿司x", k=choose.randint(1, 70)))
        assert list(tokenizer.word_ids(word)) == reference.word_ids(word)
