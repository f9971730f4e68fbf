"""Free space on the disk of the vector engine.

The engine writes to files that it maps into memory, most of them with holes. A write for which the
disk has no block ends the process with the signal SIGBUS. Qdrant refuses writes in time as well.
"""

from __future__ import annotations

import shutil
from pathlib import Path

WRITE_BYTES = 128 * 2**20
"""Free space below which points are not written: more than the holes that one batch can fill."""
LOAD_BYTES = 16 * 2**20
"""Free space below which the engine is not started: to load collections takes some blocks."""


def free_bytes(folder: Path) -> int:
    """Returns the free space on the disk of a folder."""
    return shutil.disk_usage(folder).free


def missing_space(folder: Path, needed: int) -> str:
    """Returns a text about missing disk space; empty if at least ``needed`` bytes are free."""
    free = free_bytes(folder)
    if free >= needed:
        return ""
    return f"{free >> 20} MiB are free on the disk of {folder}, {needed >> 20} MiB are needed"
