"""Environment variables of the tool's process; no other module of this program changes them."""

from __future__ import annotations

import os
from collections.abc import Mapping


def set_environment(scratch: str, network: Mapping[str, str]) -> None:
    """Replaces the environment of this process by a few variables that programs expect.

    Args:
        scratch: The scratch folder.
        network: Variables for the proxy; empty for a call without network access.
    """
    os.environ.clear()
    os.environ.update({
        "PATH": "/usr/bin:/bin", "HOME": scratch, "TMPDIR": scratch, "LANG": "C.UTF-8", **network,
    })  # fmt: skip


def add_environment(own: Mapping[str, str]) -> None:
    """Adds the variables of the call, including its secrets."""
    os.environ.update(own)
