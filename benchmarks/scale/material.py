"""Generates hundreds of thousands of texts with vectors; the same in every run.

Words have a natural distribution (Zipf's law): few are frequent, most are rare. A vector is the
sum of one random direction per word, so that texts that share words are similar. No model is
used.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import accumulate

import numpy as np
import numpy.typing as npt

_WORDS = 30_000
# English-like syllables, because a query with unknown words would also search the database.
_SYLLABLES = (
    "ber", "con", "der", "for", "gan", "her", "ing", "ker", "lan", "man", "nor", "per", "ran",
    "ster", "ton", "ver", "well", "land", "ford", "son",
)  # fmt: skip
_COMMON = (
    "the", "a", "and", "we", "of", "to", "in", "she", "he", "it", "was", "for", "on", "with",
    "that", "about", "they", "my", "after", "before",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sized:
    """A text and its vector."""

    text: str
    vector: list[float]


def texts(count: int, *, words: int, seed: int) -> Iterator[str]:
    """Yields texts of about `words` words."""
    draw = random.Random(seed)
    names, weights = _vocabulary()
    for number in range(count):
        length = max(4, int(draw.gauss(words, words / 4)))
        yield f"{' '.join(draw.choices(names, cum_weights=weights, k=length))}. Note {number}."


def with_vectors(count: int, *, words: int, seed: int, dim: int) -> Iterator[Sized]:
    """Yields texts with their vectors."""
    for text in texts(count, words=words, seed=seed):
        yield Sized(text, vector_of(text, dim))


def questions(count: int, *, seed: int) -> list[str]:
    """Returns questions of seven words, some of them common and some of them rare."""
    draw = random.Random(seed)
    names, weights = _vocabulary()
    asked = []
    for _ in range(count):
        common = draw.choices(names, cum_weights=weights, k=4)
        rare = draw.choices(names[200:], k=3)
        asked.append(f"{' '.join(draw.sample(common + rare, 7))}?")
    return asked


def vector_of(text: str, dim: int) -> list[float]:
    """Returns the vector of a text, of length 1."""
    coordinates = [_place(word) for word in text.lower().rstrip("?.").split()]
    mean = _directions(dim)[coordinates].sum(axis=0)
    vector: list[float] = (mean / np.linalg.norm(mean)).tolist()
    return vector


@cache
def _vocabulary() -> tuple[list[str], list[float]]:
    draw = random.Random(0)
    made = dict.fromkeys(_COMMON)
    while len(made) < _WORDS:
        made["".join(draw.choices(_SYLLABLES, k=draw.randint(2, 4)))] = None
    # Zipf's law: the n-th word is used 1/n as often as the first.
    return list(made), list(accumulate(1 / (rank + 2) for rank in range(_WORDS)))


@cache
def _places() -> dict[str, int]:
    return {word: index for index, word in enumerate(_vocabulary()[0])}


def _place(word: str) -> int:
    return _places().get(word, 0)


@cache
def _directions(dim: int) -> npt.NDArray[np.float32]:
    drawn = np.random.default_rng(0).standard_normal((_WORDS, dim), dtype=np.float32)
    # Words that are in every text get little weight.
    weights = np.log1p(np.arange(1, _WORDS + 1, dtype=np.float32))[:, None]
    return drawn * weights
