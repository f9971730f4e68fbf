"""Administration of the indexes of a service: their state, and rebuilds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from strata.api.common.v1 import search_pb2 as pb
from strata.protocol.errors import (
    FailedPreconditionError,
    FieldViolation,
    InvalidArgumentError,
    PermissionDeniedError,
    Reason,
)
from strata.shared.convert.enums import EnumTable
from strata.shared.idempotency.keys import check_request_id, request_id_reused
from strata.shared.partitions import DEFAULT_PARTITION
from strata.shared.search.embedding import EmbeddingModels
from strata.shared.search.indexing.generations import Routes, Serving
from strata.shared.search.indexing.indexer import IndexLag
from strata.shared.search.reindexing.ledger import Ledger, no_reindex, not_in_phase
from strata.shared.search.reindexing.reindexer import Rebuildable
from strata.shared.search.reindexing.state import Phase, Reindex

NAMES: Mapping[str, str] = {
    "passages": "passages",
    "file-chunks": "files",
    "messages": "messages",
}
"""Slot to the name of its collection on the wire."""
_PHASES = EnumTable(pb.ReindexPhase, Phase)


@dataclass(frozen=True, slots=True)
class ManagedIndex:
    """An index whose state can be read and that can be rebuilt.

    Attributes:
        routes: The generations of the index.
        rebuild: Rebuilds the index.
        count: Returns how many texts the index should hold.
        lag: Returns the backlog of the index.
    """

    routes: Routes
    rebuild: Rebuildable
    count: Callable[[], Awaitable[int]]
    lag: Callable[[], Awaitable[IndexLag]]


class IndexAdmin:
    """Serves the index methods of a service's API.

    Args:
        ledger: The stored generations and rebuilds; None if the service has no index.
        models: The configured models; None if the service has no index.
        indexes: The indexes by their name on the wire.
        allowed: Whether API keys may use these methods.
        wake: Wakes the reindexer.
        partition: The partition whose indexes they are.
    """

    def __init__(
        self,
        ledger: Ledger | None,
        models: EmbeddingModels | None,
        indexes: Mapping[str, ManagedIndex],
        *,
        allowed: bool = True,
        wake: Callable[[], None] = lambda: None,
        partition: str = DEFAULT_PARTITION,
    ) -> None:
        self._partition = partition
        self._ledger = ledger
        self._models = models
        self._indexes = indexes
        self._allowed = allowed
        self._wake = wake

    def check_partition(self, partition: str) -> None:
        """Checks that a request means these indexes; an empty partition means the default one.

        Raises:
            InvalidArgumentError: There is no such partition.
        """
        if (partition or DEFAULT_PARTITION) != self._partition:
            raise InvalidArgumentError(
                "This service has no such partition.",
                violations=[FieldViolation("partition", "must be one of this installation")],
            )

    async def state(self, name: str) -> pb.IndexState:
        """Returns the serving generation, the backlog and the latest rebuild.

        Raises:
            InvalidArgumentError: There is no such index.
            PermissionDeniedError: API keys may not use this method.
            FailedPreconditionError: ``MODEL_NOT_CONFIGURED``: indexing is switched off.
        """
        index, ledger, models = self._open(name)
        serving = await index.routes.serving(fresh=True)
        lag = await index.lag()
        state = pb.IndexState(
            collection=name,
            embedding_model=serving.model,
            embedding_dim=serving.dim,
            normalized=serving.normalized,
            generation=serving.generation,
            waiting=lag.waiting,
            lag_seconds=lag.seconds,
            embedding_models=models.ids,
        )
        latest = await ledger.latest(serving.slot)
        if latest is not None:
            state.reindex.CopyFrom(to_proto(latest))
        return state

    async def start(self, name: str, model: str, request_id: str) -> pb.Reindex:
        """Starts to rebuild an index.

        Raises:
            InvalidArgumentError: There is no such index or model.
            FailedPreconditionError: ``IN_USE``: another rebuild is not finished.
            AlreadyExistsError: ``REQUEST_ID_REUSED``.
        """
        index, ledger, models = self._open(name)
        check_request_id(request_id)
        serving = await index.routes.serving(fresh=True)
        info = models.known(model or serving.model)
        place = index.rebuild.place(serving)
        target = Serving(
            serving.slot, place.collection.generation(info.id), info.id, info.dim, info.normalized
        )
        job = await ledger.start(serving, target, await index.count(), request_id)
        if job.target.slot != serving.slot or (model and job.target.model != info.id):
            raise request_id_reused(request_id)
        self._wake()
        return to_proto(job)

    async def finish(self, name: str) -> pb.Reindex:
        """Drops the old collection after the new one serves; may be repeated.

        Raises:
            NotFoundError: ``REINDEX_NOT_FOUND``.
            FailedPreconditionError: ``IN_USE``: the new one does not serve, or was rolled back.
        """
        index, job = await self._latest(name)
        moved = await finished(index.rebuild, job)
        self._wake()
        return to_proto(moved)

    async def roll_back(self, name: str) -> pb.Reindex:
        """Makes the old collection serve again; may be repeated.

        Raises:
            NotFoundError: ``REINDEX_NOT_FOUND``.
            FailedPreconditionError: ``IN_USE``: the rebuild has ended.
        """
        index, job = await self._latest(name)
        moved = await rolled_back(index.rebuild, job)
        self._wake()
        return to_proto(moved)

    async def _latest(self, name: str) -> tuple[ManagedIndex, Reindex]:
        index, ledger, _ = self._open(name)
        slot = (await index.routes.serving()).slot
        job = await ledger.latest(slot)
        if job is None:
            raise no_reindex(name)
        return index, job

    def _open(self, name: str) -> tuple[ManagedIndex, Ledger, EmbeddingModels]:
        if not self._allowed:
            raise PermissionDeniedError(
                "This server does not let keys see or rebuild the indexes that projects share.",
                reason=Reason.SCOPE_MISSING,
            )
        if self._ledger is None or self._models is None:
            raise FailedPreconditionError(
                "Indexing is switched off in the settings of this service.",
                reason=Reason.MODEL_NOT_CONFIGURED,
            )
        if name not in self._indexes:
            names = ", ".join(sorted(self._indexes))
            violation = FieldViolation("collection", f"must be one of {names}")
            raise InvalidArgumentError(f"There is no index {name!r} here.", violations=[violation])
        return self._indexes[name], self._ledger, self._models


async def finished(rebuild: Rebuildable, job: Reindex) -> Reindex:
    """Finishes a rebuild whose new collection serves, before its grace period ends.

    Raises:
        FailedPreconditionError: ``IN_USE``: the new one does not serve, or was rolled back.
    """
    if job.phase is Phase.FINISHED:
        return job
    if job.phase is not Phase.SWITCHED:
        raise not_in_phase(job)
    return await rebuild.move(job, Phase.FINISHED, job.note, job.share)


async def rolled_back(rebuild: Rebuildable, job: Reindex) -> Reindex:
    """Rolls a rebuild back.

    Raises:
        FailedPreconditionError: ``IN_USE``: the rebuild has ended.
    """
    if job.phase in (Phase.ROLLED_BACK, Phase.CANCELLED):
        return job
    if not job.phase.is_active:
        raise not_in_phase(job)
    to = Phase.ROLLED_BACK if job.phase is Phase.SWITCHED else Phase.CANCELLED
    return await rebuild.move(job, to, job.note, job.share)


def to_proto(job: Reindex) -> pb.Reindex:
    """Returns the wire form of a rebuild."""
    wire = pb.Reindex(
        id=job.id,
        collection=NAMES[job.slot],
        archive_id=job.archive_id,
        phase=_PHASES.to_proto[job.phase],
        old_model=job.source.model,
        new_model=job.target.model,
        total=job.total,
        done=job.progress.done,
        checked=job.share.asked,
        found_by_old=job.share.old,
        found_by_new=job.share.new,
        note=job.note,
    )
    wire.create_time.FromDatetime(job.create_time)
    wire.phase_time.FromDatetime(job.phase_time)
    return wire
