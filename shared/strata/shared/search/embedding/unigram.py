"""Implements the Unigram tokenizer of SentencePiece models, from a vocabulary with scores.

A text is split into the pieces with the greatest sum of scores (Viterbi). Pieces never cross a
space, so that each word is split on its own.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from strata.shared.search.embedding.double_array import ROOT, build_double_array
from strata.shared.search.embedding.prepared_arrays import Arrays

REPLACEMENTS: Mapping[int, str] = {
    **dict.fromkeys([*range(1, 9), 0xB, *range(0xE, 0x20), 0x7F, 0x8F, 0x9F], ""),
    **dict.fromkeys([0x1680, *range(0x200B, 0x2010), 0x2028, 0x2029, 0x2581, 0xFEFF, 0xFFFD], " "),
}
"""Replacements of SentencePiece's rules "nmt_nfkc" beyond NFKC: control characters, spaces."""
WORD_START = "\u2581"
"""Stands for the space before a word."""

# SentencePiece's "nmt_nfkc" is NFKC without this character, the wave dash of Japanese.
_UNCHANGED = "\uff5e"
# Longer words seldom occur twice.
_LONGEST_CACHED = 64
# An unknown character costs this much more than the least probable piece, as in SentencePiece.
_UNKNOWN_PENALTY = 10.0
# A number that no character has.
_NO_CHARACTER = 0


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The pieces of a Unigram model.

    Attributes:
        pieces: The UTF-8 bytes of all pieces.
        offsets: Start of each piece in `pieces`, and the end of the last one.
        scores: Log probability of each piece.
        special: Ids that no text is tokenized to: markers such as ``<s>``.
        unknown: Id of a character that is not in the vocabulary.
    """

    pieces: bytes
    offsets: npt.NDArray[np.uint32]
    scores: npt.NDArray[np.float32]
    special: Sequence[int]
    unknown: int


def tokenizer_arrays(vocabulary: Vocabulary) -> Arrays:
    """Returns what a `UnigramTokenizer` needs, for a file; takes half a second of CPU."""
    raw = np.frombuffer(vocabulary.pieces, np.uint8)
    # Offsets count bytes; a character starts at each byte that continues none.
    before = np.zeros(len(raw) + 1, np.int64)
    np.cumsum((raw & 0xC0) != 0x80, out=before[1:])
    bounds = before[vocabulary.offsets]
    lengths = np.diff(bounds)
    lengths[list(vocabulary.special)] = 0
    points = np.frombuffer(vocabulary.pieces.decode().encode("utf-32-le"), np.uint32)
    trie = build_double_array(points, bounds[:-1], lengths)
    ids = trie.keys
    ids[ROOT] = vocabulary.unknown
    return {
        "characters": trie.characters,
        "bases": trie.bases,
        "parents": trie.parents,
        "ids": ids,
        "scores_by_slot": np.where(ids >= 0, vocabulary.scores[ids], np.float32(0)),
        "scores": vocabulary.scores,
        "longest": np.array([trie.longest], np.int32),
    }


class UnigramTokenizer:
    """Splits texts into the pieces of a vocabulary.

    Args:
        arrays: The vocabulary, from `tokenizer_arrays`.
    """

    def __init__(self, arrays: Arrays) -> None:
        characters = arrays["characters"].tobytes().decode("utf-32-le")
        self._numbers = {char: number for number, char in enumerate(characters, 1)}
        # An element of a memoryview is read in a third of the time that one of an array takes.
        self._bases = arrays["bases"].data
        self._parents = arrays["parents"].data
        self._ids = arrays["ids"].data
        self._scores_by_slot = arrays["scores_by_slot"].data
        self._scores = arrays["scores"]
        self._longest = int(arrays["longest"][0])
        self._unknown = self._ids[ROOT]
        self._unknown_score = float(self._scores.min()) - _UNKNOWN_PENALTY
        self._cached = lru_cache(maxsize=16_384)(self._split)

    def tokenize(self, text: str, limit: int | None = None) -> list[int]:
        """Returns the first `limit` token ids of the text, without markers."""
        ids: list[int] = []
        for word in self.words(text):
            if limit is not None and len(ids) >= limit:
                break
            ids += self.word_ids(word)
        return ids[:limit]

    def words(self, text: str) -> list[str]:
        """Returns the normalized words of a text, without the spaces before them."""
        # Lone surrogates cannot be encoded.
        clean = text.encode("utf-8", "replace").decode()
        parts = [unicodedata.normalize("NFKC", part) for part in clean.split(_UNCHANGED)]
        return _UNCHANGED.join(parts).translate(REPLACEMENTS).split()

    def word_ids(self, word: str) -> tuple[int, ...]:
        """Returns the token ids of a normalized word."""
        return self._cached(word) if len(word) <= _LONGEST_CACHED else self._split(word)

    def is_covered(self, word: str) -> bool:
        """Returns whether the vocabulary has all characters of a normalized word."""
        return self._unknown not in self.word_ids(word)

    def nats(self, word: str) -> float:
        """Returns the information in a normalized word, in nats: much for random letters."""
        return -float(self._scores[list(self.word_ids(word))].sum())

    def _split(self, word: str) -> tuple[int, ...]:
        number_of = self._numbers.get
        numbers = [number_of(char, _NO_CHARACTER) for char in WORD_START + word]
        bases, parents, scores = self._bases, self._parents, self._scores_by_slot
        first_base, longest, unknown_score = self._bases[ROOT], self._longest, self._unknown_score
        size = len(numbers)
        # For each place: the greatest sum of scores up to it, and start and slot of its last piece.
        best = [-math.inf] * (size + 1)
        best[0] = 0.0
        origin = [0] * (size + 1)
        piece = [ROOT] * (size + 1)
        for start in range(size):
            so_far, node, base, end = best[start], ROOT, first_base, start
            for number in numbers[start : start + longest]:
                slot = base + number
                if parents[slot] != node:
                    break
                node, base, end = slot, bases[slot], end + 1
                if base < 0:  # a piece ends here
                    base = -base
                    score = so_far + scores[slot]
                    if score > best[end]:
                        best[end], origin[end], piece[end] = score, start, slot
            score = so_far + unknown_score
            if score > best[start + 1]:
                best[start + 1], origin[start + 1], piece[start + 1] = score, start, ROOT
        slots, end = [], size
        while end > 0:
            slots.append(piece[end])
            end = origin[end]
        ids = self._ids
        return tuple([ids[slot] for slot in reversed(slots)])
