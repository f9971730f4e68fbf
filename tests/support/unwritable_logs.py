"""Logs that cannot be written."""

from __future__ import annotations

import errno
import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout


class _FullDisk(io.TextIOBase):
    def write(self, text: str, /) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


@contextmanager
def unwritable_logs() -> Iterator[None]:
    """While the block runs, all output of this process is for a disk that is full."""
    root = logging.getLogger()
    handlers = root.handlers[:]
    full = _FullDisk()
    root.handlers[:] = [logging.StreamHandler(full)]
    try:
        with redirect_stdout(full), redirect_stderr(full):
            yield
    finally:
        root.handlers[:] = handlers
