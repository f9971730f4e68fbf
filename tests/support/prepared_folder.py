"""A data folder after a first start, which tests copy.

The first start creates a PostgreSQL cluster and migrates it, which takes most of its processor
time. Tests that do not test the first start begin with a copy.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

from child_processes import SOURCE_PATH
from strata.standalone.data_folder import DataFolder

_START_S = 180.0
_STOP_S = 30.0
_UP = (
    "import sys; from pathlib import Path; from strata.cli.commands.up import run_up; "
    "sys.exit(run_up(Path(sys.argv[1]), port=0, split=False))"
)
# A copy must not prefer the port of its source, which another copy may use.
_LAST_PORT = Path("postgres", "port")


def make_prepared_folder(folder: Path) -> None:
    """Starts Strata on a new data folder, and stops it."""
    log = folder.with_name(f"{folder.name}.log")
    with log.open("wb") as output:
        process = _start(folder, output)
    try:
        until = time.monotonic() + _START_S
        while DataFolder(folder).running() is None:
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"Strata did not start: {log.read_text(errors='replace')}")
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        process.wait(_STOP_S)
    finally:
        process.kill()
        process.wait()
    (folder / _LAST_PORT).unlink()
    shutil.rmtree(folder / "logs", ignore_errors=True)


def copy_prepared_folder(prepared: Path, folder: Path) -> None:
    """Copies a folder of `make_prepared_folder`, with its owners and permissions."""
    subprocess.run(["cp", "-a", str(prepared), str(folder)], check=True)


def _start(folder: Path, output: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", _UP, str(folder)],
        env={
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(folder.parent),
            "PYTHONPATH": SOURCE_PATH,
            "STRATA_LOCAL_DEMO": "off",
        },
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
    )
