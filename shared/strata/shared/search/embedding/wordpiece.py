"""The uncased BERT tokenizer: same ids as the reference implementation, no dependency.

The steps and their order are those of BertNormalizer, BertPreTokenizer and WordPiece in
`tokenizers`. One difference is intended: a marker such as ``[SEP]`` within a text is tokenized as
text.
"""

import math
import unicodedata
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib import resources

from strata.shared.search.unspaced_scripts import UNSPACED

_VOCABULARY = "bert-base-uncased-vocab.txt"
_MAX_WORD_CHARS = 100
# Decision 0023 has the measurements of these four.
_LEAST_SPELLED_CHARS = 4
_SPELLED_CHARS_PER_PIECE = 1.5
_SHORT_CHARS_PER_PIECE = 2.34
_IMPROBABLE_BITS = 4.5
# Shorter entries of the vocabulary are abbreviations and single letters.
_LEAST_WORD_CHARS = 3
# Tokenizers of chat models use about one token for three letters of a random word.
_UNKNOWN_BYTES_PER_TOKEN = 3
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
    """A `str.translate` table whose entries are computed at the first use of a character."""

    def __missing__(self, code: int) -> str | None:
        self[code] = value = self.replacement(code, chr(code))
        return value

    @abstractmethod
    def replacement(self, code: int, char: str) -> str | None:
        """Returns the replacement of a character; None to drop it."""


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


class LetterPairs:
    """The frequencies of letter pairs in some words.

    Args:
        words: Lower-case ASCII words.
    """

    _START = "^"
    _END = "$"
    # Pseudo-count of every pair (additive smoothing): the start or one of 26 letters, followed by
    # the end or one of 26 letters.
    _PRIOR = 0.5
    _FOLLOWERS = 27

    def __init__(self, words: Iterable[str]) -> None:
        pairs = Counter(pair for word in words for pair in self._pairs(word))
        firsts: Counter[str] = Counter()
        for (first, _), count in pairs.items():
            firsts[first] += count
        self._pairs_seen = pairs
        self._firsts_seen = firsts

    def bits(self, word: str) -> float:
        """Returns the average information per letter of a word, in bits.

        English words have 2 to 4, random letters 6 and more.
        """
        prior, followers = self._PRIOR, self._FOLLOWERS
        bits = [
            -math.log2(
                (self._pairs_seen[pair] + prior) / (self._firsts_seen[pair[0]] + prior * followers)
            )
            for pair in self._pairs(word)
        ]
        return sum(bits) / len(bits)

    @classmethod
    def _pairs(cls, word: str) -> Iterable[tuple[str, str]]:
        return zip(cls._START + word, word + cls._END, strict=True)


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
        self._letters = LetterPairs(token for token in vocabulary if _is_plain_word(token))

    @classmethod
    def bert_uncased(cls) -> "WordPieceTokenizer":
        """The tokenizer of BERT (uncased) and of the MiniLM models."""
        file = resources.files("strata.shared.search.embedding") / "data" / _VOCABULARY
        return cls(file.read_text(encoding="utf-8").splitlines())

    def tokenize(self, text: str, limit: int | None = None) -> list[int]:
        """Returns the first `limit` token ids of the text, without markers."""
        words = self._words(text)
        if limit is None:
            return [number for word in words for number in self._word_ids(word)]
        ids: list[int] = []
        for word in words:
            if len(ids) >= limit:
                break
            ids += self._word_ids(word)
        return ids[:limit]

    def known_share(self, text: str) -> float:
        """Returns the share of words that the model knows; 1 for a text without words.

        Punctuation does not count as a word. A word is unknown to the model if

        - it becomes ``[UNK]``: emoji and words of more than 100 characters;
        - its script puts no spaces between words (Chinese, Japanese, Korean, Thai): the vocabulary
          has some single characters of these, and vectors made of them are as near to unrelated
          texts as to related ones. Vectors of words in other alphabets are made of letters as
          well, but bring the forms of one word together, which the search by words does not;
        - its pieces are short and its letters rarely follow each other in English words
          ("zzzqqq", "asdf"): the vector represents the letters only.
        """
        words = [word for word in self._words(text) if unicodedata.category(word[0])[0] != "P"]
        if not words:
            return 1.0
        return sum(map(self._is_known, words)) / len(words)

    def limit_tokens(self, text: str) -> int:
        """Counts tokens without markers; an unknown word counts one for every three bytes.

        In `tokenize`, a word of more than 100 characters or with an emoji is a single ``[UNK]``.
        """
        return sum(map(self._limit_tokens_of, self._words(text)))

    def _limit_tokens_of(self, word: str) -> int:
        ids = self._word_ids(word)
        if ids != (self._unknown,):
            return len(ids)
        return math.ceil(len(word.encode("utf-8", "surrogatepass")) / _UNKNOWN_BYTES_PER_TOKEN)

    def encode(self, text: str, max_tokens: int) -> list[int]:
        """Returns the token ids with start and end markers, truncated to `max_tokens` in all."""
        return [self._start, *self.tokenize(text)[: max_tokens - 2], self._end]

    def join(self, first: Sequence[int], second: Sequence[int]) -> tuple[list[int], list[int]]:
        """Joins the token ids of two texts for a model that reads them together.

        Returns:
            The ids ``[CLS] first [SEP] second [SEP]``, and for each id 0 if it belongs to the first
            text, 1 for the second.
        """
        ids = [self._start, *first, self._end, *second, self._end]
        return ids, [0] * (len(first) + 2) + [1] * (len(second) + 1)

    def _is_known(self, word: str) -> bool:
        ids = self._word_ids(word)
        if ids == (self._unknown,):
            return False
        if not word.isascii():
            # NFC, because a decomposed Hangul syllable has several characters.
            return not UNSPACED.search(unicodedata.normalize("NFC", word))
        if len(ids) == 1 or len(word) < _LEAST_SPELLED_CHARS or not any(map(str.isalpha, word)):
            return True
        chars_per_piece = len(word) / len(ids)
        if chars_per_piece <= _SPELLED_CHARS_PER_PIECE:
            return False
        return chars_per_piece > _SHORT_CHARS_PER_PIECE or (
            self._letters.bits(word) <= _IMPROBABLE_BITS
        )

    def _words(self, text: str) -> list[str]:
        decomposed = unicodedata.normalize("NFD", text.translate(self._clean))
        return decomposed.translate(self._fold).split()

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


def _is_plain_word(token: str) -> bool:
    return len(token) >= _LEAST_WORD_CHARS and token.isascii() and token.isalpha()
