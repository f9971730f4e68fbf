"""Reads files: decodes text in this process, and converts other formats in a child process.

Decoding takes bounded memory and time for any bytes, and less than starting a process.
Converters have no such bounds, so each file gets a child process with limits.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import strata
from strata.core_memory.files.text_extraction import frames
from strata.core_memory.files.text_extraction.formats import FileFormat
from strata.core_memory.files.text_extraction.pages import ParsedPage, UnreadableFileError, pages_of
from strata.core_memory.files.text_extraction.text_decoder import text_of
from strata.shared.logs import get_logger

_CHILD = "strata.core_memory.files.text_extraction.child"
_STDERR_BYTES = 4096
# Messages on stderr when memory runs out in native code, where Python cannot catch it.
_OUT_OF_MEMORY = ("allocate memory", "MemoryError", "bad_alloc")
_log = get_logger(__name__)


class ReadingBrokeOffError(Exception):
    """The child process ended without a result: it was killed, or crashed.

    Another attempt may succeed.
    """


@dataclass(frozen=True, slots=True)
class ReadingLimits:
    """Limits for reading one file.

    Attributes:
        seconds: Time to wait for the child, and the processor time that it gets.
        memory_bytes: Address space of the child.
    """

    seconds: float = 300.0
    memory_bytes: int = 1024 * 1024 * 1024


class FileReader:
    """Converts files to pages of text.

    Args:
        limits: For each file that needs a converter.
    """

    def __init__(self, limits: ReadingLimits | None = None) -> None:
        self._limits = limits or ReadingLimits()

    async def pages(
        self, file: BinaryIO, file_format: FileFormat
    ) -> AsyncGenerator[ParsedPage, None]:
        """Yields the pages of a file as they are read; close the generator if you stop early.

        Args:
            file: The bytes. Formats that are converted need a real file with a descriptor.
            file_format: The format of the file.

        Raises:
            UnreadableFileError: It cannot be read.
            ReadingBrokeOffError: The child process died; another attempt may succeed.
        """
        if file_format.is_converted:
            async with _Child.started(file, file_format, self._limits) as child:
                async for page in child.pages():
                    yield page
            return
        reading = pages_of(text_of(file))
        while True:
            read = await asyncio.to_thread(lambda: next(reading, None))
            if read is None:
                return
            yield read


class _Child:
    """A child process, its frames and its stderr."""

    def __init__(self, process: asyncio.subprocess.Process, limits: ReadingLimits) -> None:
        self._process = process
        self._limits = limits
        # Only the time of waiting for the child counts, not the time of processing its pages.
        self._remaining_s = limits.seconds
        self._stderr = asyncio.create_task(self._read_stderr())

    @classmethod
    @asynccontextmanager
    async def started(
        cls, file: BinaryIO, file_format: FileFormat, limits: ReadingLimits
    ) -> AsyncIterator[_Child]:
        file.flush()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-s", "-P", "-B", "-X", "utf8", "-m", _CHILD),
            *(file_format.value, str(os.getpid())),
            *(str(max(1, round(limits.seconds))), str(limits.memory_bytes)),
            stdin=file,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=_environment(),
        )
        child = cls(process, limits)
        try:
            yield child
        finally:
            await asyncio.shield(child.end())

    async def pages(self) -> AsyncIterator[ParsedPage]:
        while True:
            kind, body = await self._frame()
            if kind == frames.PAGE:
                yield self._page(body)
            elif kind == frames.END:
                return
            elif kind == frames.UNREADABLE:
                raise UnreadableFileError(body.decode("utf-8", "replace"))
            else:
                raise ReadingBrokeOffError("the child process sent an invalid frame")

    async def end(self) -> None:
        """Kills the child and waits for its end."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        self._stderr.cancel()
        await asyncio.gather(self._stderr, return_exceptions=True)

    async def _frame(self) -> tuple[bytes, bytes]:
        assert self._process.stdout is not None
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(self._remaining_s):
                header = await self._process.stdout.readexactly(frames.HEADER.size)
                kind, size = frames.HEADER.unpack(header)
                if size > frames.MAX_BODY_BYTES:
                    raise ReadingBrokeOffError("the child process sent an invalid frame")
                return kind, await self._process.stdout.readexactly(size)
        except TimeoutError:
            raise self._too_slow() from None
        except asyncio.IncompleteReadError:
            raise await self._why_it_died() from None
        finally:
            self._remaining_s = max(0.0, self._remaining_s - (loop.time() - began))

    def _page(self, body: bytes) -> ParsedPage:
        try:
            return frames.decode_page(body)
        except ValueError as error:
            raise ReadingBrokeOffError("the child process sent an invalid page") from error

    def _too_slow(self) -> UnreadableFileError:
        return UnreadableFileError(
            f"Reading the file took longer than {self._limits.seconds:g} seconds."
        )

    async def _why_it_died(self) -> Exception:
        code = await self._process.wait()
        stderr = await self._stderr
        if hasattr(signal, "SIGXCPU") and code == -signal.SIGXCPU:
            return self._too_slow()
        if any(words in stderr for words in _OUT_OF_MEMORY):
            return UnreadableFileError("Reading the file needs too much memory.")
        _log.warning("the child process that reads a file died", code=code, stderr=stderr)
        return ReadingBrokeOffError(f"the child process ended with code {code}")

    async def _read_stderr(self) -> str:
        """Reads stderr, so that the child never blocks on it; returns its last bytes."""
        assert self._process.stderr is not None
        output = b""
        while data := await self._process.stderr.read(_STDERR_BYTES):
            output = (output + data)[-_STDERR_BYTES:]
        return output.decode("utf-8", "replace")


def _environment() -> dict[str, str]:
    """Returns an environment without keys and addresses, since the files are untrusted."""
    return {
        "PYTHONPATH": os.pathsep.join(str(Path(part).parent) for part in strata.__path__),
        # Each thread of these libraries would reserve address space.
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
