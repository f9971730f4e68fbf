"""`k8s/generate_secrets.py`, which is a script and no module of a package."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from unit.k8s.manifests import K8S

_SCRIPT = runpy.run_path(str(K8S / "generate_secrets.py"))


def secret_objects(**options: Any) -> list[dict[str, Any]]:
    """See the script."""
    made: list[dict[str, Any]] = _SCRIPT["secret_objects"](**options)
    return made


def secret_files(objects: list[dict[str, Any]]) -> dict[str, dict[str, str]]:
    """See the script."""
    made: dict[str, dict[str, str]] = _SCRIPT["secret_files"](objects)
    return made


def write_files(folder: Path, files: dict[str, dict[str, str]]) -> bool:
    """See the script."""
    written: bool = _SCRIPT["write_files"](folder, files)
    return written


def kept_secrets(backup: Path) -> dict[str, str]:
    """See the script."""
    kept: dict[str, str] = _SCRIPT["kept_secrets"](backup)
    return kept


def main() -> None:
    """See the script; it reads the arguments of the process."""
    _SCRIPT["main"]()
