"""Embeddings from OpenAI and from every server that speaks its `/v1/embeddings`."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import openai
from openai import AsyncOpenAI

from strata.shared.embedding.base import Kind
from strata.shared.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    Reason,
    ResourceExhaustedError,
    StrataError,
    UnavailableError,
)
from strata.shared.logs import get_logger
from strata.shared.redaction import key_redactor

# OpenAI's tokenizers need three bytes or more per token in every script measured; the
# estimate errs on the high side because a text that is too long is refused, not cut.
_BYTES_PER_TOKEN = 3.0
_MAX_LOGGED = 500

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class OpenAiEmbeddingModel:
    """What has to be known of a model behind an OpenAI-compatible endpoint.

    Attributes:
        name: The model's name on the wire.
        model_id: What it is called here, if not the same.
        dim: Components of its vectors; another number in a reply is an error.
        max_tokens: Tokens of one text that the model takes.
        request_dim: Send `dimensions` (models that can shorten their vectors).
        query_prefix: Put before every query (E5: "query: ").
        document_prefix: Put before every document (E5: "passage: ").
        batch_texts: Texts in one request.
        batch_tokens: Estimated tokens in one request.
    """

    name: str
    dim: int
    max_tokens: int = 8192
    request_dim: bool = False
    query_prefix: str = ""
    document_prefix: str = ""
    batch_texts: int = 128
    batch_tokens: int = 200_000
    model_id: str = ""


class OpenAiEmbedder:
    """An `Embedder` over HTTP. The client is given, and closed, by whoever makes this.

    Retries with back-off (429, 5xx, cut connections; `Retry-After` is kept to) are the
    client's: set its `max_retries` and `timeout`.
    """

    def __init__(
        self, client: AsyncOpenAI, model: OpenAiEmbeddingModel, *, max_concurrency: int = 4
    ) -> None:
        self._client = client
        self._model = model
        self._slots = asyncio.Semaphore(max_concurrency)
        self._redactor = key_redactor(client.api_key, str(client.base_url))

    @property
    def model_id(self) -> str:
        """See `Embedder.model_id`. A shortened vector makes another model of it."""
        if self._model.model_id:
            return self._model.model_id
        if self._model.request_dim:
            return f"{self._model.name}@{self._model.dim}"
        return self._model.name

    @property
    def dim(self) -> int:
        """See `Embedder.dim`."""
        return self._model.dim

    @property
    def max_tokens(self) -> int:
        """See `Embedder.max_tokens`."""
        return self._model.max_tokens

    @property
    def normalized(self) -> bool:
        """See `Embedder.normalized`. True: vectors are scaled here, whatever the server does."""
        return True

    def known_share(self, text: str) -> float:
        """See `Embedder.known_share`. Such models cut unknown words into bytes."""
        return 1.0

    def limit_tokens(self, text: str) -> int:
        """See `Embedder.limit_tokens`."""
        return self.count_tokens(text)

    def count_tokens(self, text: str) -> int:
        """See `Embedder.count_tokens`. An estimate from the bytes, the longer prefix included."""
        prefix = max(len(self._model.query_prefix), len(self._model.document_prefix))
        size = len(text.encode("utf-8", "replace")) + prefix
        return math.ceil(size / _BYTES_PER_TOKEN) + 2

    async def embed(self, texts: Sequence[str], kind: Kind) -> list[list[float]]:
        """See `Embedder.embed`.

        Raises:
            UnavailableError: MODEL_UNAVAILABLE after all retries.
            ResourceExhaustedError: MODEL_RATE_LIMITED after all retries.
            FailedPreconditionError: The key is refused, or the vectors are not of `dim`.
            InvalidArgumentError: MODEL_REQUEST_REFUSED, for example a text that is too long.
        """
        prefix = self._model.query_prefix if kind == "query" else self._model.document_prefix
        batches = self._batches([_sendable(prefix + text) for text in texts])
        requests = [asyncio.ensure_future(self._request(batch)) for batch in batches]
        try:
            results = await asyncio.gather(*requests)
        finally:
            # One batch failed: what the others would bring is of no use, and may cost money.
            for request in requests:
                request.cancel()
        return [vector for vectors in results for vector in vectors]

    def _batches(self, inputs: list[str]) -> list[list[str]]:
        batches: list[list[str]] = []
        tokens = 0
        for text in inputs:
            count = self.count_tokens(text)
            full = batches and (
                len(batches[-1]) >= self._model.batch_texts
                or tokens + count > self._model.batch_tokens
            )
            if not batches or full:
                batches.append([])
                tokens = 0
            batches[-1].append(text)
            tokens += count
        return batches

    async def _request(self, batch: list[str]) -> list[list[float]]:
        async with self._slots:
            try:
                reply = await self._client.embeddings.create(
                    model=self._model.name,
                    input=batch,
                    # Not every compatible server knows base64, the SDK's own choice.
                    encoding_format="float",
                    dimensions=self._model.dim if self._model.request_dim else openai.omit,
                )
            # The SDK lets errors of the JSON parser (ValueError) and of a body of another
            # shape (TypeError) through.
            except (openai.OpenAIError, ValueError, TypeError) as error:
                text = self._redactor.text(str(error))[:_MAX_LOGGED]
                _log.warning("the embedding endpoint failed", model=self._model.name, error=text)
                # Without its cause, whose text can repeat the key.
                raise self._translated(error) from None
        return self._checked(batch, [(item.index, item.embedding) for item in reply.data or ()])

    def _checked(self, batch: list[str], items: list[tuple[int, list[float]]]) -> list[list[float]]:
        """Vectors in the order of the batch, scaled to length 1."""
        if sorted(index for index, _ in items) != list(range(len(batch))):
            raise UnavailableError(
                f"the embedding endpoint answered {len(batch)} texts with {len(items)} vectors",
                reason=Reason.MODEL_UNAVAILABLE,
                metadata={"model": self._model.name},
            )
        vectors = []
        for _, raw in sorted(items, key=lambda item: item[0]):
            if len(raw) != self._model.dim:
                raise FailedPreconditionError(
                    f"the embedding model {self._model.name} gives {len(raw)} dimensions, "
                    f"configured are {self._model.dim}",
                    reason=Reason.MODEL_NOT_CONFIGURED,
                    metadata={"model": self._model.name, "dim": str(len(raw))},
                )
            vectors.append(self._unit(raw))
        return vectors

    def _unit(self, raw: list[float]) -> list[float]:
        vector = np.asarray(raw, dtype=np.float64)
        length = float(np.linalg.norm(vector))
        if not math.isfinite(length) or length == 0.0:
            raise UnavailableError(
                f"the embedding model {self._model.name} gave a vector without direction",
                reason=Reason.MODEL_UNAVAILABLE,
                metadata={"model": self._model.name},
            )
        unit: list[float] = (vector / length).astype(np.float32).tolist()
        return unit

    def _translated(self, error: Exception) -> StrataError:
        """The SDK's error as one of ours. The server's text can hold the input: not passed on."""
        metadata = {"model": self._model.name}
        if isinstance(error, openai.RateLimitError):
            return ResourceExhaustedError(
                "the embedding endpoint limits the rate",
                reason=Reason.MODEL_RATE_LIMITED,
                metadata=metadata,
            )
        if isinstance(error, (openai.AuthenticationError, openai.PermissionDeniedError)):
            return FailedPreconditionError(
                "the embedding endpoint refuses the key",
                reason=Reason.MODEL_AUTHENTICATION,
                metadata=metadata,
            )
        if isinstance(error, openai.APIStatusError) and 400 <= error.status_code < 500:
            return InvalidArgumentError(
                f"the embedding endpoint refuses the request with status {error.status_code}",
                reason=Reason.MODEL_REQUEST_REFUSED,
                metadata=metadata,
            )
        return UnavailableError(
            "the embedding endpoint cannot be reached or fails",
            reason=Reason.MODEL_UNAVAILABLE,
            metadata=metadata,
        )


def _sendable(text: str) -> str:
    """The text without lone surrogates; the API refuses an empty one, so a space stands for it."""
    return text.encode("utf-8", "replace").decode() or " "
