"""Entry point of the processes of services.

It imports almost nothing itself, so that the modules of the service are imported without garbage
collections.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from strata.shared.gc_freeze import one_collection

_PROGRAM_PREFIX = "strata-"


def main() -> None:
    """Runs the service that the program is named after: ``strata-tool-runner``."""
    service = Path(sys.argv[0]).stem.removeprefix(_PROGRAM_PREFIX).replace("-", "_")
    run_module(f"strata.{service}.main")


def run_module(name: str) -> None:
    """Imports the main module of a service, and runs it until the process is stopped.

    Args:
        name: Full name of the module: ``strata.recall.main``.
    """
    with one_collection():
        module = importlib.import_module(name)
    module.main()


if __name__ == "__main__":
    run_module(sys.argv.pop(1))
