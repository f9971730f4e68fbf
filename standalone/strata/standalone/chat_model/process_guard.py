"""Runs a package client so that none of its processes outlives the parent. Run by path.

A package client starts a build backend, which starts a build tool, which starts compilers.
All of them are in one process group, which is killed when this program's standard input
closes. The kernel closes it even when the parent dies by SIGKILL.

Only the standard library is used: this file runs under `-I -S`, before any package is visible.

    process_guard.py PROGRAM ARGUMENT...
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading

_NICENESS = 10


def _kill_when_abandoned(group: int) -> None:
    while os.read(0, 4096):
        pass
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
    os._exit(1)


def main(program: list[str]) -> int:
    """Runs the program; returns its exit code."""
    # The parent handles Ctrl-C, and then closes our standard input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(_NICENESS)
    child = subprocess.Popen(  # noqa: S603 (the asking process names the program)
        program, stdin=subprocess.DEVNULL, start_new_session=True
    )
    threading.Thread(target=_kill_when_abandoned, args=(child.pid,), daemon=True).start()
    return child.wait()


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.exit(code if code >= 0 else 128 - code)
