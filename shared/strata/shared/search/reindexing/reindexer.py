"""Advances rebuilds of collections, one batch at a time.

The state of a rebuild is in PostgreSQL and is claimed there, so that any replica can continue after
another one has died. Every step can be repeated.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from strata.protocol.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    StrataError,
)
from strata.shared.logs import get_logger
from strata.shared.search.indexing.generations import Serving
from strata.shared.search.indexing.text_index import IndexEntry, TextIndex
from strata.shared.search.reindexing.check import StoredText, compare, refusal_reason
from strata.shared.search.reindexing.ledger import Ledger
from strata.shared.search.reindexing.state import (
    CopyProgress,
    FoundCounts,
    Phase,
    Reindex,
    ReindexConfig,
)
from strata.shared.search.vectors.index import Where

# The longest pause of a rebuild before a batch while new texts wait for the index.
_GIVE_WAY_S = 1.0
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0
POLL_FACTOR = 5
"""Factor by which a reindexer polls less often than an indexer, because it seldom has work."""
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of texts of one project to write to a new collection.

    Attributes:
        project_id: The project.
        entries: The texts.
        versions: Version of each text by id, to detect changes made meanwhile.
        cursor: The key after which the next batch begins.
        seen: Number of keys up to the cursor, including texts that are not indexed.
    """

    project_id: str
    entries: Sequence[IndexEntry]
    versions: Mapping[str, int]
    cursor: tuple[str, ...]
    seen: int


class Rebuildable(Protocol):
    """A collection, or one archive of it, that can be rebuilt from PostgreSQL."""

    def place(self, generation: Serving) -> TextIndex:
        """Returns the index that a generation belongs to."""
        ...

    async def source(self, job: Reindex) -> Serving:
        """Returns the generation that serves until the switch, as currently stored."""
        ...

    async def batch(self, job: Reindex, limit: int) -> Batch | None:
        """Returns the texts after the cursor, in the order of their keys; None at the end."""
        ...

    async def settle(self, job: Reindex, batch: Batch) -> None:
        """Repairs texts that were changed or deleted while a batch was written.

        The indexer writes changes to both collections, but the batch can overwrite a change with
        an older text. Such a text is marked as waiting again, and a deleted one is removed.
        """
        ...

    async def texts(self, job: Reindex, keys: Sequence[tuple[str, str]]) -> list[StoredText]:
        """Returns the given texts that still exist."""
        ...

    def where(self, job: Reindex) -> Where:
        """Returns the conditions of the check's searches."""
        ...

    async def move(self, job: Reindex, phase: Phase, note: str, share: FoundCounts) -> Reindex:
        """Moves the rebuild to another phase, and sets the generation that then serves.

        Raises:
            FailedPreconditionError: The rebuild has moved to another phase meanwhile.
        """
        ...

    async def clean(self, job: Reindex) -> None:
        """Removes from the engine the generation that is no longer needed."""
        ...


