"""Limits that a child process sets on itself before it parses untrusted files.

Converters are large, partly native code that was not written for hostile files. Resource limits
bind all of it. The audit hook also keeps Python code from writing files, opening sockets and
starting processes; it is a second line of defence, not a sandbox.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import BinaryIO

if sys.platform != "win32":
    import resource

_PR_SET_PDEATHSIG = 1
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC
_FORBIDDEN = (
    *("socket.", "subprocess.", "os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn"),
    *("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.chmod"),
    *("os.kill", "ctypes.dlopen", "shutil.", "tempfile.", "urllib.", "http.client", "ftplib."),
)


def take_output() -> BinaryIO:
    """Returns standard output for the answer, and redirects prints of libraries to stderr."""
    pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return pipe


def die_with(parent: int) -> None:
    """Makes the kernel kill this process when its parent ends (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def limit(cpu_seconds: int, memory_bytes: int, *, reserve_bytes: int = 0) -> None:
    """Forbids core dumps and file writes, and limits processor time and memory.

    Args:
        cpu_seconds: Limit of processor time.
        memory_bytes: Limit of the address space.
        reserve_bytes: Bytes that `open_reserve` adds to that limit later.
    """
    if sys.platform == "win32":
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes + reserve_bytes))


def open_reserve() -> None:
    """Raises the memory limit by the reserve, so that a memory error can be reported."""
    if sys.platform == "linux":
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def forbid_effects() -> None:
    """Forbids Python code of this process to write files, open sockets and start processes."""
    sys.addaudithook(_forbid)


def _forbid(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open":
        flags = arguments[2]
        if isinstance(flags, int) and flags & _WRITING:
            raise PermissionError("a converter writes no files")
    elif event.startswith(_FORBIDDEN):
        raise PermissionError(f"a converter does no {event}")
