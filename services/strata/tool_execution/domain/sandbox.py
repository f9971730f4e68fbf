"""What is asked of a sandbox, and what it answers; free of how one is made.

The interface is that of the measured design: a function of a custom tool, or a script, runs in a
jail of its own, which knows nothing but what stands in the request, and is gone afterwards.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Protocol

MIB = 1 << 20
FITTING = "_strata_fitting"
"""Name under which calls can import what makes their arguments fit, `custom.fitting`."""
ASK = "_strata_ask"
"""Global name of the function by which code asks whoever answers it; see `Run.answerer`."""


class Isolation(IntEnum):
    """What keeps a call from the rest of the machine; a higher one keeps more."""

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
    """Most that one call may take.

    Attributes:
        wall_seconds: Time.
        cpu_seconds: Processor time of one process.
        memory_bytes: Address space of one process.
        tree_bytes: Memory of all its processes together.
        processes: Processes and threads.
        disk_bytes: Of its scratch folder.
        files: Entries of its scratch folder.
        output_bytes: Of each of standard output and standard error.
        result_bytes: Of the returned value as JSON.
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


# Answers what code asks while it runs: JSON text to JSON text. What it raises ends the call and is
# raised from `Sandbox.run`.
Answerer = Callable[[str], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Run:
    """One call.

    Attributes:
        source: Python source, run as a module of its own.
        function: What of it is called; empty runs it as a script, whose return is None.
        arguments_json: The keyword arguments, a JSON object.
        environment: Environment variables of this call only, secrets among them.
        hosts: Names of hosts that it may reach by HTTP(S), through the proxy; empty means none.
        packages: Folder with the packages that its requirements name; None means none.
        limits: Most that it may take.
        minimum: The least isolation that will do; with less it is refused.
        answerer: Whom its code can ask, by the name `ASK` among its globals; None for nobody.
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
    """What a tool raised, as the tool's own words: nothing in it can be trusted."""

    type: str
    message: str
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a call gave.

    Attributes:
        status: How it ended.
        value_json: The returned value as JSON, with OK; empty otherwise.
        failure: What was raised, with TOOL_ERROR.
        detail: Words about every other end: which limit was met, and its size.
        stdout: Standard output as text, cut at the limit.
        stderr: Standard error as text, cut at the limit.
        isolation: What was in force.
        wall_seconds: Time that it took.
        cpu_seconds: Processor time of all its processes.
        peak_bytes: Most memory of its processes together.
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


class Proxy(Protocol):
    """What a call with hosts reaches them through; of that call alone."""

    async def serve(self, listener: socket.socket) -> None:
        """Begins to serve on a listening socket of the call, which it closes in the end.

        Raises:
            OSError: It cannot, or is closed.
        """
        ...

    async def close(self) -> None:
        """Ends every connection and closes the socket."""
        ...


# Makes the proxy of a call that may reach these hosts.
Proxies = Callable[[Sequence[str]], Proxy]


class Sandbox(Protocol):
    """Runs code that nobody trusts."""

    @property
    def isolation(self) -> Isolation:
        """What keeps calls from the machine here."""
        ...

    async def run(self, run: Run) -> RunResult:
        """Runs one call to its end. Cancelling it kills every process of the call.

        Raises:
            UnavailableError: The sandbox is not running.
        """
        ...

    async def close(self) -> None:
        """Kills what runs and ends the sandbox."""
        ...
