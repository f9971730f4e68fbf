"""A simple reference implementation of the Unigram tokenizer: it tries every piece everywhere."""

from __future__ import annotations

import math
from collections.abc import Mapping


class ReferenceTokenizer:
    """Splits normalized words.

    Args:
        pieces: Id and score of each piece.
        unknown: Id of a character that is not a piece.
        unknown_score: Its score.
    """

    def __init__(
        self, pieces: Mapping[str, tuple[int, float]], unknown: int, unknown_score: float
    ) -> None:
        self._pieces = pieces
        self._unknown = (unknown, unknown_score)
        self._longest = max(map(len, pieces))

    def word_ids(self, word: str) -> list[int]:
        """Returns the ids of the pieces of a word with the greatest sum of scores."""
        text = "\u2581" + word
        best = [0.0] + [-math.inf] * len(text)
        last = [(0, 0)] * (len(text) + 1)
        for start in range(len(text)):
            ends = range(start + 1, min(start + self._longest, len(text)) + 1)
            matches = [(end, *self._pieces.get(text[start:end], (-1, -math.inf))) for end in ends]
            for end, number, score in [*matches, (start + 1, *self._unknown)]:
                if best[start] + score > best[end]:
                    best[end], last[end] = best[start] + score, (start, number)
        ids: list[int] = []
        end = len(text)
        while end:
            end, number = last[end]
            ids.insert(0, number)
        return ids
