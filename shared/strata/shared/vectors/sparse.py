"""BM25 as sparse vectors, made on our side so that every engine gets the same ones.

Words are split, folded and stemmed by the engine's own BM25 encoder. Scripts that put no
spaces between words are cut into overlapping pairs of characters first: the encoder's
multilingual tokenizer segments by dictionaries and guesses the language per text, so that
a word of a Japanese sentence is not the word that a query of it alone becomes.
"""

import unicodedata

from qdrant_edge import Bm25, Bm25Config, TokenizerType

from strata.shared.unspaced_scripts import UNSPACED
from strata.shared.vectors.index import SparseVector

# Passages and messages are short. On three chats of the BEAM benchmark 64 was at least as
# good in hybrid search as 128 and the encoder's own 256.
_AVERAGE_TOKENS = 64.0


class SparseEncoder:
    """Encodes documents and queries. Takes some 40 microseconds for a sentence."""

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
        """Term weights of a text that is searched; empty if it has stop words only."""
        vector = self._bm25.embed_document(_prepare(text, single_characters=True))
        return SparseVector(tuple(vector.indices), tuple(vector.values))

    def query(self, text: str) -> SparseVector:
        """Terms of a text that is searched for; empty if it has stop words only."""
        vector = self._bm25.embed_query(_prepare(text, single_characters=False))
        return SparseVector(tuple(vector.indices), tuple(vector.values))


def unspaced_pairs(text: str) -> list[str]:
    """Returns the pairs of neighbours in the runs of scripts without spaces, each once.

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
    """The pairs of neighbours; for documents also each character, so that one alone is found."""
    if len(run) == 1:
        return f" {run} "
    terms = [run[place : place + 2] for place in range(len(run) - 1)]
    if single_characters:
        terms += run
    return f" {' '.join(terms)} "
