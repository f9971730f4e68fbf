"""An upload that is cancelled while a part is being sent to the database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from file_stores import Stores
from strata.core_memory.files.domain.files import PART_BYTES, UploadHeader
from strata.core_memory.files.store.uploads import PostgresUploadStore
from strata.core_memory.files.uploads import Uploads


class OnItsWay(PostgresUploadStore):
    """Completes a cancelled statement a little later, as PostgreSQL may."""

    def __init__(self, stores: Stores) -> None:
        super().__init__(stores.database, stores.uploads._clock)
        self.sent = asyncio.Event()
        self.arrived = asyncio.Event()
        self._arriving: list[Any] = []

    async def put(self, upload_id: str, part: int, data: bytes) -> None:
        if part == 0:
            return await super().put(upload_id, part, data)

        async def arrive() -> None:
            await asyncio.sleep(0.1)
            await PostgresUploadStore.put(self, upload_id, part, data)
            self.arrived.set()

        self._arriving.append(asyncio.ensure_future(arrive()))
        self.sent.set()
        await asyncio.shield(self._arriving[-1])
        return None


def _no_receipt(_: str) -> Any:
    raise AssertionError("the file must not be made")


async def test_a_part_that_is_stored_after_the_cancellation_is_removed(stores: Stores) -> None:
    folder = await stores.folder()
    late = OnItsWay(stores)
    uploads = Uploads(late, stores.folders, limit=1 << 30, wake=lambda: None)

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(2):
            yield b"x" * PART_BYTES

    header = UploadHeader(folder_id=folder.id, name="a.txt", media_type="", replace=False)
    receiving = asyncio.create_task(uploads.receive(header, chunks(), _no_receipt))
    await late.sent.wait()
    receiving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await receiving
    await late.arrived.wait()
    assert await stores.counts() == {"folders": 1}
