"""The environment of the tool's process: the one place of this program that touches it."""

from __future__ import annotations

import os
from collections.abc import Mapping


def give_environment(scratch: str, own: Mapping[str, str], network: Mapping[str, str]) -> None:
    """Replaces the environment of this process: a few names that programs expect, and the call's.

    Args:
        scratch: Its scratch folder.
        own: The variables of the call.
        network: Those by which programs find the proxy; empty for a call without network.
    """
    os.environ.clear()
    os.environ.update({
        "PATH": "/usr/bin:/bin", "HOME": scratch, "TMPDIR": scratch, "LANG": "C.UTF-8", **network,
        **own,
    })  # fmt: skip
