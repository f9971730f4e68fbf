"""What this process keeps of the memory that it has freed."""

from __future__ import annotations

import contextlib
import ctypes

# From malloc.h.
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3

_OF_ITS_OWN_BYTES = 1 << 20
_KEPT_AT_THE_TOP_BYTES = 4 << 20


def keep_little() -> None:
    """Has glibc give large blocks back as soon as they are freed. Call it once, at the start.

    By default each large block that is freed raises the size (up to 32 MB) from which on a block
    is mapped by itself; smaller ones come from the heap, and stay there below whatever was
    allocated after them. The texts and vectors of some busy minutes then count as memory of an
    idle server for good: 80 MB after a run of the benchmarks, for no less processor time.

    Does nothing with another C library.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, _OF_ITS_OWN_BYTES)
        mallopt(_TRIM_THRESHOLD, _KEPT_AT_THE_TOP_BYTES)


def return_freed() -> None:
    """Has glibc give back what it keeps, as after building a model: some 60 MB of it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
