"""Following a file until it is ready."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from strata.core_memory.files.domain.files import File, file_not_found
from strata.core_memory.files.domain.ports import FileStore

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 1.0
_GROWTH = 1.25


async def watch(files: FileStore, file_id: str) -> AsyncIterator[File]:
    """Gives a file at once, and again whenever it has come further, until it is final.

    The row is looked up after growing pauses, 0.1 to 1 s: nothing is held in between, and
    any replica sees what any other one does.

    Raises:
        NotFoundError: It is not there, or not any more (``FILE_NOT_FOUND``).
    """
    seen: File | None = None
    pause = _FIRST_PAUSE_S
    while True:
        file = await files.get(file_id)
        if file is None:
            raise file_not_found(file_id)
        if file != seen:
            yield file
            seen, pause = file, _FIRST_PAUSE_S
        if file.state.is_final:
            return
        await asyncio.sleep(pause)
        pause = min(pause * _GROWTH, _LONGEST_PAUSE_S)
