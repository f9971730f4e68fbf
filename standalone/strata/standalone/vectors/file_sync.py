"""Writes the changed files of a folder to disk."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from strata.standalone.files import sync_path


def sync_files(folder: Path) -> None:
    """Writes what has changed in the files below a folder to disk, mapped files included.

    Other threads run meanwhile, as `os.fsync` releases Python's global lock. Files that are deleted
    meanwhile are left out.

    Raises:
        OSError: The disk reports an error.
    """
    for path, _, files in os.walk(folder, topdown=False):
        # New files survive only with their folder, which comes last.
        for name in (*files, ""):
            with contextlib.suppress(FileNotFoundError):
                sync_path(Path(path, name))
