"""Sends chunks of files to the archival service, which indexes them for search by meaning."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from itertools import groupby

from strata.core_memory.files.domain.chunker import Chunker
from strata.core_memory.files.domain.ports import Chunk, FileIndex
from strata.core_memory.files.leases import LeaseLostError, while_held
from strata.core_memory.files.store.contents import ContentStore
from strata.core_memory.files.store.queue import (
    ClaimedFile,
    DroppedFile,
    FileQueue,
    WaitingFile,
)
from strata.core_memory.files.text_extraction.formats import FileFormat
from strata.protocol.errors import (
    AbortedError,
    CancelledError,
    DeadlineExceededError,
    ResourceExhaustedError,
    StrataError,
    UnavailableError,
)
from strata.shared.foreground_work import ForegroundWork
from strata.shared.logs import get_logger

NOT_SET_UP = (
    "Semantic search of files is not set up: this server has no worker key"
    " (STRATA_CORE_MEMORY_WORKER_TOKEN_KEY). The file can be read and searched by words."
)

_PASSING = (
    CancelledError,
    DeadlineExceededError,
    ResourceExhaustedError,
    UnavailableError,
)
_FILES_AT_ONCE = 500
_SHORT_PAUSE_S = 2.0
_LONG_PAUSE_S = 600.0
_DROP_LEASE_S = 60.0
_log = get_logger(__name__)


class FileIndexSync:
    """Sends chunks of files to the index, reads its progress, and removes deleted files.

    Args:
        queue: The work to do.
        contents: Reads the text of files.
        index: The index; None if the service has no key to call it.
        lease: How long a claimed file is reserved without renewal, seconds.
        foreground: Each page of a file waits for this work, for a moment; None for no waiting.

    Attributes:
        files_wait: Whether `follow` has last seen files that are not indexed as a whole.
    """

    def __init__(
        self,
        queue: FileQueue,
        contents: ContentStore,
        index: FileIndex | None,
        lease: float,
        foreground: ForegroundWork | None = None,
    ) -> None:
        self._queue = queue
        self._contents = contents
        self._index = index
        self._lease = lease
        self._foreground = foreground or ForegroundWork()
        self._after = ("", "")
        self._is_explained = False
        self.files_wait = False

    async def send_next(self) -> bool:
        """Sends the file that has waited longest; False if there is none.

        Raises:
            UnavailableError: The database or the index cannot be reached; the file stays queued.
        """
        if self._index is None:
            await self._explain()
            return False
        claim = await self._queue.claim_file(self._lease)
        if claim is None:
            return False
        try:
            await while_held(
                self._send(self._index, claim),
                lambda: self._queue.hold_file(claim, self._lease),
                self._lease,
            )
        except LeaseLostError:
            # The file was deleted or replaced; the index may have its old chunks.
            await self._queue.send_again(claim.project_id, claim.file_id)
        except AbortedError:
            # Concerns this file only: it was deleted or replaced while its chunks were sent.
            await self._queue.postpone(claim, _SHORT_PAUSE_S, "")
        except _PASSING:
            await self._queue.postpone(claim, _SHORT_PAUSE_S, "")
            raise
        except StrataError as error:
            await self._queue.postpone(
                claim, _LONG_PAUSE_S, f"Semantic search rejected the file: {error.message}"
            )
            _log.warning(
                "the archival service rejected a file",
                project_id=claim.project_id,
                file_id=claim.file_id,
                reason=error.reason.value,
                message=error.message,
            )
        return True

    async def follow(self) -> bool:
        """Updates the progress of some files; True if there are more to update."""
        if self._index is None:
            return False
        waiting = await self._queue.waiting(self._after, _FILES_AT_ONCE)
        self.files_wait = bool(waiting or self._after[0])
        for project_id, files in groupby(waiting, key=lambda file: file.project_id):
            await self._follow(self._index, project_id, list(files))
        has_more = len(waiting) == _FILES_AT_ONCE
        self._after = (waiting[-1].project_id, waiting[-1].file_id) if has_more else ("", "")
        return has_more

    async def drop_next(self) -> bool:
        """Removes deleted and unreadable files from the index; False if there were none."""
        if self._index is None:
            return False
        dropped = await self._queue.claim_dropped(_DROP_LEASE_S, _FILES_AT_ONCE)
        dropped.sort(key=lambda file: file.project_id)
        for project_id, files in groupby(dropped, key=lambda file: file.project_id):
            await self._drop(self._index, project_id, list(files))
        return bool(dropped)

    async def _send(self, index: FileIndex, claim: ClaimedFile) -> None:
        count = await index.index(
            claim.project_id, claim.folder_id, claim.file_id, self._chunks(claim)
        )
        await self._queue.sent(claim, count)

    async def _chunks(self, claim: ClaimedFile) -> AsyncIterator[Sequence[Chunk]]:
        """Yields lists of chunks of a file, one list per page of text."""
        name, format_ = await self._queue.name_of(claim)
        chunker = Chunker(name, with_headings=bool(format_) and FileFormat(format_).has_headings)
        async for page in self._contents.pages(claim.project_id, claim.content):
            await self._foreground.give_way()
            if chunks := list(chunker.feed(page.text.split("\n"))):
                yield chunks
        if chunks := list(chunker.end()):
            yield chunks

    async def _follow(
        self, index: FileIndex, project_id: str, files: Sequence[WaitingFile]
    ) -> None:
        progress = await index.progress(project_id, [file.file_id for file in files])
        await self._queue.progress(project_id, files, progress)
        for file in files:
            if file.file_id not in progress:
                await self._queue.send_again(project_id, file.file_id)

    async def _drop(self, index: FileIndex, project_id: str, files: Sequence[DroppedFile]) -> None:
        ids = [file.id for file in files]
        file_ids = [id_ for id_ in ids if not _is_folder(id_)]
        folder_ids = [id_ for id_ in ids if _is_folder(id_)]
        await index.drop(project_id, file_ids=file_ids, folder_ids=folder_ids)
        if file_ids:
            await self._queue.send_dropped_again(project_id, file_ids)
        await self._queue.dropped(files)

    async def _explain(self) -> None:
        if await self._queue.explain(NOT_SET_UP) and not self._is_explained:
            self._is_explained = True
            _log.warning("files are not indexed", why=NOT_SET_UP)


def _is_folder(id_: str) -> bool:
    return id_.startswith("folder-")
