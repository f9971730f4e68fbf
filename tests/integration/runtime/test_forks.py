"""Programs that a service starts are not affected by gRPC (see `strata.shared.fork_safety`)."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from child_processes import SOURCE_PATH

ENTRIES = (
    *(f"strata.{service}.main" for service in ("gateway", "agent_loop", "core_memory", "recall")),
    *("strata.archival.main", "strata.tool_execution.main", "strata.tool_runner.main"),
    *("strata.cli.main", "strata.cli.commands.up", "strata.standalone.vectors.server"),
)
# What the C library has is what gRPC reads. What is imported after gRPC is of no interest.
LOOK = """
import ctypes, importlib, os, sys

class Look:
    def find_spec(self, name, path=None, target=None):
        if name == "grpc":
            getenv = ctypes.CDLL(None).getenv
            getenv.restype = ctypes.c_char_p
            print("grpc finds", getenv(b"GRPC_ENABLE_FORK_SUPPORT"), flush=True)
            os._exit(0)

sys.meta_path.insert(0, Look())
importlib.import_module(sys.argv[1])
import grpc
"""


@pytest.mark.parametrize("entry", ENTRIES)
def test_grpc_settings_are_set_before_its_import(entry: str) -> None:
    variables = {name: value for name, value in os.environ.items() if "GRPC" not in name}
    variables["PYTHONPATH"] = SOURCE_PATH
    done = subprocess.run(
        [sys.executable, "-c", LOOK, entry],
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == "grpc finds b'false'\n"
