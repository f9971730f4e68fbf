"""Receives uploads: stores the bytes part by part while they arrive."""

from __future__ import annotations

import asyncio
import hashlib
import mimetypes
from collections.abc import AsyncIterator, Callable

from strata.core_memory.domain.core_memory import Receipt
from strata.core_memory.files.domain.files import (
    PART_BYTES,
    File,
    NewFile,
    UploadHeader,
    content_key,
    file_too_large,
    folder_not_found,
)
from strata.core_memory.files.domain.ports import FolderStore, UploadStore
from strata.core_memory.files.text_extraction.formats import (
    HEAD_BYTES,
    READABLE,
    FileFormat,
    kind_of,
    refusal_of,
)
from strata.protocol.errors import FieldViolation, InvalidArgumentError, StrataError
from strata.shared.fair_slots import ANY_NUMBER, FairSlots
from strata.shared.ids import new_id
from strata.shared.logs import get_logger

_WRITERS = 4
_MEDIA_TYPES = {
    FileFormat.TEXT: "text/plain",
    FileFormat.MARKDOWN: "text/markdown",
    FileFormat.CODE: "text/plain",
    FileFormat.CSV: "text/csv",
    FileFormat.HTML: "text/html",
    FileFormat.PDF: "application/pdf",
    FileFormat.DOCX: "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
}
# Python's own table, because the system's table differs between hosts.
_NAMES = mimetypes.MimeTypes()

_log = get_logger(__name__)


class Uploads:
    """Receives files.

    Args:
        store: Stores the bytes.
        folders: Looks up folders.
        limit: Maximum size of a file, bytes.
        wake: Called after an upload, to wake the worker.
    """

    def __init__(
        self, store: UploadStore, folders: FolderStore, *, limit: int, wake: Callable[[], None]
    ) -> None:
        self._store = store
        self._folders = folders
        self.limit = limit
        self._wake = wake
        # Leaves database connections to other calls. Uploads are limited where they are accepted.
        self._writers = FairSlots(_WRITERS, "parts of uploads to store", queue=ANY_NUMBER)

    async def receive(
        self,
        header: UploadHeader,
        chunks: AsyncIterator[bytes],
        receipt: Callable[[str], Receipt[File]],
    ) -> File:
        """Stores a file.

        Args:
            header: The header of the upload.
            chunks: Its bytes.
            receipt: Makes the receipt of the request, given the hash of the bytes.

        Raises:
            ReplayedError: The request was done before.
            NotFoundError: There is no such folder (``FILE_NOT_FOUND``).
            AlreadyExistsError: ``NAME_TAKEN`` or ``REQUEST_ID_REUSED``.
            InvalidArgumentError: The format cannot be read.
            ResourceExhaustedError: Too many bytes (``MESSAGE_TOO_LARGE``).
        """
        if await self._folders.get(header.folder_id) is None:
            raise folder_not_found(header.folder_id)
        incoming = _Incoming(self._store, self._writers, header, self.limit)
        try:
            await incoming.read(chunks)
            file = await self._store.finish(receipt(incoming.sha256), incoming.file())
        except BaseException:
            await incoming.abandon()
            raise
        self._wake()
        return file


class _Incoming:
    """One running upload; buffers less than a part and a chunk."""

    def __init__(
        self, store: UploadStore, writers: FairSlots, header: UploadHeader, limit: int
    ) -> None:
        self._store = store
        self._writers = writers
        self._header = header
        self._limit = limit
        self._id = new_id("upload")
        self._hash = hashlib.sha256()
        self._buffer = bytearray()
        self._parts = 0
        self._put_last: asyncio.Future[None] | None = None
        self._size = 0
        self._format: FileFormat | None = None

    @property
    def sha256(self) -> str:
        """The hash of all bytes so far, in hex."""
        return self._hash.hexdigest()

    async def read(self, chunks: AsyncIterator[bytes]) -> None:
        """Stores all bytes."""
        async for chunk in chunks:
            self._size += len(chunk)
            if self._size > self._limit:
                raise file_too_large(self._limit)
            self._hash.update(chunk)
            self._buffer += chunk
            if len(self._buffer) >= HEAD_BYTES:
                await self._detect_format()
            while len(self._buffer) >= PART_BYTES:
                await self._put(PART_BYTES)
        await self._detect_format()
        if self._buffer:
            await self._put(len(self._buffer))

    def file(self) -> NewFile:
        """Returns the file that the stored parts make."""
        assert self._format is not None
        return NewFile(
            upload_id=self._id,
            part_count=self._parts,
            folder_id=self._header.folder_id,
            name=self._header.name,
            media_type=self._header.media_type or self._guess(),
            format=self._format.value,
            content_key=content_key(
                self.sha256, self._format.value, converted=self._format.is_converted
            ),
            size_bytes=self._size,
            replace=self._header.replace,
        )

    def _guess(self) -> str:
        assert self._format is not None
        guessed, encoding = _NAMES.guess_type(self._header.name)
        # Only for source code the name says more about the type than the bytes do.
        if self._format is FileFormat.CODE and guessed and not encoding:
            return guessed
        return _MEDIA_TYPES[self._format]

    async def abandon(self) -> None:
        """Removes the stored parts; if that fails, the worker removes them later."""
        if self._parts == 0:
            return
        # This task may be cancelled, when the client has disconnected.
        await asyncio.shield(self._withdraw())

    async def _withdraw(self) -> None:
        if self._put_last is not None:
            await asyncio.wait({self._put_last})
        try:
            await self._store.discard(self._id)
        except StrataError as error:
            _log.warning(
                "the worker will remove the parts of a failed upload", reason=error.reason.value
            )

    async def _detect_format(self) -> None:
        """Detects the format from the first bytes, once; raises if it cannot be read."""
        if self._format is not None:
            return
        name, head = self._header.name, bytes(self._buffer[:HEAD_BYTES])
        # In a thread, since guessing an encoding is slow.
        self._format = await asyncio.to_thread(kind_of, name, self._header.media_type, head)
        if self._format is None:
            raise InvalidArgumentError(
                refusal_of(name, head),
                violations=[FieldViolation("header.name", f"must be one of {READABLE}")],
            )

    async def _put(self, count: int) -> None:
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        part, self._parts = self._parts, self._parts + 1
        async with self._writers.slot():
            # Shielded: an interrupted statement could still take effect after the other parts
            # have been removed.
            self._put_last = asyncio.ensure_future(self._store.put(self._id, part, data))
            await asyncio.shield(self._put_last)
