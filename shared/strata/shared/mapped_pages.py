"""Releases the memory of mapped files that were only read."""

from __future__ import annotations

import contextlib
import ctypes
import enum
import mmap
from pathlib import Path


class Mappings(enum.Enum):
    """Which mappings of files are released; the value is the last letter of their rights."""

    SHARED = "s"
    PRIVATE = "p"
    """Changes in these are lost: only for files whose mappings nothing changes."""


def release_pages_below(folder: Path, mappings: Mappings = Mappings.SHARED) -> int:
    """Removes the pages of mapped files below a folder from this process.

    They count as memory of the process as soon as they were read, although they are in the
    system's file cache. They stay in the cache and are mapped again when they are used. No file
    below the folder may be unmapped meanwhile.

    Returns:
        How many bytes were mapped; 0 if the system does not report it.
    """
    released = 0
    with contextlib.suppress(OSError, AttributeError):
        madvise = ctypes.CDLL(None, use_errno=True).madvise
        madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        root = f"{folder.resolve()}/"
        for line in Path("/proc/self/maps").read_text().splitlines():
            addresses, rights, *_, name = line.split(maxsplit=5)
            if rights.endswith(mappings.value) and name.startswith(root):
                start, end = (int(address, 16) for address in addresses.split("-"))
                madvise(start, end - start, mmap.MADV_DONTNEED)
                released += end - start
    return released
