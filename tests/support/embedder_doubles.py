"""Embedding models without weights, for tests of code that uses vectors."""

from __future__ import annotations

from collections.abc import Sequence

from strata.shared.search.embedding import Kind


class EmbedderDouble:
    """A model whose vocabulary has all words; subclasses define the vectors.

    Attributes:
        calls: The texts and the kind of each call, in order.
    """

    model_id = "double"
    dim = 2
    max_tokens = 512
    normalized = False

    def __init__(self) -> None:
        self.calls: list[tuple[list[str], Kind]] = []

    def vector_of(self, text: str, kind: Kind) -> list[float]:
        """Returns the vector of a text; by default the same vector for all texts."""
        del text, kind
        return [1.0, 0.0]

    async def embed(self, texts: Sequence[str], kind: Kind) -> list[list[float]]:
        """See `Embedder.embed`."""
        self.calls.append((list(texts), kind))
        return [self.vector_of(text, kind) for text in texts]

    def texts_of(self, kind: Kind) -> list[str]:
        """Returns the texts of one kind that were embedded, in order."""
        return [text for texts, called_kind in self.calls if called_kind == kind for text in texts]

    def known_share(self, text: str) -> float:
        """See `Embedder.known_share`."""
        del text
        return 1.0

    def limit_tokens(self, text: str) -> int:
        """See `Embedder.limit_tokens`."""
        return self.count_tokens(text)

    def count_tokens(self, text: str) -> int:
        """See `Embedder.count_tokens`."""
        return len(text)
