"""The command line on a pseudo-terminal; tests type and read the screen."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import fcntl
import os
import pty
import struct
import sys
import termios
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from child_processes import SOURCE_PATH
from unit.cli.terminal import Terminal

COLUMNS, ROWS = 100, 40
_PATIENCE_S = 60.0
_AGAIN_S = 1.0


class PtyProgram:
    """A running command."""

    def __init__(self, process: asyncio.subprocess.Process, master: int) -> None:
        self.process = process
        self.terminal = Terminal(COLUMNS, ROWS)
        self._master = master
        self._news = asyncio.Event()
        self._said_all = asyncio.Event()
        # A character may arrive in two parts.
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        asyncio.get_running_loop().add_reader(master, self._read)

    def type(self, keys: str) -> None:
        """Presses keys; ``\\r`` is Enter, ``\\x03`` Ctrl-C, ``\\x04`` Ctrl-D.

        Wait for the prompt before Ctrl-D: the terminal drops an end of input that is typed before
        readline changes its mode.
        """
        os.write(self._master, os.fsencode(keys))

    async def shows(self, text: str, times: int = 1) -> None:
        """Waits until the text is on the terminal the given number of times."""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                while self.terminal.text.count(text) < times:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"{text!r} is not on:\n{self.terminal.text}") from None

    async def interrupt(self, until: str) -> None:
        """Presses Ctrl-C repeatedly until the text is on the terminal.

        CPython's readline misses a signal that arrives between two reads of the keyboard
        until the next key is pressed.
        """
        for _ in range(round(_PATIENCE_S / _AGAIN_S)):
            self.type("\x03")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_AGAIN_S):
                    while until not in self.terminal.text:
                        self._news.clear()
                        await self._news.wait()
                return
        raise AssertionError(f"{until!r} is not on:\n{self.terminal.text}")

    async def ends(self) -> int:
        """Waits for the end of the program and of its output, and returns the exit code."""
        async with asyncio.timeout(_PATIENCE_S):
            code = await self.process.wait()
            await self._said_all.wait()
        return code

    def _read(self) -> None:
        try:
            data = os.read(self._master, 65536)
        except OSError:
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._master)
            self._said_all.set()
        self.terminal.feed(self._decode(data))
        self._news.set()


@asynccontextmanager
async def on_terminal(*arguments: str, environment: Mapping[str, str]) -> AsyncIterator[PtyProgram]:
    """Runs ``strata`` with these arguments on a new pseudo-terminal."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        # The terminal is the controlling one of a session: Ctrl-C then is a signal.
        "import fcntl, os, termios\n"
        "os.setsid()\n"
        "fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
        "from strata.cli.main import main\n"
        "main()",
        *arguments,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={
            "PATH": os.defpath,
            "PYTHONPATH": SOURCE_PATH,
            "TERM": "xterm-256color",
            "LANG": "C.UTF-8",
            # Settings of this machine for readline must not apply.
            "INPUTRC": "/dev/null",
            **environment,
        },
    )
    os.close(slave)
    program = PtyProgram(process, master)
    try:
        yield program
    finally:
        asyncio.get_running_loop().remove_reader(master)
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        os.close(master)
