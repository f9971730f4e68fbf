"""Starts one engine so that it cannot outlive its supervisor. Run by path, never imported.

Short programs of an engine (`initdb`) are started by it too. If `subprocess` itself changed the
user, it would fork the calling process, in which gRPC restarts its threads and may crash before
the program begins (grpc/grpc#43055).

Between the fork and the exec of an engine three things must happen: drop root, leave the
terminal's process group, and ask the kernel to end the engine when the supervisor dies. A
`preexec_fn` would run Python in a forked copy of a threaded gRPC process, which may deadlock. A
separate short program is safe. The request to the kernel comes after the change of user, which
would clear it.

Only the standard library is used: this file runs under `-I -S`, before any package is visible.

    launcher.py MODE SUPERVISOR_PID SIGNAL UID GID -- PROGRAM ARGUMENT...

MODE is `kernel` (Linux: parent-death signal, the launcher becomes the program), `watch`
(elsewhere: the launcher stays, and ends the program when its standard input closes) or `plain`
(the launcher becomes the program, and the caller waits for it).
UID and GID are -1 to keep the current user.
"""

import ctypes
import os
import select
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
GRACE_SECONDS = 20.0


def drop_privileges(uid: int, gid: int) -> None:
    """Switches to another user permanently; does nothing for -1."""
    if uid >= 0:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)


def become(program: list[str], supervisor: int, death_signal: int) -> None:
    """Replaces this process by the program, which the kernel signals when the supervisor dies."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != supervisor:  # it died before the request reached the kernel
        sys.exit(1)
    os.execv(program[0], program)  # noqa: S606 - becoming the program is the purpose


def watch(program: list[str], death_signal: int) -> None:
    """Starts the program, and signals it when standard input closes with the supervisor's end."""
    child = os.fork()
    if child == 0:
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.execv(program[0], program)  # noqa: S606 - as above
    for name in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
        signal.signal(name, lambda number, _frame: os.kill(child, number))
    deadline = None
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            sys.exit(os.waitstatus_to_exitcode(status) & 0xFF)
        if deadline is None:
            readable, _, _ = select.select([0], [], [], 0.05)
            if readable and not os.read(0, 1):
                os.kill(child, death_signal)
                deadline = time.monotonic() + GRACE_SECONDS
        elif time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
        else:
            time.sleep(0.05)


def main(arguments: list[str]) -> None:
    """Runs the launcher with its command line arguments."""
    mode, supervisor, death_signal, uid, gid = arguments[0], *map(int, arguments[1:5])
    program = arguments[arguments.index("--") + 1 :]
    if mode != "plain":
        os.setsid()  # so that Ctrl-C reaches only the supervisor, which stops engines in order
    os.umask(0o077)
    drop_privileges(uid, gid)
    if mode == "plain":
        os.execv(program[0], program)  # noqa: S606 - becoming the program is the purpose
    elif mode == "kernel":
        become(program, supervisor, death_signal)
    else:
        watch(program, death_signal)


if __name__ == "__main__":
    main(sys.argv[1:])
