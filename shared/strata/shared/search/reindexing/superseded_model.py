"""Automatically rebuilds indexes whose model was the default of an earlier release."""

from __future__ import annotations

from collections.abc import Mapping

from strata.protocol.errors import FailedPreconditionError
from strata.shared.logs import get_logger
from strata.shared.search.embedding import EmbeddingModels
from strata.shared.search.embedding.base import ENGLISH_MODEL, MULTILINGUAL_MODEL
from strata.shared.search.indexing.generations import Serving
from strata.shared.search.reindexing.index_admin import ManagedIndex
from strata.shared.search.reindexing.ledger import Ledger

SUPERSEDED: Mapping[str, str] = {MULTILINGUAL_MODEL: ENGLISH_MODEL}
"""Default model to the one that was the default before."""
_log = get_logger(__name__)


class SupersededModel:
    """A `Backlog` that starts the rebuild of indexes with the superseded default model.

    It runs once for each index: after a rollback, or if the new index did not pass the check, the
    old one stays. A service whose settings name the superseded model keeps it.

    Args:
        ledger: The stored rebuilds.
        models: The configured models.
        indexes: The indexes by their name on the wire.
    """

    def __init__(
        self, ledger: Ledger, models: EmbeddingModels, indexes: Mapping[str, ManagedIndex]
    ) -> None:
        self._ledger = ledger
        self._models = models
        self._waiting = dict(indexes) if models.default.id in SUPERSEDED else {}

    async def ensure(self) -> None:
        """Starts the rebuilds that are due."""
        for name, index in list(self._waiting.items()):
            serving = await index.routes.serving(fresh=True)
            if serving.model == SUPERSEDED[self._models.default.id] and not await self._start(
                name, index, serving
            ):
                continue
            del self._waiting[name]

    async def advance(self) -> bool:
        """See `Backlog.advance`; the `Reindexer` carries the rebuilds out."""
        return False

    async def _start(self, name: str, index: ManagedIndex, serving: Serving) -> bool:
        default = self._models.default
        collection = index.rebuild.place(serving).collection
        target = Serving(
            serving.slot,
            collection.generation(default.id),
            default.id,
            default.dim,
            default.normalized,
        )
        request = f"superseded-model/{target.generation}"
        try:
            job = await self._ledger.start(serving, target, await index.count(), request)
        except FailedPreconditionError:
            return False  # Another rebuild of this index is not finished.
        _log.info(
            "an index gets the new default model",
            collection=name,
            old_model=serving.model,
            new_model=default.id,
            phase=job.phase.value,
        )
        return True
