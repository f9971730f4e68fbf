"""The default embedding model: two multilingual models on this machine, joined to one vector.

multilingual-e5-small knows 100 languages and long texts; the Universal Sentence Encoder is better
at short sentences and at questions in another language than the text, in the 16 languages that it
was trained on. Their vectors are centred, joined and projected to the 384 principal directions
(decision 0132); of texts in other languages only the first model counts (decision 0184).
"""

from __future__ import annotations

import asyncio
import math
import string
import unicodedata
from collections.abc import Sequence
from importlib import resources

import numpy as np
import numpy.typing as npt

from strata.shared import heap_trim
from strata.shared.search.embedding import e5
from strata.shared.search.embedding.base import MULTILINGUAL_DIM as DIM
from strata.shared.search.embedding.base import MULTILINGUAL_MODEL as MODEL_ID
from strata.shared.search.embedding.base import Kind
from strata.shared.search.embedding.e5 import E5Model
from strata.shared.search.embedding.model_threads import ModelThreads
from strata.shared.search.embedding.sentence_encoder import SentenceEncoder
from strata.shared.search.short_queries import is_short
from strata.shared.search.unspaced_scripts import UNSPACED

MAX_TOKENS = e5.MAX_TOKENS

PROJECTION = "multilingual.npz"
"""The file of the centres and the projection, by `tests/data/embedding/make_projection.py`."""
UNTRAINED_DIRECTIONS = "untrained_languages.npz"
"""The file of the directions, by `tests/data/embedding/make_untrained_directions.py`."""
# The markers of E5's training.
_PREFIXES: dict[Kind, str] = {"query": "query:", "document": "passage:"}
_LONGEST_PREFIX = 2
_MARKERS = 2
# A word whose information exceeds 6 nats plus 4 nats a letter counts as random letters.
_BASE_NATS = 6.0
_NATS_PER_LETTER = 4.0
_BYTES_PER_TOKEN = 3
# Part of the squared length of a vector in the directions of untrained languages: up to the first a
# text counts as one in a trained language, from the second on as one in an untrained language.
_LEAST_UNTRAINED = 0.15
_MOST_UNTRAINED = 0.3
# Shorter words are abbreviations and single letters.
_LEAST_WORD_CHARS = 4
_Floats = npt.NDArray[np.float32]


