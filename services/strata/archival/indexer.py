"""Keeps the index up with PostgreSQL: commit first, index after."""

from __future__ import annotations

import asyncio
import contextlib

from strata.archival.index import PassageIndex
from strata.archival.store import PendingPassages
from strata.shared.errors import StrataError
from strata.shared.logs import get_logger

_LONGEST_PAUSE_S = 30.0
# How often a quiet indexer looks whether the collection is still there.
_CHECK_EVERY_S = 15.0
_log = get_logger(__name__)


class Indexer:
    """Writes what is pending into the index, for ever.

    It is woken right after a commit in this process, and looks by itself every
    ``poll`` seconds for what other replicas or a crash left behind. Writing twice does
    no harm, so that replicas need not agree on who does it.
    """

    def __init__(
        self, pending: PendingPassages, index: PassageIndex, *, batch: int, poll: float
    ) -> None:
        self._pending = pending
        self._index = index
        self._batch = batch
        self._poll = poll
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Tells that something was committed."""
        self._wake.set()

    async def run(self) -> None:
        """Indexes until cancelled."""
        pause = self._poll
        checked = -_CHECK_EVERY_S
        loop = asyncio.get_running_loop()
        while True:
            try:
                if loop.time() - checked > _CHECK_EVERY_S:
                    await self._ensure()
                    checked = loop.time()
                if await self.index_pending():
                    continue
                pause = self._poll
            except StrataError as error:
                _log.warning(
                    "indexing waits", reason=error.reason.value, message=error.message, pause=pause
                )
                checked = -_CHECK_EVERY_S
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE_S)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            self._wake.clear()

    async def index_pending(self) -> bool:
        """Indexes one batch; returns whether there was anything to do.

        Raises:
            UnavailableError: Database, engine or model cannot be reached; nothing is lost.
        """
        found = await self._pending.find(self._batch)
        for project_id, ids in found.items():
            passages = await self._pending.load(project_id, ids)
            await self._index.write(project_id, passages)
            await self._pending.done(project_id, passages)
        return bool(found)

    async def _ensure(self) -> None:
        if await self._index.ensure():
            count = await self._pending.index_all_again()
            _log.info("the index is built anew", passages=count)
