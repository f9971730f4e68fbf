"""Programs in Go that tests use: those on the PATH, or those that make builds."""

from __future__ import annotations

import shutil
from pathlib import Path

TOOLS = Path(__file__).parents[2] / ".make" / "tools"
"""Where `make tools` and `make promtool` put what they build."""


def built_program(name: str) -> str | None:
    """Returns the path of a program; None where there is none."""
    return shutil.which(name) or shutil.which(name, path=str(TOOLS))
