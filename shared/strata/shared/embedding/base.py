"""The interface that every embedding model is used through."""

from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias, runtime_checkable

Kind: TypeAlias = Literal["query", "document"]

LOCAL_MODEL = "all-minilm-l6-v2-int8"
"""Id of the model that comes with Strata; here so that naming it loads no inference engine."""
LOCAL_DIM = 384


@runtime_checkable
class Embedder(Protocol):
    """Turns texts into vectors of one model.

    Vectors of two models MUST never be compared: whoever stores a vector stores the
    `model_id` with it. Implementations MUST return the same vector for the same text and
    kind, whatever else is in the batch, and MUST NOT block the event loop.
    """

    @property
    def model_id(self) -> str:
        """Names the model and everything else that decides the vector."""

    @property
    def dim(self) -> int:
        """Components of a vector."""

    @property
    def max_tokens(self) -> int:
        """Tokens of one text that the model reads, by `count_tokens`; the rest is not seen."""

    @property
    def normalized(self) -> bool:
        """Whether every vector has length 1, so that cosine equals dot product."""

    async def embed(self, texts: Sequence[str], kind: Kind) -> list[list[float]]:
        """Embed texts, in order.

        Args:
            texts: Any number of texts, empty ones too.
            kind: Whether the texts ask or are asked for; some models tell them apart.

        Raises:
            UnavailableError: The model cannot be reached now.
            FailedPreconditionError: The model is set up wrongly (key, dimension).
        """

    def known_share(self, text: str) -> float:
        """Share of the words of a text that the model has a meaning for, from 0 to 1.

        A word without one (``[UNK]``, random letters, a script that the model was not trained
        with) has a vector that is as near to any text as to any other. Models without such words
        return 1.
        """

    def limit_tokens(self, text: str) -> int:
        """Tokens that the text counts against the limit of a stored text.

        Those of `count_tokens`, but a word that a WordPiece model reads as one ``[UNK]``, however
        long it is, counts by its bytes.
        """

    def count_tokens(self, text: str) -> int:
        """Tokens of the text as the model counts them, its own markers included.

        Exact where the tokenizer is local, otherwise an estimate that errs on the high side.
        """
