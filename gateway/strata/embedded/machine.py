"""What the machine, or the container, lets this process use."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_LIMIT = Path("/sys/fs/cgroup/memory.max")


def usable_memory(limit: Path = _LIMIT) -> int:
    """Returns the bytes of memory there are: the machine's, or the container's if these are less.

    Args:
        limit: Where control groups (version 2) tell the container's; ``max`` is no limit.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):
        memory = min(memory, int(limit.read_text()))
    return memory
