"""Returns freed memory to the operating system."""

from __future__ import annotations

import contextlib
import ctypes


def trim_heap() -> None:
    """Makes glibc return freed memory, in up to 10 ms; does nothing with another C library.

    The memory of a model for a long text comes from the heap and is freed soon, but glibc keeps it
    while later allocations lie above it: 60 MB after a model was loaded, 80 MB after some long
    texts, which an idle server would never return. Threads that allocate meanwhile wait, so call it
    after heavy work, not during a search. Other settings of the heap (mapping large blocks
    separately) make models slower by a third.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
