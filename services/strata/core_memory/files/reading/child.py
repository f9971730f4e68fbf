"""The process that converts one file: ``python -m strata.core_memory.files.reading.child``.

The file is its standard input, frames of pages its standard output. It limits itself
before it looks at the file: processor time, memory, no files written, no network, no
processes of its own. It dies with the room that started it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import traceback
from typing import BinaryIO

from strata.core_memory.files.reading import frames
from strata.core_memory.files.reading.conversion import (
    Convert,
    converter_of,
    damaged,
    too_greedy,
)
from strata.core_memory.files.reading.formats import Format
from strata.core_memory.files.reading.pages import UnreadableFileError, pages_of

if sys.platform != "win32":
    import resource

_NICE = 10
_PR_SET_PDEATHSIG = 1
_RESERVE_BYTES = 64 * 1024 * 1024
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC
_FORBIDDEN = (
    *("socket.", "subprocess.", "os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn"),
    *("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.chmod"),
    *("os.kill", "ctypes.dlopen", "shutil.", "tempfile.", "urllib.", "http.client", "ftplib."),
)


def main(file_format: Format, room: int, cpu_seconds: int, memory_bytes: int) -> int:
    """Converts standard input; returns the exit code.

    Args:
        file_format: How.
        room: Process id of the room.
        cpu_seconds: Processor time that it may take.
        memory_bytes: Address space that it may take.
    """
    pipe = _take_output()
    _die_with(room)
    _limit(cpu_seconds, memory_bytes)
    convert = converter_of(file_format)
    sys.addaudithook(_forbid)
    try:
        _answer(pipe, file_format, convert)
    except BrokenPipeError:
        # Nobody listens any more.
        return 1
    return 0


def _answer(pipe: BinaryIO, file_format: Format, convert: Convert) -> None:
    refusal: UnreadableFileError | None = None
    try:
        sys.stdin.buffer.seek(0)
        for page in pages_of(convert(sys.stdin.buffer)):
            frames.send(pipe, frames.PAGE, frames.encode_page(page))
    except UnreadableFileError as error:
        refusal = error
    except (MemoryError, RecursionError):
        _open_reserve()
        refusal = too_greedy(file_format)
    except BrokenPipeError:
        raise
    except Exception:  # noqa: BLE001 - whatever a converter stumbles over
        traceback.print_exc(limit=-3)
        refusal = damaged(file_format)
    # Out here, where what the converter held is free again.
    if refusal is None:
        frames.send(pipe, frames.END)
    else:
        frames.send(pipe, frames.UNREADABLE, refusal.message.encode())


def _take_output() -> BinaryIO:
    """Keeps the pipe for frames; what a library prints goes where errors go."""
    pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return pipe


def _die_with(room: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != room:
            os._exit(1)


def _limit(cpu_seconds: int, memory_bytes: int) -> None:
    if sys.platform == "win32":
        return
    os.nice(_NICE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))
    if sys.platform == "linux":
        limits = (memory_bytes, memory_bytes + _RESERVE_BYTES)
        resource.setrlimit(resource.RLIMIT_AS, limits)


def _open_reserve() -> None:
    """Without some more memory it could not even be said that there is too little."""
    if sys.platform == "linux":
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _forbid(event: str, arguments: tuple[object, ...]) -> None:
    # Not a prison, for native code does not ask; but nothing in pure Python gets past it.
    if event == "open":
        flags = arguments[2]
        if isinstance(flags, int) and flags & _WRITING:
            raise PermissionError("a converter writes no files")
    elif event.startswith(_FORBIDDEN):
        raise PermissionError(f"a converter does no {event}")


if __name__ == "__main__":
    _, _format, *_numbers = sys.argv
    sys.exit(main(Format(_format), *map(int, _numbers)))
