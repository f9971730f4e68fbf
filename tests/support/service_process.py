"""Runs a service in a separate process with changed constants of modules.

Tests use it to shorten pauses that are not settings. The process runs this file as a script.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping


def command_of(module: str, constants: Mapping[str, float]) -> list[str]:
    """Returns the command that runs `main` of a module.

    Args:
        module: The module, ``strata.recall.main``.
        constants: Values by full name: ``{"strata.shared.search.upkeep.INDEX_POLL_S": 0.1}``.
    """
    # -P: the modules beside this one are not importable there.
    return [sys.executable, "-P", __file__, module, json.dumps(dict(constants))]


def _run(module: str, constants: Mapping[str, float]) -> None:
    for name, value in constants.items():
        owner, _, constant = name.rpartition(".")
        holder = importlib.import_module(owner)
        if not hasattr(holder, constant):
            raise AttributeError(f"no constant {name}")
        setattr(holder, constant, value)
    importlib.import_module(module).main()


if __name__ == "__main__":
    _run(sys.argv[1], json.loads(sys.argv[2]))
