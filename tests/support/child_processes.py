"""Processes of Strata's code that tests start."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

import strata
from service_process import command_of

# The value of PYTHONPATH with which a process imports the same source as the tests.
SOURCE_PATH = os.pathsep.join(str(Path(part).parent) for part in strata.__path__)


def service_settings(urls: Any, public_key: str, port: int) -> dict[str, str]:
    """Returns the settings of a service on a database, at a port of the test."""
    return {
        "PORT": str(port),
        "REUSE_PORT": "true",
        "DATABASE_URL": urls.service_url,
        "WORKER_DATABASE_URL": urls.worker_url,
        "TOKEN_PUBLIC_KEYS": public_key,
    }


def descendants(command: str) -> list[psutil.Process]:
    """Returns the running processes below this one with a text in their command line."""
    matching = []
    for process in psutil.Process().children(recursive=True):
        # A process may have ended since; of one that nobody has waited for, only the pid is left.
        with suppress(psutil.NoSuchProcess):
            if any(command in word for word in process.cmdline()):
                matching.append(process)
    return matching


@contextmanager
def running_service(
    name: str, settings: Mapping[str, str], constants: Mapping[str, float] | None = None
) -> Iterator[int]:
    """Runs a service as a process of its own until the block is left.

    Args:
        name: The service: ``core_memory``.
        settings: Its settings by name, in upper case.
        constants: See `service_process.command_of`.

    Yields:
        The process id.
    """
    process = subprocess.Popen(
        command_of(f"strata.{name}.main", constants or {}),
        env={
            "PATH": os.environ.get("PATH", os.defpath),
            "PYTHONPATH": SOURCE_PATH,
            f"STRATA_{name.upper()}_LOG_LEVEL": "ERROR",
            **{f"STRATA_{name.upper()}_{key}": value for key, value in settings.items()},
        },
    )
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait(60)
