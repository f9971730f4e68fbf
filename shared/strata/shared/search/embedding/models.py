"""The configured embedding models of a process, by id."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from strata.protocol.errors import (
    FailedPreconditionError,
    FieldViolation,
    InvalidArgumentError,
    Reason,
)
from strata.shared.search.embedding.base import (
    MULTILINGUAL_MODEL,
    MULTILINGUAL_UNRELATED,
    Embedder,
)


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The properties of a model that are known without opening it.

    Attributes:
        id: Its `Embedder.model_id`, which is stored with every vector.
        dim: Components of its vectors.
        normalized: Whether its vectors have length 1.
        unrelated: Cosine of texts that have nothing in common: about 0 for most models, 0.7 for the
            E5 family. The scale of a fused score begins here.
    """

    id: str
    dim: int
    normalized: bool = True
    unrelated: float = 0.0


class EmbeddingModels:
    """Models by id; each is opened when it is first needed.

    Args:
        default: Id of the default model.
        models: All known models, each with a function that opens it.
    """

    def __init__(
        self,
        default: str,
        models: Iterable[tuple[ModelInfo, Callable[[], Awaitable[Embedder]]]],
    ) -> None:
        self._makers: dict[str, Callable[[], Awaitable[Embedder]]] = {}
        self._infos: dict[str, ModelInfo] = {}
        for info, make in models:
            self._infos[info.id] = info
            self._makers[info.id] = make
        self._open: dict[str, Embedder] = {}
        self._opening = asyncio.Lock()
        self.default = self._infos[default]

    @classmethod
    def of(cls, *embedders: Embedder) -> EmbeddingModels:
        """Returns a collection of models that are already open; the first is the default."""

        def factory_of(embedder: Embedder) -> Callable[[], Awaitable[Embedder]]:
            async def give() -> Embedder:
                return embedder

            return give

        unrelated = {MULTILINGUAL_MODEL: MULTILINGUAL_UNRELATED}
        described = [
            (
                ModelInfo(
                    embedder.model_id,
                    embedder.dim,
                    embedder.normalized,
                    unrelated.get(embedder.model_id, 0.0),
                ),
                factory_of(embedder),
            )
            for embedder in embedders
        ]
        return cls(embedders[0].model_id, described)

    @property
    def ids(self) -> list[str]:
        """Ids of all known models, sorted."""
        return sorted(self._infos)

    def known(self, model_id: str) -> ModelInfo:
        """Returns the model that a request names; the default one for an empty name.

        Raises:
            InvalidArgumentError: There is no such model; the message lists the known ones.
        """
        info = self._infos.get(model_id or self.default.id)
        if info is None:
            model_ids = ", ".join(self.ids)
            problem = f"is not an embedding model of this server: {model_ids}"
            raise InvalidArgumentError(
                f"There is no embedding model {model_id!r} here; there are {model_ids}.",
                violations=[FieldViolation("embedding_model", problem)],
            )
        return info

    def info(self, model_id: str) -> ModelInfo:
        """Returns the model of stored vectors.

        Raises:
            FailedPreconditionError: ``MODEL_NOT_CONFIGURED``: the settings no longer name it.
        """
        info = self._infos.get(model_id)
        if info is None:
            raise FailedPreconditionError(
                f"the embedding model {model_id} is no longer among the settings",
                reason=Reason.MODEL_NOT_CONFIGURED,
                metadata={"model": model_id},
            )
        return info

    async def get(self, model_id: str) -> Embedder:
        """Returns a model, and opens it if necessary.

        Raises:
            FailedPreconditionError: ``MODEL_NOT_CONFIGURED``: the settings do not name it, or its
                weights are missing.
            DataLossError: The weights do not match this release.
        """
        self.info(model_id)
        if (opened := self._open.get(model_id)) is not None:
            return opened
        async with self._opening:
            if model_id not in self._open:
                self._open[model_id] = await self._makers[model_id]()
            return self._open[model_id]
