"""The entry point of ``strata``, before its modules are there."""

from __future__ import annotations

import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

_INTERRUPTED_IMPORT = """
import os, signal, sys

# A process that a shell starts in the background ignores it.
signal.signal(signal.SIGINT, signal.default_int_handler)

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == "strata.cli.main":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
from strata.cli.entry import main
main()
"""


@pytest.mark.child_process
def test_an_interrupt_during_the_imports_ends_the_program_without_a_traceback() -> None:
    done = subprocess.run([sys.executable, "-c", _INTERRUPTED_IMPORT], capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, b"", b"")


def test_the_program_begins_at_the_entry_point() -> None:
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    assert project["scripts"]["strata"] == "strata.cli.entry:main"
