"""Go programs that tests use: from the PATH, or built by `make`."""

from __future__ import annotations

import shutil
from pathlib import Path

TOOLS = Path(__file__).parents[2] / ".make" / "tools"
"""Folder of the programs that `make tools` and `make promtool` build."""


def built_program(name: str) -> str | None:
    """Returns the path of a program; None if it is not installed or built."""
    return shutil.which(name) or shutil.which(name, path=str(TOOLS))