class Reindexer:
    """The `Backlog` of rebuilds. Run it with its own `Indexer`.

    Args:
        ledger: The stored rebuilds.
        collections: The collections by slot; for the archives of a slot, by `archive_of` the slot.
        config: Configuration of rebuilds.
        quiet: Waits until no new text waits for the index, for at most that many seconds, because
            new texts have priority.
    """

    def __init__(
        self,
        ledger: Ledger,
        collections: Mapping[str, Rebuildable],
        config: ReindexConfig,
        quiet: Callable[[float], Awaitable[None]] | None = None,
    ) -> None:
        self._ledger = ledger
        self._collections = collections
        self._config = config
        self._quiet = quiet
        self._trouble: dict[str, tuple[float, float, float]] = {}

    async def ensure(self) -> None:
        """See `Backlog.ensure`; collections are made by the steps."""

    async def advance(self) -> bool:
        """See `Backlog.advance`."""
        slots = list(self._collections)
        async with self._ledger.claim(slots, self._config.grace) as job:
            if job is None or self._is_paused(job):
                return False
            if self._quiet is not None:
                await self._quiet(_GIVE_WAY_S)
            name = archive_of(job.slot) if job.archive_id else job.slot
            collection = self._collections[name]
            try:
                await self._step(job, collection)
            except (FailedPreconditionError, InvalidArgumentError, DataLossError) as error:
                await self._fail(job, collection, error.message)
            except StrataError as error:
                await self._wait(job, collection, error)
                return False
            self._trouble.pop(job.id, None)
        return True

    async def _step(self, job: Reindex, collection: Rebuildable) -> None:
        match job.phase:
            case Phase.BUILDING:
                await self._build(job, collection)
            case Phase.CHECKING:
                await self._check(job, collection)
            case Phase.SWITCHED:
                await collection.move(job, Phase.FINISHED, "", job.share)
            case _:
                await collection.clean(job)
                await self._ledger.cleaned(job)

    async def _build(self, job: Reindex, collection: Rebuildable) -> None:
        target = collection.place(job.target)
        if not await target.has(job.target):
            # It is new or was lost, so the copy starts from the beginning.
            await target.make(job.target)
            job = replace(job, progress=CopyProgress())
        # A process may have died after it created the collection and before its field indexes.
        await target.prepare(job.target)
        batch = await collection.batch(job, self._config.batch)
        if batch is None:
            in_place = await collection.source(job) == job.target
            share = job.share
            await collection.move(job, Phase.FINISHED if in_place else Phase.CHECKING, "", share)
            return
        if batch.entries:
            await target.put(batch.project_id, batch.entries, replace=True, into=[job.target])
            await collection.settle(job, batch)
        await self._ledger.advance(job, _after(job.progress, batch, self._config.sample))

    async def _check(self, job: Reindex, collection: Rebuildable) -> None:
        source = await collection.source(job)
        comparison = await compare(
            (collection.place(source), source),
            (collection.place(job.target), job.target),
            await collection.texts(job, job.progress.sample),
            collection.where(job),
        )
        why, share = refusal_reason(comparison, self._config.share), comparison.share
        moved = await collection.move(job, Phase.FAILED if why else Phase.SWITCHED, why, share)
        _log.info("new index compared", slot=job.slot, phase=moved.phase.value, **_of(share))

    async def _fail(self, job: Reindex, collection: Rebuildable, why: str) -> None:
        if job.phase not in (Phase.BUILDING, Phase.CHECKING):
            _log.warning("a rebuild waits", slot=job.slot, phase=job.phase.value, message=why)
            self._pause(job)
            return
        _log.warning("a rebuild has failed", slot=job.slot, message=why)
        try:
            await collection.move(job, Phase.FAILED, why, job.share)
        except FailedPreconditionError:
            return  # The rebuild was cancelled meanwhile, which made the step fail.

    async def _wait(self, job: Reindex, collection: Rebuildable, error: StrataError) -> None:
        since = self._pause(job)
        _log.warning(
            "a rebuild waits", slot=job.slot, reason=error.reason.value, message=error.message
        )
        if since > self._config.patience:
            await self._fail(job, collection, f"For {since:.0f} seconds: {error.message}")

    def _pause(self, job: Reindex) -> float:
        """Postpones a rebuild; returns for how many seconds it has been failing."""
        now = asyncio.get_running_loop().time()
        began, pause, _ = self._trouble.get(job.id, (now, _FIRST_PAUSE_S / 2, now))
        pause = min(pause * 2, _LONGEST_PAUSE_S)
        self._trouble[job.id] = (began, pause, now + pause)
        return now - began

    def _is_paused(self, job: Reindex) -> bool:
        until = self._trouble.get(job.id, (0.0, 0.0, 0.0))[2]
        return asyncio.get_running_loop().time() < until


def archive_of(slot: str) -> str:
    """Returns the key of a slot's archives among the `Reindexer`'s collections."""
    return f"{slot}/archive"


def _after(before: CopyProgress, batch: Batch, sample: int) -> CopyProgress:
    """Reservoir sampling (Vitter 1985, algorithm R): each text has the same chance."""
    sampled = list(before.sample)
    for number, entry in enumerate(batch.entries, start=before.done + 1):
        key = (batch.project_id, entry.id)
        if len(sampled) < sample:
            sampled.append(key)
        elif (place := random.randrange(number)) < sample:  # noqa: S311 - no secret
            sampled[place] = key
    return CopyProgress(batch.cursor, before.done + batch.seen, sampled)


def _of(share: FoundCounts) -> dict[str, int]:
    return {"asked": share.asked, "old": share.old, "new": share.new}
