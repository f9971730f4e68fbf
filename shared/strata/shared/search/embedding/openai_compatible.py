"""Embeddings from OpenAI and from every server with a compatible `/v1/embeddings`."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx2
import numpy as np
import openai
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from strata.protocol.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    Reason,
    ResourceExhaustedError,
    StrataError,
    UnavailableError,
)
from strata.shared.fair_slots import ANY_NUMBER, FairSlots
from strata.shared.logs import get_logger
from strata.shared.redaction import key_redactor
from strata.shared.search.embedding.base import Kind

# OpenAI's tokenizers use three bytes or more per token in every script measured. The
# estimate errs on the high side, because a text that is too long is refused, not truncated.
_BYTES_PER_TOKEN = 3.0
_MAX_LOGGED = 500

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class OpenAiEmbeddingModel:
    """The properties of a model behind an OpenAI-compatible endpoint.

    Attributes:
        name: The model's name at the endpoint.
        model_id: Its id in Strata, if different.
        dim: Components of its vectors; another number in a reply is an error.
        max_tokens: Tokens of one text that the model accepts.
        request_dim: Send `dimensions`, for models that can shorten their vectors.
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


_MAX_CONCURRENCY = 4


class TimedHttpClient(DefaultAsyncHttpxClient):
    """An HTTP client of the SDK that limits the time of each answer as a whole.

    The timeouts of the SDK limit single reads: an endpoint that sends a byte now and then would
    keep a request, and its slot, indefinitely.

    Args:
        answer_s: Seconds from sending a request to the end of its answer.
        more: As for the SDK's client.
    """

    def __init__(self, answer_s: float, **more: Any) -> None:
        super().__init__(**more)
        self._answer_s = answer_s

    async def send(self, request: httpx2.Request, **more: Any) -> httpx2.Response:
        """Sends a request and reads its answer.

        Raises:
            httpx2.ReadTimeout: The answer has not ended in time.
        """
        try:
            async with asyncio.timeout(self._answer_s):
                return await super().send(request, **more)
        except TimeoutError:
            raise httpx2.ReadTimeout("the answer has not ended", request=request) from None


class OpenAiEmbedder:
    """An `Embedder` over HTTP. The caller passes the client and closes it.

    The client retries with back-off (429, 5xx, lost connections; it respects `Retry-After`):
    set its `max_retries`, and use a `TimedHttpClient`.
    """

    def __init__(self, client: AsyncOpenAI, model: OpenAiEmbeddingModel) -> None:
        self._client = client
        self._model = model
        # A query of one project must not wait for all texts that another one has indexed.
        self._slots = FairSlots(_MAX_CONCURRENCY, "requests for vectors", queue=ANY_NUMBER)
        self._redactor = key_redactor(client.api_key, str(client.base_url))

    @property
    def model_id(self) -> str:
        """See `Embedder.model_id`. A model with shortened vectors has a separate id."""
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
        """See `Embedder.normalized`. True, because vectors are scaled here."""
        return True

    def known_share(self, text: str) -> float:
        """See `Embedder.known_share`. Always 1: these models split unknown words into bytes."""
        return 1.0

    def limit_tokens(self, text: str) -> int:
        """See `Embedder.limit_tokens`."""
        return self.count_tokens(text)

    def count_tokens(self, text: str) -> int:
        """See `Embedder.count_tokens`. Estimated from the bytes, including the longer prefix."""
        prefix = max(len(self._model.query_prefix), len(self._model.document_prefix))
        size = len(text.encode("utf-8", "replace")) + prefix
        return math.ceil(size / _BYTES_PER_TOKEN) + 2

    async def embed(self, texts: Sequence[str], kind: Kind) -> list[list[float]]:
        """See `Embedder.embed`.

        Raises:
            UnavailableError: MODEL_UNAVAILABLE after all retries.
            ResourceExhaustedError: MODEL_RATE_LIMITED after all retries.
            FailedPreconditionError: The key is refused, or the vectors have another dimension.
            InvalidArgumentError: MODEL_REQUEST_REFUSED, for example a text that is too long.
        """
        prefix = self._model.query_prefix if kind == "query" else self._model.document_prefix
        batches = self._batches([_sendable(prefix + text) for text in texts])
        requests = [asyncio.ensure_future(self._request(batch)) for batch in batches]
        try:
            results = await asyncio.gather(*requests)
        finally:
            # One batch failed, so the results of the others are useless and could cost money.
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
        async with self._slots.slot():
            try:
                reply = await self._client.embeddings.create(
                    model=self._model.name,
                    input=batch,
                    # Not every compatible server supports base64, the SDK's default.
                    encoding_format="float",
                    dimensions=self._model.dim if self._model.request_dim else openai.omit,
                )
            # The SDK does not catch errors of the JSON parser (ValueError) and of unexpected
            # response bodies (TypeError).
            except (openai.OpenAIError, ValueError, TypeError) as error:
                text = self._redactor.text(str(error))[:_MAX_LOGGED]
                _log.warning("the embedding endpoint failed", model=self._model.name, error=text)
                # Without the cause, whose text can contain the key.
                raise self._translated(error) from None
        return self._checked(batch, [(item.index, item.embedding) for item in reply.data or ()])

    def _checked(self, batch: list[str], items: list[tuple[int, list[float]]]) -> list[list[float]]:
        """Returns the vectors in the order of the batch, scaled to length 1."""
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
                    f"the embedding model {self._model.name} returns {len(raw)} dimensions, "
                    f"but {self._model.dim} are configured",
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
                f"the embedding model {self._model.name} returned a zero vector",
                reason=Reason.MODEL_UNAVAILABLE,
                metadata={"model": self._model.name},
            )
        unit: list[float] = (vector / length).astype(np.float32).tolist()
        return unit

    def _translated(self, error: Exception) -> StrataError:
        """Maps an error of the SDK. The server's text is left out: it can repeat the input."""
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
    """Returns the text without lone surrogates; a space for empty text, which the API refuses."""
    return text.encode("utf-8", "replace").decode() or " "
