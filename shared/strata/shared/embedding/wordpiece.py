"""The uncased BERT tokenizer: same ids as the reference implementation, no dependency.

The steps and their order are those of `tokenizers`' BertNormalizer, BertPreTokenizer and
WordPiece. One difference is on purpose: a marker such as ``[SEP]`` that is typed in a text
is text, not a marker.
"""

import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from importlib import resources

_VOCABULARY = "bert-base-uncased-vocab.txt"
_MAX_WORD_CHARS = 100
_IDEOGRAPHS = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


class _CharMap(dict[int, str | None], ABC):
    """A `str.translate` table that is computed per character, when first met."""

    def __missing__(self, code: int) -> str | None:
        self[code] = value = self.replacement(code, chr(code))
        return value

    @abstractmethod
    def replacement(self, code: int, char: str) -> str | None:
        """Returns what stands for a character; None to drop it."""


class _Clean(_CharMap):
    """Drops control characters, unifies white space, sets ideographs apart."""

    def replacement(self, code: int, char: str) -> str | None:
        if char in "\t\n\r":
            return " "
        if code == 0xFFFD or unicodedata.category(char) in ("Cc", "Cf", "Co", "Cs"):
            return None
        if char.isspace():
            return " "
        if any(low <= code <= high for low, high in _IDEOGRAPHS):
            return f" {char} "
        return char


class _Fold(_CharMap):
    """Drops accents, lowers case, sets punctuation apart."""

    def replacement(self, code: int, char: str) -> str | None:
        category = unicodedata.category(char)
        if category == "Mn":
            return None
        # Every ASCII symbol counts as punctuation, also those of category S.
        if category[0] == "P" or (33 <= code <= 126 and not char.isalnum()):
            return f" {char} "
        return char.lower()


class WordPieceTokenizer:
    """Greedy longest-match-first WordPiece over a vocabulary with one token per line."""

    def __init__(self, vocabulary: Sequence[str]) -> None:
        self._ids = {token: number for number, token in enumerate(vocabulary)}
        self._unknown = self._ids["[UNK]"]
        self._start = self._ids["[CLS]"]
        self._end = self._ids["[SEP]"]
        self._clean = _Clean()
        self._fold = _Fold()
        self._word_ids = lru_cache(maxsize=16_384)(self._split_word)

    @classmethod
    def bert_uncased(cls) -> "WordPieceTokenizer":
        """The tokenizer of BERT (uncased) and of the MiniLM models."""
        file = resources.files("strata.shared.embedding") / "data" / _VOCABULARY
        return cls(file.read_text(encoding="utf-8").splitlines())

    def tokenize(self, text: str, limit: int | None = None) -> list[int]:
        """Ids of the text, without markers; the first `limit` of them."""
        decomposed = unicodedata.normalize("NFD", text.translate(self._clean))
        words = decomposed.translate(self._fold).split()
        if limit is None:
            return [number for word in words for number in self._word_ids(word)]
        ids: list[int] = []
        for word in words:
            if len(ids) >= limit:
                break
            ids += self._word_ids(word)
        return ids[:limit]

    def encode(self, text: str, max_tokens: int) -> list[int]:
        """Ids with the markers of start and end, cut to `max_tokens` in all."""
        return [self._start, *self.tokenize(text)[: max_tokens - 2], self._end]

    def join(self, first: Sequence[int], second: Sequence[int]) -> tuple[list[int], list[int]]:
        """Ids of two texts for a model that reads them together, and to which text each belongs.

        Returns:
            ``[CLS] first [SEP] second [SEP]``, and 0 for the first part, 1 for the second.
        """
        ids = [self._start, *first, self._end, *second, self._end]
        return ids, [0] * (len(first) + 2) + [1] * (len(second) + 1)

    def _split_word(self, word: str) -> tuple[int, ...]:
        if len(word) > _MAX_WORD_CHARS:
            return (self._unknown,)
        pieces: list[int] = []
        start = 0
        while start < len(word):
            prefix = "##" if start else ""
            for end in range(len(word), start, -1):
                number = self._ids.get(prefix + word[start:end])
                if number is not None:
                    pieces.append(number)
                    start = end
                    break
            else:
                return (self._unknown,)
        return tuple(pieces)
