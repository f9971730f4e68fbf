"""Gives back the memory of files that were only looked through."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from pathlib import Path


def unmap_read_pages(folder: Path) -> int:
    """Takes the pages of shared mappings of files below a folder out of this process.

    The engine reads the index of each payload field when it loads a collection: 4 MB of mostly
    empty pages each, 85 MB for the collections of an empty Strata, which then count as its memory
    though they are the system's cache. They stay there, and are mapped again when they are used.

    Returns:
        How many bytes were mapped; 0 where the system does not tell.
    """
    unmapped = 0
    with contextlib.suppress(OSError, AttributeError):
        madvise = ctypes.CDLL(None, use_errno=True).madvise
        madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        root = f"{folder.resolve()}/"
        for line in Path("/proc/self/maps").read_text().splitlines():
            place, rights, *_, name = line.split(maxsplit=5)
            # Of a private mapping, what was changed would be lost.
            if rights.endswith("s") and name.startswith(root):
                start, end = (int(address, 16) for address in place.split("-"))
                madvise(start, end - start, mmap.MADV_DONTNEED)
                unmapped += end - start
    return unmapped
