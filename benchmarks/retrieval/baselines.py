"""Baselines for search: plain BM25, and substring search."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence

_WORD = re.compile(r"[a-z0-9]+")
# Longest first.
_ENDINGS = (
    "ations", "ation", "ments", "edly", "ings", "ment", "ies", "ing", "ed", "es", "ly", "s",
)  # fmt: skip
_SHORTEST_STEM = 3


class Bm25:
    """Okapi BM25 over whole texts, k1 1.2 and b 0.75, with common suffixes removed."""

    def __init__(self, texts: Sequence[str], k1: float = 1.2, b: float = 0.75) -> None:
        counts = [Counter(_stems(text)) for text in texts]
        lengths = [sum(count.values()) for count in counts]
        mean = sum(lengths) / max(len(lengths), 1) or 1.0
        holders = Counter(word for count in counts for word in count)
        self._size = len(texts)
        self._weights: dict[str, list[tuple[int, float]]] = defaultdict(list)
        for place, (words, length) in enumerate(zip(counts, lengths, strict=True)):
            for word, count in words.items():
                held = holders[word]
                rarity = math.log(1 + (len(texts) - held + 0.5) / (held + 0.5))
                share = count * (k1 + 1) / (count + k1 * (1 - b + b * length / mean))
                self._weights[word].append((place, rarity * share))

    def search(self, query: str, limit: int) -> list[int]:
        """Returns the indices of the best texts, best first."""
        scores: dict[int, float] = defaultdict(float)
        for word in set(_stems(query)):
            for place, weight in self._weights.get(word, ()):
                scores[place] += weight
        return sorted(scores, key=lambda place: (-scores[place], place))[:limit]


def substring(texts: Sequence[str], query: str, limit: int) -> list[int]:
    """Returns the indices of the texts that contain the whole query, newest first."""
    wanted = query.casefold()
    places = [place for place, text in enumerate(texts) if wanted in text.casefold()]
    return places[::-1][:limit]


def _stems(text: str) -> list[str]:
    return [_stem(word) for word in _WORD.findall(text.lower())]


def _stem(word: str) -> str:
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= _SHORTEST_STEM:
            return word[: -len(ending)]
    return word
