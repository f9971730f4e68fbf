"""What a child process does to itself before it reads what strangers made.

Converters are large, written for files that mean well, and partly native code. Limits hold
whatever they do; the audit hook keeps Python code from files, sockets and processes. It is a
second wall and no prison.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import BinaryIO

if sys.platform != "win32":
    import resource

_NICE = 10
_PR_SET_PDEATHSIG = 1
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC
_FORBIDDEN = (
    *("socket.", "subprocess.", "os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn"),
    *("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.chmod"),
    *("os.kill", "ctypes.dlopen", "shutil.", "tempfile.", "urllib.", "http.client", "ftplib."),
)


def take_output() -> BinaryIO:
    """Keeps standard output for the answer; what a library prints goes where errors go."""
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
    """Takes away memory dumps, the writing of files, and time and memory beyond these.

    Args:
        cpu_seconds: Processor time.
        memory_bytes: Address space.
        reserve_bytes: What `open_reserve` adds to it.
    """
    if sys.platform == "win32":
        return
    os.nice(_NICE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes + reserve_bytes))


def open_reserve() -> None:
    """Adds the reserve: without, it could not even be said that there is too little memory."""
    if sys.platform == "linux":
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def forbid_effects() -> None:
    """Lets Python code of this process write no file, open no socket and start no process."""
    sys.addaudithook(_forbid)


def _forbid(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open":
        flags = arguments[2]
        if isinstance(flags, int) and flags & _WRITING:
            raise PermissionError("a converter writes no files")
    elif event.startswith(_FORBIDDEN):
        raise PermissionError(f"a converter does no {event}")
