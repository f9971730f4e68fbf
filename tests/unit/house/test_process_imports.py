"""Processes do not import libraries at their start that only some clients or settings need.

The import bans in `pyproject.toml` cover the rest of these libraries.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib

import pytest

from child_processes import SOURCE_PATH
from unit.house.repository import REPOSITORY

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
# Other programs are named after the service that they run.
PROGRAMS = {
    "strata.cli.entry",
    *(
        f"strata.{program.removeprefix('strata-').replace('-', '_')}.main"
        for program, function in PROJECT["scripts"].items()
        if function == "strata.shared.service_entry:main"
    ),
}
PROCESSES = sorted(
    PROGRAMS
    | {
        "strata.gateway.http.application",
        "strata.standalone.compose.single",
        "strata.standalone.compose.split",
        "strata.standalone.vectors.server",
    }
)
CLIENT = ("qdrant_client.http", "qdrant_client.http.models", "qdrant_client.async_qdrant_client")
# Only migrations need them, which run in a process of their own.
MIGRATIONS = ("sqlalchemy", "alembic")
ON_DEMAND = ("a2a", "strata.gateway.http.mcp", "strata.gateway.console.application", "jinja2")
"""Loaded at the first request for them."""
# Without it, structlog logs in the same way.
HIGHLIGHTER = ("pygments", "rich.traceback")
DETECTION = ("charset_normalizer",)
"""Loaded for the first text in an unknown encoding."""
# Only where traces are on. The API of OpenTelemetry is a dependency of the SDK of MCP.
TRACES = ("opentelemetry.sdk", "opentelemetry.proto", "opentelemetry.exporter", "requests")

UNUSED = CLIENT + MIGRATIONS + ON_DEMAND + HIGHLIGHTER + DETECTION + TRACES


def output_of(program: str) -> str:
    """Returns what a program prints in a new process, without white space around it."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": SOURCE_PATH},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.child_process
def test_no_process_imports_optional_libraries_at_its_start() -> None:
    program = (
        f"import sys, {', '.join(PROCESSES)}\n"
        f"print([name for name in {UNUSED!r} if name in sys.modules],"
        " 'qdrant_client.grpc' in sys.modules)"
    )
    assert output_of(program) == "[] True"


@pytest.mark.child_process
def test_the_process_that_starts_services_imports_none_of_them() -> None:
    program = (
        "import sys, strata.standalone.compose.split\n"
        "from strata.standalone.compose.services import ALL_SERVICES\n"
        "print(len(ALL_SERVICES), [s.name for s in ALL_SERVICES if s.module in sys.modules])"
    )
    assert output_of(program) == "7 []"