class MultilingualEmbedder:
    """The default embedder: 384 components, unit length, 512 tokens. Create it with `load`.

    Attributes:
        documents_at_once: Documents that can be embedded concurrently.
        cores_wanted: See `ModelThreads.cores_wanted`.
    """

    def __init__(
        self, transformer: E5Model, encoder: SentenceEncoder, threads: ModelThreads
    ) -> None:
        self._transformer = transformer
        self._encoder = encoder
        self._threads = threads
        self.documents_at_once = threads.documents_at_once
        self.cores_wanted = threads.cores_wanted
        self._tokenizer = transformer.tokenizer
        self._prefixes = {
            kind: self._tokenizer.tokenize(prefix) for kind, prefix in _PREFIXES.items()
        }
        folder = resources.files("strata.shared.search.embedding") / "data"
        with (folder / UNTRAINED_DIRECTIONS).open("rb") as stream, np.load(stream) as stored:
            self._untrained: _Floats = stored["directions"].astype(np.float32)
        with (folder / PROJECTION).open("rb") as stream, np.load(stream) as stored:
            self._projection = stored["projection"].astype(np.float32)
            self._short_queries: tuple[_Floats, _Floats] = (
                stored["short_query"],
                stored["short_unspaced_query"],
            )
            self._centers: dict[Kind, tuple[_Floats, _Floats]] = {
                "query": (stored["transformer_query"], stored["encoder_query"]),
                "document": (stored["transformer_document"], stored["encoder_document"]),
            }

    @classmethod
    async def load(cls) -> MultilingualEmbedder:
        """Checks the weights of the installed packages and loads them.

        Raises:
            FailedPreconditionError: A package is not installed.
            DataLossError: A file is not the one that this release was tested with.
        """
        threads = ModelThreads()
        try:
            # Both are loaded at once: each waits for the disk and for code without the GIL.
            transformer = threads.run(E5Model.load)
            encoder = await asyncio.to_thread(SentenceEncoder.load)
            model = cls(await transformer, encoder, threads)
            await threads.run(model._release_memory)
        except BaseException:
            threads.abandon()
            raise
        return model

    @property
    def model_id(self) -> str:
        """See `Embedder.model_id`."""
        return MODEL_ID

    @property
    def dim(self) -> int:
        """See `Embedder.dim`."""
        return DIM

    @property
    def max_tokens(self) -> int:
        """See `Embedder.max_tokens`."""
        return MAX_TOKENS

    @property
    def normalized(self) -> bool:
        """See `Embedder.normalized`."""
        return True

    def known_share(self, text: str) -> float:
        """See `Embedder.known_share`.

        Words whose pieces are improbable for their length (random letters) and emoji count as
        unknown: their vectors are close to each other, but a search for one means that one only.
        """
        words = [word for word in self._tokenizer.words(text) if any(map(_is_no_punctuation, word))]
        if not words:
            return 1.0
        return sum(map(self._is_known, words)) / len(words)

    def limit_tokens(self, text: str) -> int:
        """See `Embedder.limit_tokens`.

        Pieces can be long in other scripts than Latin (a phrase of Japanese, a row of emoji), where
        tokenizers of chat models use a token for about three bytes.
        """
        return _MARKERS + sum(map(self._limit_tokens_of, self._tokenizer.words(text)))

    def count_tokens(self, text: str) -> int:
        """See `Embedder.count_tokens`. Exact for the transformer, with the longer prefix."""
        return len(self._tokenizer.tokenize(text)) + _MARKERS + _LONGEST_PREFIX

    async def embed(self, texts: Sequence[str], kind: Kind) -> list[list[float]]:
        """See `Embedder.embed`."""
        return await self._threads.embed(
            texts, kind, lambda text: self._embed_one(text, kind).tolist(), self._release_memory
        )

    async def close(self) -> None:
        """Ends the threads after they have processed earlier calls."""
        await self._threads.close()

    def _release_memory(self) -> None:
        self._transformer.release_pages()
        self._encoder.release_pages()
        heap_trim.trim_heap()

    def _embed_one(self, text: str, kind: Kind) -> _Floats:
        limit = MAX_TOKENS - _MARKERS
        by_transformer, by_encoder = self._centers[kind]
        ids = [*self._prefixes[kind], *self._tokenizer.tokenize(text, limit)]
        first = self._transformer.embed(ids)
        second = self._encoder.embed(self._encoder.tokenizer.tokenize(text, limit))
        sentence = _unit(second - by_encoder)
        weight = self._sentence_weight(sentence)
        joined = np.concatenate([_unit(first - by_transformer), weight * sentence])
        vector = _unit(joined @ self._projection)
        if kind == "query" and is_short(text):
            # Vectors of single words have a common direction, regardless of their meaning: the
            # direction of short texts ("Noted."). In Chinese and Japanese it is another one.
            vector = _unit(vector - self._short_queries[UNSPACED.search(text) is not None])
        return vector

    def _sentence_weight(self, sentence: _Floats) -> float:
        """Returns the weight of a vector of the sentence encoder: 0 to 1.

        Its vectors of texts in a language that it was not trained on say little except that. They
        are close to each other, in a few directions that texts in other languages hardly have.
        """
        energy = float(np.sum((self._untrained @ sentence) ** 2))
        share = (_MOST_UNTRAINED - energy) / (_MOST_UNTRAINED - _LEAST_UNTRAINED)
        return min(max(share, 0.0), 1.0)

    def _limit_tokens_of(self, word: str) -> int:
        count = len(self._tokenizer.word_ids(word))
        if word.isascii():
            return count
        size = len(word.encode()) - len(word.encode("ascii", "ignore"))
        return max(count, math.ceil(size / _BYTES_PER_TOKEN))

    def _is_known(self, word: str) -> bool:
        if not (self._tokenizer.is_covered(word) and any(map(str.isalnum, word))):
            return False
        letters = word.strip(string.punctuation)
        if len(letters) < _LEAST_WORD_CHARS or not (letters.isascii() and letters.isalpha()):
            return True
        # Capitals are rare in the vocabulary.
        return self._tokenizer.nats(letters.lower()) <= _BASE_NATS + _NATS_PER_LETTER * len(letters)


def _unit(vector: _Floats) -> _Floats:
    result: _Floats = vector / max(float(np.linalg.norm(vector)), 1e-12)
    return result


def _is_no_punctuation(char: str) -> bool:
    return unicodedata.category(char)[0] != "P"
