"""Starts child processes without copying the memory map of the service.

uvloop starts programs by a true fork. The kernel then copies the page tables of the service, and
the event loop waits until the child has begun its program: with 400 MB of memory that takes 11 ms
of processor time in the event loop, and much longer while other processes want the processors.
`subprocess.Popen` uses `vfork`, which copies nothing: 0.3 ms.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import threading
from asyncio.base_subprocess import BaseSubprocessTransport
from collections.abc import Sequence
from contextlib import suppress
from typing import Any


class ChildTransport(BaseSubprocessTransport):
    """A child process that `subprocess.Popen` has started; asyncio's own class for its loops."""

    def _start(
        self,
        args: str | bytes | Sequence[str | bytes],
        shell: bool,
        stdin: Any,
        stdout: Any,
        stderr: Any,
        bufsize: int,
        **options: Any,
    ) -> None:
        ours: socket.socket | None = None
        theirs: Any = stdin
        if stdin == subprocess.PIPE:
            # A write to a pipe whose reader has ended is not noticed before the next one.
            theirs, ours = socket.socketpair()
        try:
            self._proc = subprocess.Popen(  # noqa: S603 - the caller chooses the program
                args,
                shell=shell,
                stdin=theirs,
                stdout=stdout,
                stderr=stderr,
                bufsize=bufsize,
                **options,
            )
            if ours is not None:
                self._proc.stdin = os.fdopen(ours.detach(), "wb", buffering=bufsize)
        finally:
            if ours is not None:
                ours.close()
                theirs.close()
        self._watch(self._proc)

    def _watch(self, process: subprocess.Popen[Any]) -> None:
        """Reports the end of the process."""
        if not hasattr(os, "pidfd_open"):
            threading.Thread(target=self._wait_in_thread, args=(process,), daemon=True).start()
            return
        end = os.pidfd_open(process.pid)

        def collect() -> None:
            self._loop.remove_reader(end)
            os.close(end)
            self._process_exited(process.wait())

        self._loop.add_reader(end, collect)

    def _wait_in_thread(self, process: subprocess.Popen[Any]) -> None:
        code = process.wait()
        # The loop may have been closed meanwhile.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._process_exited, code)


async def start_child(
    loop: asyncio.AbstractEventLoop,
    protocol: asyncio.SubprocessProtocol,
    command: Sequence[str | bytes],
    *,
    stdin: Any,
    stdout: Any,
    stderr: Any,
    options: dict[str, Any],
) -> ChildTransport:
    """Starts a program and connects its pipes.

    Args:
        loop: The event loop.
        protocol: Gets what the program writes, and its end.
        command: The program and its arguments.
        stdin: As `subprocess.Popen` takes it; so are `stdout` and `stderr`.
        stdout: See `stdin`.
        stderr: See `stdin`.
        options: Further arguments of `subprocess.Popen`.

    Raises:
        OSError: The program cannot be started.
    """
    connected: asyncio.Future[None] = loop.create_future()
    transport = ChildTransport(
        loop, protocol, command, False, stdin, stdout, stderr, 0, waiter=connected, **options
    )
    try:
        await asyncio.shield(connected)
    except BaseException:
        # Closes the pipes, once all are connected, and kills the child.
        connected.add_done_callback(lambda _: transport.close())
        raise
    return transport
