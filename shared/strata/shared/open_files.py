"""Raises the limit of open files of a process.

Each run that waits for a model has a connection to it, and each client one to the gateway. The
usual soft limit of 1,024 is for programs that use `select`, which cannot handle larger numbers.
"""

from __future__ import annotations

import resource
from contextlib import suppress

MOST_OPEN_FILES = 65_536
"""Enough for ten thousand runs. Much larger limits slow down programs that close all files."""


def raise_open_file_limit() -> None:
    """Raises the soft limit of open files to the hard limit, at most to `MOST_OPEN_FILES`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MOST_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < limit:
        # Some systems have a lower limit that cannot be read.
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
