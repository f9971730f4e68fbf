"""The worker that processes files: converts uploads to text, indexes them, removes deleted ones.

An upload in this process wakes it. It also polls, with one statement for all kinds of work, for
what other replicas or a crash left unfinished.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import BinaryIO

from strata.core_memory.files.index_sync import FileIndexSync
from strata.core_memory.files.leases import LeaseLostError, while_held
from strata.core_memory.files.store.contents import ContentStore, TextPage
from strata.core_memory.files.store.queue import ClaimedContent, FileQueue, FileWork
from strata.core_memory.files.text_extraction.formats import FileFormat
from strata.core_memory.files.text_extraction.pages import ParsedPage, UnreadableFileError
from strata.core_memory.files.text_extraction.reader import FileReader, ReadingBrokeOffError
from strata.protocol.errors import StrataError, UnavailableError
from strata.shared.foreground_work import ForegroundWork
from strata.shared.logs import get_logger
from strata.shared.polling import IdlePause, keep_polling

MAX_ATTEMPTS = 3
FILE_LEASE_S = 60.0
"""How long a claimed file is reserved without renewal; then another process takes it over."""
FILE_POLL_S = 1.0
"""Interval of polling for files of other replicas, longer while there are none.

An upload here wakes the worker.
"""
# About a megabyte of text in one statement.
_PAGES_AT_ONCE = 8
_IN_MEMORY_BYTES = 1024 * 1024
_LONGEST_PAUSE_S = 30.0
_UPLOADS_EVERY_S = 600.0
# Longer than any upload: the server ends every stream after a quarter of it.
_UPLOAD_AGE_S = 3600.0
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class IngestOptions:
    """Options of the worker; times in seconds.

    Attributes:
        readers: Files that are read concurrently.
        lease: How long a claimed file is reserved without renewal.
        poll: Interval of polling for work.
    """

    readers: int = 2
    lease: float = FILE_LEASE_S
    poll: float = FILE_POLL_S


class ContentReader:
    """Reads contents, one at a time.

    A text becomes visible when it is complete: pages are written first, the state changes
    last, and a new attempt first removes the pages of the previous one.

    Args:
        queue: The contents to read.
        contents: Stores bytes and pages.
        reader: Converts bytes to pages.
        lease: See `IngestOptions`.
        foreground: Each part of a text waits for this work, for a moment; None for no waiting.
    """

    def __init__(
        self,
        queue: FileQueue,
        contents: ContentStore,
        reader: FileReader,
        lease: float,
        foreground: ForegroundWork | None = None,
    ) -> None:
        self._queue = queue
        self._contents = contents
        self._reader = reader
        self._lease = lease
        self._foreground = foreground or ForegroundWork()

    async def read_next(self) -> bool:
        """Reads the content that has waited longest; False if there is none.

        Raises:
            UnavailableError: The database cannot be reached, or the disk is full; the content stays
                queued.
        """
        claim = await self._queue.claim_content(self._lease)
        if claim is None:
            return False
        try:
            await self._attempt(claim)
        except LeaseLostError:
            _log.info("the lease of a file was lost while reading it", project_id=claim.project_id)
        except (StrataError, asyncio.CancelledError):
            # Not the file's fault: release it, so that the next attempt can start at once.
            with contextlib.suppress(StrataError):
                await asyncio.shield(self._queue.release_content(claim, counted=False))
            raise
        return True

    async def _attempt(self, claim: ClaimedContent) -> None:
        if claim.attempt > MAX_ATTEMPTS:
            await self._give_up(
                claim, f"Reading the file failed {MAX_ATTEMPTS} times; it may be damaged."
            )
            return
        try:
            await while_held(
                self._read(claim),
                lambda: self._queue.hold_content(claim, self._lease),
                self._lease,
            )
        except UnreadableFileError as error:
            await self._give_up(claim, error.message)
        except ReadingBrokeOffError as error:
            await self._queue.release_content(claim, counted=True)
            _log.warning("reading a file was interrupted", attempt=claim.attempt, why=str(error))
        except OSError as error:
            # A full disk, or no process for the converter, says nothing about the file.
            reason = error.strerror or str(error)
            raise UnavailableError(f"files cannot be read now: {reason}") from error

    async def _give_up(self, claim: ClaimedContent, why: str) -> None:
        await self._contents.unreadable(claim.project_id, claim.content, why, attempt=claim.attempt)
        _log.info("a file cannot be read", project_id=claim.project_id, why=why)

    async def _read(self, claim: ClaimedContent) -> None:
        format_and_size = await self._queue.format_of(claim)
        if format_and_size is None:
            raise LeaseLostError
        file_format, size = FileFormat(format_and_size[0]), format_and_size[1]
        lines, chars = 0, -1
        if size:
            with _spool(file_format, size) as file:
                async for part in self._contents.parts(claim.project_id, claim.content):
                    await asyncio.to_thread(file.write, part)
                lines, chars = await self._write_pages(claim, file, file_format)
        is_done = await self._contents.readable(
            claim.project_id,
            claim.content,
            attempt=claim.attempt,
            line_count=lines,
            char_count=max(chars, 0),
        )
        if not is_done:
            raise LeaseLostError

    async def _write_pages(
        self, claim: ClaimedContent, file: BinaryIO, file_format: FileFormat
    ) -> tuple[int, int]:
        """Writes the pages; returns lines and characters, including line feeds between lines."""
        lines, chars = 0, -1
        batch: list[ParsedPage] = []
        async with aclosing(self._reader.pages(file, file_format)) as pages:
            async for page in pages:
                batch.append(page)
                lines += page.line_count
                chars += len(page.text) + 1
                if len(batch) == _PAGES_AT_ONCE:
                    await self._put(claim, batch)
                    batch = []
        if batch:
            await self._put(claim, batch)
        return lines, chars

    async def _put(self, claim: ClaimedContent, pages: Sequence[ParsedPage]) -> None:
        rows = [
            TextPage(page.number, page.first_line, page.line_count, page.text) for page in pages
        ]
        await self._foreground.give_way()
        if not await self._contents.put_pages(
            claim.project_id, claim.content, rows, attempt=claim.attempt
        ):
            raise LeaseLostError


class Ingest:
    """Processes files until cancelled.

    Args:
        reader: Converts files to text.
        index_sync: Sends files to the index.
        queue: Finds work, and removes abandoned uploads.
        options: See `IngestOptions`.
        foreground: Each step waits for this work, for a moment; None for no waiting.
    """

    def __init__(
        self,
        reader: ContentReader,
        index_sync: FileIndexSync,
        queue: FileQueue,
        options: IngestOptions | None = None,
        foreground: ForegroundWork | None = None,
    ) -> None:
        self._reader = reader
        self._index_sync = index_sync
        self._queue = queue
        self._options = options or IngestOptions()
        self._foreground = foreground or ForegroundWork()
        self._uploaded = asyncio.Event()
        self._read = asyncio.Event()
        self._sent = asyncio.Event()
        self._deleted = asyncio.Event()
        self._orphaned = asyncio.Event()
        self._busy = asyncio.Event()

    def wake(self) -> None:
        """Wakes the worker after an upload or a deletion."""
        self._uploaded.set()
        self._read.set()
        self._deleted.set()

    async def run(self) -> None:
        """Runs all tasks until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._options.readers):
                group.create_task(self._keep(self._read_next, self._uploaded))
            group.create_task(self._keep(self._send_next, self._read))
            group.create_task(self._keep(self._follow, self._sent))
            group.create_task(self._keep(self._index_sync.drop_next, self._deleted))
            group.create_task(self._keep(self._delete_next_content, self._orphaned))
            group.create_task(self._keep_looking())
            group.create_task(
                keep_polling(
                    self._delete_abandoned_uploads,
                    _UPLOADS_EVERY_S,
                    "parts of abandoned uploads are not removed",
                )
            )

    async def _read_next(self) -> bool:
        has_read = await self._reader.read_next()
        if has_read:
            self._read.set()
            # There may be more: wake the other readers.
            self._uploaded.set()
        return has_read

    async def _send_next(self) -> bool:
        has_sent = await self._index_sync.send_next()
        if has_sent:
            self._sent.set()
        return has_sent

    async def _follow(self) -> bool | None:
        has_more = await self._index_sync.follow()
        if self._index_sync.files_wait and not has_more:
            return None
        return has_more

    async def _delete_next_content(self) -> bool:
        return await self._queue.delete_next_content(self._options.lease)

    async def _delete_abandoned_uploads(self) -> None:
        count = await self._queue.delete_abandoned_uploads(_UPLOAD_AGE_S)
        if count:
            _log.info("parts of abandoned uploads were removed", parts=count)

    async def _keep(self, work: Callable[[], Awaitable[bool | None]], wake: asyncio.Event) -> None:
        """Calls `work` repeatedly.

        Args:
            work: Returns True if there may be more, False if there was nothing, and None if there
                is something to look at after the poll interval.
            wake: Ends the pause after a call. While there is no work, nothing else ends it.
        """
        pause = poll = self._options.poll
        while True:
            wake.clear()
            await self._foreground.give_way()
            try:
                worked = await work()
                if worked:
                    pause = poll
                    self._busy.set()
                    continue
            except StrataError as error:
                _log.warning(
                    "processing of files is paused",
                    reason=error.reason.value,
                    message=error.message,
                    pause=pause,
                )
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE_S)
                self._busy.set()
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(poll if worked is None else None):
                    await wake.wait()

    async def _keep_looking(self) -> None:
        """Wakes the tasks that have work, less often while there is none."""
        wakes = {
            FileWork.READ: self._uploaded,
            FileWork.SEND: self._read,
            FileWork.FOLLOW: self._sent,
            FileWork.DROP: self._deleted,
            FileWork.DELETE: self._orphaned,
        }
        poll = self._options.poll
        idle_pause = IdlePause(poll)
        while True:
            await idle_pause.wait(self._busy)
            if self._busy.is_set():
                # Work that was postponed by the work just done is due soon.
                self._busy.clear()
                await asyncio.sleep(poll)
            try:
                for kind in await self._queue.find_work():
                    wakes[kind].set()
            except StrataError as error:
                _log.warning("polling for work on files failed", error=repr(error))
            idle_pause.note(worked=False)


def _spool(file_format: FileFormat, size: int) -> BinaryIO:
    """Returns a temporary file; in memory if small, unless a converter needs a real file."""
    if size <= _IN_MEMORY_BYTES and not file_format.is_converted:
        return io.BytesIO()
    return tempfile.TemporaryFile(prefix="strata-")
