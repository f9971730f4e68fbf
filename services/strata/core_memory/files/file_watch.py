"""Watches a file until it is ready."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from strata.core_memory.files.domain.files import File, file_not_found
from strata.core_memory.files.domain.ports import FileStore

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 1.0
_GROWTH = 1.25


async def watch(files: FileStore, file_id: str) -> AsyncIterator[File]:
    """Yields a file at once, and again after every change, until its state is final.

    Polls the row at growing intervals, 0.1 to 1 s, so that changes by any replica are seen
    and no resource is held in between.

    Raises:
        NotFoundError: It does not exist, or was deleted (``FILE_NOT_FOUND``).
    """
    last_file: File | None = None
    pause = _FIRST_PAUSE_S
    while True:
        file = await files.get(file_id)
        if file is None:
            raise file_not_found(file_id)
        if file != last_file:
            yield file
            last_file, pause = file, _FIRST_PAUSE_S
        if file.state.is_final:
            return
        await asyncio.sleep(pause)
        pause = min(pause * _GROWTH, _LONGEST_PAUSE_S)
