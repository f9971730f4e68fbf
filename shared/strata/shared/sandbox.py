"""Calls of untrusted code: the requests of tool execution to the tool runner, and their results.

A function of a custom tool, or a script, runs in a new jail. The jail contains only what the
request holds, and it is removed after the call.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Any, Protocol

MIB = 1 << 20
CONVERSION_MODULE = "_strata_fitting"
"""Name of `strata.protocol.argument_conversion` in calls of tools; service and runner share it."""
ASK = "_strata_ask"
"""Global name of the function with which code calls its answerer; see `SandboxRun.answerer`."""
# Unused by distributions: between their ranges for people and for services.
JAIL_UID = 64_177
"""User id of code of tools if the tool runner is root. No other process may have it."""


class Isolation(IntEnum):
    """How a call is isolated from the machine; higher values isolate better."""

    NONE = 0
    LANDLOCK = 1
    NAMESPACES = 2
    GVISOR = 3
    MICROVM = 4

    @property
    def label(self) -> str:
        """Its name on the wire: ``namespaces``."""
        return self.name.lower()


class RunStatus(StrEnum):
    """How a call in the sandbox ended."""

    OK = "ok"
    TOOL_ERROR = "tool_error"
    TIMEOUT = "timeout"
    CPU = "cpu"
    MEMORY = "memory"
    PROCESSES = "processes"
    OUTPUT = "output"
    RESULT_TOO_LARGE = "result_too_large"
    BAD_RESULT = "bad_result"
    KILLED = "killed"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one call.

    Attributes:
        wall_seconds: Elapsed time.
        cpu_seconds: CPU time of one process.
        memory_bytes: Address space of one process.
        tree_bytes: Memory of all processes of the call.
        processes: Number of processes and threads.
        disk_bytes: Size of the scratch folder.
        files: Number of entries in the scratch folder.
        output_bytes: Size of stdout, and of stderr.
        result_bytes: Size of the returned value as JSON.
    """

    wall_seconds: float = 30.0
    cpu_seconds: int = 20
    memory_bytes: int = 1024 * MIB
    tree_bytes: int = 1024 * MIB
    processes: int = 64
    disk_bytes: int = 64 * MIB
    files: int = 2_000
    output_bytes: int = MIB
    result_bytes: int = 4 * MIB

    def by_name(self) -> dict[str, Any]:
        """Returns the limits by name; `dataclasses.asdict` takes five times as long."""
        return {name: getattr(self, name) for name in LIMIT_NAMES}

    def not_positive(self) -> list[str]:
        """Returns the names of the limits that are not above zero."""
        # NaN is not above zero either.
        return [name for name in LIMIT_NAMES if not getattr(self, name) > 0]


LIMIT_NAMES = tuple(limit.name for limit in fields(Limits))
"""The names of all limits."""

# Answers questions of running code, JSON text to JSON text. An exception ends the call, and
# `Sandbox.run` raises it.
Answerer = Callable[[str], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class SandboxRun:
    """One call in the sandbox.

    Attributes:
        source: Python source, executed as a new module.
        function: The function to call; empty runs the source as a script that returns None.
        arguments_json: The keyword arguments, a JSON object.
        environment: Environment variables of this call, including secrets.
        hosts: Host names that it may reach with HTTP(S) through the proxy; empty means none.
        packages: Folder with the installed packages of its requirements; None means none.
        limits: Limits of the call.
        minimum: The weakest acceptable isolation; with less the call is refused.
        answerer: Answers questions that the code asks with the global function `ASK`; None if it
            cannot ask any.
    """

    source: str
    function: str = ""
    arguments_json: str = "{}"
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    hosts: tuple[str, ...] = ()
    packages: str | None = None
    limits: Limits = field(default_factory=Limits)
    minimum: Isolation = Isolation.LANDLOCK
    answerer: Answerer | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception that a tool raised. The tool controls its text, so it is untrusted content."""

    type: str
    message: str
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a call in the sandbox.

    Attributes:
        status: How the call ended.
        value_json: The returned value as JSON, with OK; otherwise empty.
        failure: The exception, with TOOL_ERROR.
        detail: Message for the other statuses: which limit was exceeded, and its size.
        stdout: Standard output as text, truncated at the limit.
        stderr: Standard error as text, truncated at the limit.
        isolation: The isolation of the call.
        wall_seconds: Elapsed time.
        cpu_seconds: CPU time of all processes of the call.
        peak_bytes: Peak memory of all processes together.
    """

    status: RunStatus
    value_json: str = ""
    failure: Failure | None = None
    detail: str = ""
    stdout: str = ""
    stderr: str = ""
    isolation: Isolation = Isolation.NONE
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_bytes: int = 0


class Sandbox(Protocol):
    """Runs untrusted code."""

    @property
    def isolation(self) -> Isolation:
        """The isolation of calls on this server."""
        ...

    async def run(self, run: SandboxRun) -> RunResult:
        """Runs one call to its end. Cancelling it kills every process of the call.

        Raises:
            UnavailableError: The sandbox is not running.
        """
        ...

    async def close(self) -> None:
        """Kills running calls and stops the sandbox."""
        ...


def tool_interpreter() -> str:
    """Returns the Python interpreter of code of tools: the current one, outside of its venv."""
    return str(Path(sys.executable).resolve())
