"""Brings rebuilds forward, a batch at a time.

Everything that a step needs stands in PostgreSQL and is claimed there, so that any replica goes
on where another one died. Every step can be repeated.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from strata.shared.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    StrataError,
)
from strata.shared.logs import get_logger
from strata.shared.vectors.index import Where
from strata.shared.vectors.reindex.check import StoredText, compare, refusal_reason
from strata.shared.vectors.reindex.ledger import Ledger
from strata.shared.vectors.reindex.state import (
    CopyProgress,
    FoundCounts,
    Phase,
    Reindex,
    ReindexConfig,
    Serving,
)
from strata.shared.vectors.text_index import Entry, TextIndex

# How long a rebuild is put off by new texts that wait for the index, for one batch.
_GIVE_WAY_S = 1.0
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0
POLL_FACTOR = 5
"""How much longer than an indexer a reindexer waits between looks: it seldom has work."""
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Batch:
    """Texts of one project that a new collection gets.

    Attributes:
        project_id: The project.
        entries: The texts.
        versions: Of each text by id, what tells that it was changed meanwhile.
        cursor: The key after which the next batch begins.
        seen: Keys up to there, those of texts that the collection does not hold included.
    """

    project_id: str
    entries: Sequence[Entry]
    versions: Mapping[str, int]
    cursor: tuple[str, ...]
    seen: int


class Rebuildable(Protocol):
    """A collection that can be filled from PostgreSQL, whole or one archive of it."""

    def place(self, generation: Serving) -> TextIndex:
        """Returns the index that a generation belongs to."""
        ...

    async def source(self, job: Reindex) -> Serving:
        """Returns the generation that serves until the switch, as it is now."""
        ...

    async def batch(self, job: Reindex, limit: int) -> Batch | None:
        """Returns the texts after the cursor, in the order of their keys; None at the end."""
        ...

    async def settle(self, job: Reindex, batch: Batch) -> None:
        """Sees to what was changed or deleted while a batch was written.

        The indexer writes changes into both collections, but the batch can overwrite a change
        with what it read before: such a text waits for the index again, and one that is gone
        is removed.
        """
        ...

    async def texts(self, job: Reindex, keys: Sequence[tuple[str, str]]) -> list[StoredText]:
        """Returns those of some texts that are still there."""
        ...

    def where(self, job: Reindex) -> Where:
        """Returns what the check asks both collections for."""
        ...

    async def move(self, job: Reindex, phase: Phase, note: str, share: FoundCounts) -> Reindex:
        """Brings the rebuild into another phase, and lets serve what serves then.

        Raises:
            FailedPreconditionError: It is in another phase by now.
        """
        ...

    async def clean(self, job: Reindex) -> None:
        """Removes from the engine what the rebuild has left over."""
        ...


class Reindexer:
    """The `Backlog` of rebuilds. Give it an `Indexer` of its own.

    Args:
        ledger: What is rebuilt.
        collections: What can be rebuilt, by slot; an archive of a slot by `archive_of` it.
        config: How.
        quiet: Waits until no new text waits for the index, so many seconds at most: these
            come first.
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
            # It is new, or was lost: then what the cursor says is in it is not.
            await target.make(job.target)
            job = replace(job, progress=CopyProgress())
        # A process may have died between a collection and the indexes of its fields.
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
        _log.info("a new index was checked", slot=job.slot, phase=moved.phase.value, **_of(share))

    async def _fail(self, job: Reindex, collection: Rebuildable, why: str) -> None:
        if job.phase not in (Phase.BUILDING, Phase.CHECKING):
            _log.warning("a rebuild waits", slot=job.slot, phase=job.phase.value, message=why)
            self._pause(job)
            return
        _log.warning("a rebuild has failed", slot=job.slot, message=why)
        try:
            await collection.move(job, Phase.FAILED, why, job.share)
        except FailedPreconditionError:
            return  # It was cancelled meanwhile: that is what failed the step.

    async def _wait(self, job: Reindex, collection: Rebuildable, error: StrataError) -> None:
        since = self._pause(job)
        _log.warning(
            "a rebuild waits", slot=job.slot, reason=error.reason.value, message=error.message
        )
        if since > self._config.patience:
            await self._fail(job, collection, f"For {since:.0f} seconds: {error.message}")

    def _pause(self, job: Reindex) -> float:
        """Puts a rebuild off; returns for how many seconds it has been in trouble."""
        now = asyncio.get_running_loop().time()
        began, pause, _ = self._trouble.get(job.id, (now, _FIRST_PAUSE_S / 2, now))
        pause = min(pause * 2, _LONGEST_PAUSE_S)
        self._trouble[job.id] = (began, pause, now + pause)
        return now - began

    def _is_paused(self, job: Reindex) -> bool:
        until = self._trouble.get(job.id, (0.0, 0.0, 0.0))[2]
        return asyncio.get_running_loop().time() < until


def archive_of(slot: str) -> str:
    """Returns under which name a `Reindexer` is told how to rebuild one archive of a slot."""
    return f"{slot}/archive"


def _after(before: CopyProgress, batch: Batch, sample: int) -> CopyProgress:
    """Reservoir sampling (Vitter 1985, algorithm R): each text has the same chance."""
    kept = list(before.sample)
    for number, entry in enumerate(batch.entries, start=before.done + 1):
        key = (batch.project_id, entry.id)
        if len(kept) < sample:
            kept.append(key)
        elif (place := random.randrange(number)) < sample:  # noqa: S311 - no secret
            kept[place] = key
    return CopyProgress(batch.cursor, before.done + batch.seen, kept)


def _of(share: FoundCounts) -> dict[str, int]:
    return {"asked": share.asked, "old": share.old, "new": share.new}
