"""Sparse vectors for BM25, made by Strata so that all engines get the same ones.

The engine's own BM25 encoder splits, folds and stems words. Scripts without spaces between words
are split into overlapping pairs of characters first. The encoder's multilingual tokenizer would
use dictionaries and guess the language per text, so that a Japanese word could be tokenized
differently in a sentence and in a query.
"""

import unicodedata

from qdrant_edge import Bm25, Bm25Config, TokenizerType

from strata.shared.search.unspaced_scripts import UNSPACED
from strata.shared.search.vectors.index import SparseVector

# Passages and messages are short. On three chats of the BEAM benchmark 64 was at least as
# good in hybrid search as 128 and the encoder's own 256.
_AVERAGE_TOKENS = 64.0


class SparseEncoder:
    """Encodes documents and queries; takes about 40 microseconds for a sentence."""

    def __init__(self) -> None:
        self._bm25 = Bm25(
            Bm25Config(
                language="english",
                tokenizer=TokenizerType.Word,
                ascii_folding=True,
                avg_len=_AVERAGE_TOKENS,
            )
        )

    def document(self, text: str) -> SparseVector:
        """Returns the term weights of a document; empty if it has stop words only."""
        vector = self._bm25.embed_document(_prepare(text, single_characters=True))
        return SparseVector(tuple(vector.indices), tuple(vector.values))

    def query(self, text: str) -> SparseVector:
        """Returns the terms of a query; empty if it has stop words only."""
        vector = self._bm25.embed_query(_prepare(text, single_characters=False))
        return SparseVector(tuple(vector.indices), tuple(vector.values))


def unspaced_pairs(text: str) -> list[str]:
    """Returns the distinct pairs of adjacent characters in runs of scripts without spaces.

    A run of one character counts as a pair.
    """
    runs = UNSPACED.findall(unicodedata.normalize("NFKC", text))
    return list(
        dict.fromkeys(
            run[place : place + 2] for run in runs for place in range(max(1, len(run) - 1))
        )
    )


def _prepare(text: str, *, single_characters: bool) -> str:
    # Compatibility forms (half-width kana, full-width Latin, ligatures) are the same words;
    # lone surrogates cannot be encoded.
    clean = unicodedata.normalize("NFKC", text.encode("utf-8", "replace").decode())
    return UNSPACED.sub(lambda match: _pairs(match.group(), single_characters), clean)


def _pairs(run: str, single_characters: bool) -> str:
    """Returns pairs of adjacent characters; for documents also single ones, to be found alone."""
    if len(run) == 1:
        return f" {run} "
    terms = [run[place : place + 2] for place in range(len(run) - 1)]
    if single_characters:
        terms += run
    return f" {' '.join(terms)} "
