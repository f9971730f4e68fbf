"""``strata --help`` must not wait for what a command may need later."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import strata
from strata.cli.main import ENTRIES, _load

ROOTS = os.pathsep.join(str(Path(each).parent) for each in strata.__path__)
HEAVY = ("grpc", "sqlalchemy", "pydantic", "google.protobuf", "asyncpg", "numpy")


def run(*arguments: str, program: str = "from strata.cli.main import main; main()") -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={"PYTHONPATH": ROOTS, "PATH": os.defpath},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_help_loads_nothing_heavy() -> None:
    program = (
        "import sys\nfrom strata.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        f"print('LOADED', [m for m in {HEAVY!r} if m in sys.modules])"
    )
    out = run("--help", program=program)
    assert "Agents and their memory" in out
    assert out.splitlines()[-1] == "LOADED []"


def test_version() -> None:
    assert run("--version").startswith("strata ")


@pytest.mark.parametrize("name", [entry.name for entry in ENTRIES])
def test_every_command_can_be_loaded(name: str) -> None:
    command = _load(name)
    assert command.name == name
    assert command.help
