"""The interface that every embedding model is used through."""

from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias, runtime_checkable

Kind: TypeAlias = Literal["query", "document"]

MULTILINGUAL_MODEL = "e5-use-multilingual-384"
"""Id of the default local model; defined here so that using it loads no inference engine."""
MULTILINGUAL_DIM = 384
MULTILINGUAL_UNRELATED = -0.05
"""Its `ModelInfo.unrelated`, chosen so that the floor of searches loses no true hits."""
ENGLISH_MODEL = "all-minilm-l6-v2-int8"
"""Id of the English local model, which was the default before."""
ENGLISH_DIM = 384


@runtime_checkable
class Embedder(Protocol):
    """Turns texts into vectors of one model.

    Vectors of two models MUST never be compared, so the `model_id` is stored with each vector.
    Implementations MUST return the same vector for the same text and kind, independent of the
    rest of the batch, and MUST NOT block the event loop.
    """

    @property
    def model_id(self) -> str:
        """Identifies the model and everything else that the vectors depend on."""

    @property
    def dim(self) -> int:
        """Components of a vector."""

    @property
    def max_tokens(self) -> int:
        """Tokens of one text that the model reads, by `count_tokens`; the rest is ignored."""

    @property
    def normalized(self) -> bool:
        """Whether every vector has length 1, so that cosine equals dot product."""

    async def embed(self, texts: Sequence[str], kind: Kind) -> list[list[float]]:
        """Embed texts, in order.

        Args:
            texts: Any number of texts, empty ones too.
            kind: Whether the texts are queries or documents; some models embed these differently.

        Raises:
            UnavailableError: The model cannot be reached now.
            FailedPreconditionError: The model is set up wrongly (key, dimension).
        """

    def known_share(self, text: str) -> float:
        """Share of the words of a text that the model knows, from 0 to 1.

        The vector of an unknown word (``[UNK]``, random letters, a script that the model was not
        trained with) is about equally similar to every text. Models without unknown words return
        1.
        """

    def limit_tokens(self, text: str) -> int:
        """Tokens of the text for the limit of a stored text.

        As `count_tokens`, but a word that a WordPiece model reads as one ``[UNK]`` of any length
        counts by its bytes.
        """

    def count_tokens(self, text: str) -> int:
        """Tokens of the text as the model counts them, including its markers.

        Exact where the tokenizer is local, otherwise an estimate that errs on the high side.
        """


class WrappedEmbedder:
    """Common part of embedders that embed with another one, and are equal to it in all else."""

    def __init__(self, inner: Embedder) -> None:
        self._inner = inner
        self.model_id = inner.model_id
        self.dim = inner.dim
        self.max_tokens = inner.max_tokens
        self.normalized = inner.normalized
        self.known_share = inner.known_share
        self.limit_tokens = inner.limit_tokens
        self.count_tokens = inner.count_tokens
