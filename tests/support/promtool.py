"""Runs promtool, which checks metrics and rules for Prometheus."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from built_programs import built_program

PROMTOOL = built_program("promtool")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="needs promtool: `make promtool` builds it with Go, in some minutes"
)


def run_promtool(*arguments: str, folder: Path, stdin: bytes = b"") -> str:
    """Runs promtool and returns what it prints.

    Args:
        arguments: Its arguments.
        folder: The working directory.
        stdin: The standard input.

    Raises:
        AssertionError: promtool reported a problem.
    """
    assert PROMTOOL is not None
    done = subprocess.run(
        [PROMTOOL, *arguments], cwd=folder, input=stdin, capture_output=True, timeout=60
    )
    printed = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, printed
    return printed
