"""Scratch folders for calls without namespaces, where no private mount can hold them."""

from __future__ import annotations

import os
import secrets
import stat
import tempfile
from pathlib import Path


def make(root: Path, uid: int) -> str:
    """Creates a folder for one call; it belongs to `uid` if this process is root."""
    folder = tempfile.mkdtemp(prefix="strata-call-", dir=root)
    if os.geteuid() == 0:
        os.chown(folder, uid, uid)
    return folder


def remove(folder: str) -> None:
    """Removes a folder that hostile code may have filled. The code must have ended.

    Folders may be nested deeper than the maximum path length or Python's recursion limit, and may
    be unreadable. So each subfolder is made readable, moved to the top and emptied there.
    """
    try:
        top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except PermissionError:
        Path(folder).chmod(0o700)
        top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fchmod(top, 0o700)
        while names := os.listdir(top):  # noqa: PTH208 - of a descriptor
            for name in names:
                _remove_entry(top, name)
    finally:
        os.close(top)
    Path(folder).rmdir()


def _remove_entry(top: int, name: str) -> None:
    if not stat.S_ISDIR(os.stat(name, dir_fd=top, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=top)
        return
    os.chmod(name, 0o700, dir_fd=top)
    inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=top)
    try:
        for entry in os.listdir(inner):  # noqa: PTH208 - of a descriptor
            if stat.S_ISDIR(os.stat(entry, dir_fd=inner, follow_symlinks=False).st_mode):
                os.chmod(entry, 0o700, dir_fd=inner)
                os.rename(entry, secrets.token_hex(8), src_dir_fd=inner, dst_dir_fd=top)
            else:
                os.unlink(entry, dir_fd=inner)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=top)
