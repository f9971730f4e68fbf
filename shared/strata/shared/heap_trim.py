"""What this process keeps of the memory that it has freed."""

from __future__ import annotations

import contextlib
import ctypes


def trim_heap() -> None:
    """Has glibc give back what it keeps, in up to 10 ms; does nothing with another C library.

    What a model takes for a long text comes from the heap and is freed soon, but stays there
    below whatever was allocated after it: 60 MB after a model was loaded, 80 MB after some long
    texts, which would count as memory of an idle server for good. Threads that allocate
    meanwhile wait, so call it after heavy work, not amid a search. Other settings of the heap
    (to map large blocks by themselves) make models slower by a third.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
