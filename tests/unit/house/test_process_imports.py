"""No process of the product loads Qdrant's client; the ban in `pyproject.toml` covers the rest."""

from __future__ import annotations

import subprocess
import sys
import tomllib

import pytest

from child_processes import SOURCE_PATH
from unit.house.repository import REPOSITORY

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
PROGRAMS = {program.partition(":")[0] for program in PROJECT["scripts"].values()}
PROCESSES = sorted(
    PROGRAMS
    | {
        "strata.standalone.compose.single",
        "strata.standalone.compose.split",
        "strata.standalone.vectors.server",
    }
)
CLIENT = ("qdrant_client.http", "qdrant_client.http.models", "qdrant_client.async_qdrant_client")


@pytest.mark.child_process
def test_no_process_loads_qdrants_client() -> None:
    program = (
        f"import sys, {', '.join(PROCESSES)}\n"
        f"print([name for name in {CLIENT!r} if name in sys.modules],"
        " 'qdrant_client.grpc' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": SOURCE_PATH},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "[] True", done.stderr
