"""The generations of a collection: which is searched, and which are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from strata.shared.search.embedding import EmbeddingModels
from strata.shared.search.vectors.index import Collection


@dataclass(frozen=True, slots=True)
class Serving:
    """The serving generation of a slot, and the model of its vectors.

    Attributes:
        slot: Key of the collection; see `slot_of`.
        generation: Name of the collection in the engine.
        model: Id of the embedding model.
        dim: Components of its vectors.
        normalized: Whether its vectors have length 1.
    """

    slot: str
    generation: str
    model: str
    dim: int
    normalized: bool = True


class Routes(Protocol):
    """The generations that hold the documents of one collection."""

    async def serving(self, *, fresh: bool = False) -> Serving:
        """Returns the generation to search; ``fresh`` bypasses the cache."""
        ...

    async def written(self) -> Sequence[Serving]:
        """Returns the generations to write, the serving one first.

        MUST be called after the texts to write were read: a rebuild that starts later reads them,
        too.
        """
        ...


class FixedRoutes:
    """Routes to a single, fixed generation of a model."""

    def __init__(self, collection: Collection, models: EmbeddingModels) -> None:
        self._one = first_generation(collection, models)

    async def serving(self, *, fresh: bool = False) -> Serving:
        """See `Routes.serving`."""
        return self._one

    async def written(self) -> Sequence[Serving]:
        """See `Routes.written`."""
        return [self._one]


def first_generation(collection: Collection, models: EmbeddingModels, model: str = "") -> Serving:
    """Returns the generation of a model before any rebuild.

    Args:
        collection: The collection.
        models: The configured models.
        model: The model, for a collection with one generation per model; empty for the default.
    """
    info = models.info(model) if model else models.default
    generation = collection.generation(info.id)
    return Serving(slot_of(collection, model), generation, info.id, info.dim, info.normalized)


def slot_of(collection: Collection, model: str = "") -> str:
    """Returns the key under which PostgreSQL stores the serving generation.

    Args:
        collection: The collection.
        model: For a collection with one generation per model, the model.
    """
    return f"{collection.name}:{model}" if model else collection.name
