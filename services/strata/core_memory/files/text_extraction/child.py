"""The process that converts one file: ``python -m strata.core_memory.files.text_extraction.child``.

It reads the file from standard input and writes pages as frames to standard output. Before it reads
the file it drops privileges: it lowers its priority, limits its processor time and memory, and
blocks writing files, network access and starting processes. The kernel kills it when the service
that started it ends.
"""

from __future__ import annotations

import sys
import traceback
from typing import TYPE_CHECKING, BinaryIO

from strata.core_memory.files.text_extraction import frames
from strata.core_memory.files.text_extraction.formats import FileFormat
from strata.core_memory.files.text_extraction.pages import UnreadableFileError, pages_of
from strata.core_memory.files.text_extraction.refusals import damaged, too_greedy
from strata.shared import confinement
from strata.shared.background_priority import lower_priority

if TYPE_CHECKING:
    from strata.core_memory.files.text_extraction.conversion import Convert

_RESERVE_BYTES = 64 * 1024 * 1024


def main(file_format: FileFormat, service: int, cpu_seconds: int, memory_bytes: int) -> int:
    """Converts standard input; returns the exit code.

    Args:
        file_format: The format of the file.
        service: Process id of the service.
        cpu_seconds: Limit of processor time.
        memory_bytes: Limit of the address space.
    """
    pipe = confinement.take_output()
    confinement.die_with(service)
    lower_priority()
    confinement.limit(cpu_seconds, memory_bytes, reserve_bytes=_RESERVE_BYTES)
    convert = load_converter(file_format)
    confinement.forbid_effects()
    try:
        _answer(pipe, file_format, convert)
    except BrokenPipeError:
        # The service has closed the pipe.
        return 1
    return 0


def load_converter(file_format: FileFormat) -> Convert:
    """Imports the converters and returns the one for a format.

    It takes half a second of processor time, so the priority MUST have been lowered before.
    """
    from strata.core_memory.files.text_extraction.conversion import (  # noqa: PLC0415
        converter_of,
    )

    return converter_of(file_format)


def _answer(pipe: BinaryIO, file_format: FileFormat, convert: Convert) -> None:
    refusal: UnreadableFileError | None = None
    try:
        sys.stdin.buffer.seek(0)
        for page in pages_of(convert(sys.stdin.buffer)):
            frames.send(pipe, frames.PAGE, frames.encode_page(page))
    except UnreadableFileError as error:
        refusal = error
    except (MemoryError, RecursionError):
        confinement.open_reserve()
        refusal = too_greedy(file_format)
    except BrokenPipeError:
        raise
    except Exception:  # noqa: BLE001 - any error of a converter
        traceback.print_exc(limit=-3)
        refusal = damaged(file_format)
    # Outside of the handlers, where the memory of the converter has been freed.
    if refusal is None:
        frames.send(pipe, frames.END)
    else:
        frames.send(pipe, frames.UNREADABLE, refusal.message.encode())


if __name__ == "__main__":
    _, _format, *_numbers = sys.argv
    sys.exit(main(FileFormat(_format), *map(int, _numbers)))
