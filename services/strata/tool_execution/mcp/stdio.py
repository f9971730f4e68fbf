"""Stdio transport: MCP servers that are programs on this host.

The transport of the SDK has no limit for the length of a line, and a cancelled task can skip its
clean-up. Here lines are limited, and the whole process group is always killed at the end. On Linux
the kernel kills the program when this process dies.

A program has ended when its first process has ended, even if its child processes still hold the
pipes. Requests are sent only to a program that has not ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import anyio
from mcp.client.stdio import get_default_environment

from strata.shared.json_text import replace_lone_surrogates
from strata.tool_execution.mcp.errors import ConnectError
from strata.tool_execution.mcp.program_user import ProgramUser
from strata.tool_execution.mcp.unreadable import read_message

_CHUNK = 64 * 1024
# Lines that are read before other work gets a turn.
_LINES_AT_ONCE = 64
_MAX_ERROR_OUTPUT = 2_000
_GRACE_S = 1.0
_POLL_S = 0.01
_WATCH_S = 0.5
# The launcher has the kernel kill it when this process dies, then replaces itself by the program.
# As root it first switches to the user and sets no_new_privs, so that setuid programs gain nothing.
# Changing the user resets the death signal, so the signal is set last.
# The program's environment variables arrive on standard input, before the protocol: the launcher
# starts with the privileges of this process, and the linker reads variables such as LD_PRELOAD.
_START = """
import ctypes, json, os, shutil, signal, sys
parent, uid, size, command = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
linux = sys.platform == "linux"
if uid >= 0:
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    os.umask(0o077)
    if linux:
        ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)
if linux:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
received = b""
while len(received) < size:
    part = os.read(0, size - len(received))
    if not part:
        os._exit(1)
    received += part
variables = json.loads(received)
path = shutil.which(command[0], path=variables.get("PATH"))
if path is None:
    sys.exit(f"{command[0]} cannot be started by user id {os.getuid()}, which it runs as")
os.execve(path, command, variables)
"""


class Program:
    """A running program.

    Args:
        process: Its process.

    Attributes:
        too_long: Whether a message of the program exceeded the limit.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._errors = bytearray()
        self._stream_ended = False
        self.too_long = False

    @property
    def ended(self) -> bool:
        """Whether the program, its input or its output has ended, so that it cannot answer.

        Asks the kernel, because the event loop notices the end later, and requests that are sent
        until then would have an unknown outcome.
        """
        return (
            self._process.returncode is not None
            or self._stream_ended
            or not _runs(self._process.pid)
        )

    @property
    def error_output(self) -> str:
        """The end of its standard error."""
        return self._errors.decode("utf-8", "replace").strip()

    @property
    def end(self) -> str:
        """Describes how it ended; empty while it runs."""
        code = self._process.returncode
        if code is None:
            return ""
        return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"

    async def read(self, sink: Any, limit: int) -> None:
        """Sends its messages to `sink` until it ends or a line exceeds `limit` bytes."""
        buffer = bytearray()
        exited = asyncio.create_task(self._exited())
        try:
            async with sink:
                while chunk := await self._chunk(exited):
                    buffer += chunk
                    lines: list[bytearray] = []
                    # Only then, because a copy of the buffer for each chunk of a long line adds up.
                    if b"\n" in chunk:
                        *lines, buffer = buffer.split(b"\n")
                    if len(buffer) > limit or any(len(line) > limit for line in lines):
                        self.too_long = True
                        return
                    for number, line in enumerate(lines, start=1):
                        if number % _LINES_AT_ONCE == 0:
                            await asyncio.sleep(0)
                        # Programs write log lines, too, and to parse each one costs much more.
                        if not line.lstrip().startswith((b"{", b"[")):
                            continue
                        # Bytes and escapes that are not text are replaced.
                        text = replace_lone_surrogates(line.decode("utf-8", "replace").encode())
                        message = read_message(text)
                        if message is None:
                            continue
                        try:
                            await sink.send(message)
                        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
                            return
                self._stream_ended = True
                # The output ends shortly before the process: wait for the exit status.
                await self._ends_in_time()
        finally:
            exited.cancel()

    async def write(self, source: Any) -> None:
        """Sends messages to the program until `source` ends or the program stops reading."""
        stdin = self._process.stdin
        assert stdin is not None
        with contextlib.suppress(OSError):
            async with source:
                async for item in source:
                    line = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                    stdin.write(line.encode() + b"\n")
                    await stdin.drain()
        self._stream_ended = True

    async def read_errors(self) -> None:
        """Reads its standard error and keeps the end."""
        stderr = self._process.stderr
        assert stderr is not None
        while chunk := await stderr.read(_CHUNK):
            self._errors += chunk
            del self._errors[:-_MAX_ERROR_OUTPUT]

    async def stop(self) -> None:
        """Ends the program and its process group: closes its input, then SIGTERM, then SIGKILL."""
        process = self._process
        try:
            if process.stdin is not None:
                process.stdin.close()
            if not await self._ends_in_time():
                self._signal(signal.SIGTERM)
                await self._ends_in_time()
        finally:
            # Even if the program has ended, since its child processes may still run.
            self._signal(signal.SIGKILL)
        await self._ends_in_time()
        # A child process in another session may hold the pipes, and no public method closes them.
        transport = getattr(process, "_transport", None)
        if transport is not None:
            transport.close()

    async def _ends_in_time(self) -> bool:
        """Waits up to `_GRACE_S` for its end; `wait` would wait for its children as well."""
        loop = asyncio.get_running_loop()
        until = loop.time() + _GRACE_S
        while self._process.returncode is None:
            if loop.time() > until:
                return False
            await asyncio.sleep(_POLL_S)
        return True

    async def _exited(self) -> None:
        """Returns after the program has ended and its last output has had time to arrive."""
        # `Process.wait` may also wait for the pipes, which child processes can hold.
        while self._process.returncode is None:  # noqa: ASYNC110
            await asyncio.sleep(_WATCH_S)
        await asyncio.sleep(_GRACE_S)

    async def _chunk(self, exited: asyncio.Task[None]) -> bytes:
        """Reads from its output; returns nothing at the end of the output or the program."""
        stdout = self._process.stdout
        assert stdout is not None
        if exited.done():
            return b""
        reading = asyncio.create_task(stdout.read(_CHUNK))
        try:
            await asyncio.wait([reading, exited], return_when=asyncio.FIRST_COMPLETED)
            return reading.result() if reading.done() else b""
        finally:
            reading.cancel()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


@contextlib.asynccontextmanager
async def open_stdio(
    command: Sequence[str],
    environment: Mapping[str, str],
    limit: int,
    user: ProgramUser | None = None,
) -> AsyncIterator[tuple[Any, Any, Program]]:
    """Starts a program; yields its incoming and outgoing messages, and the program.

    Args:
        command: Program and arguments.
        environment: Environment variables, added to a few harmless ones of this process.
        limit: Maximum size of a message in bytes.
        user: The user it runs as; None for the user of this process, which must not be root.

    Raises:
        ConnectError: The program cannot be started.
    """
    program = Program(await _start(command, environment, user))
    incoming_sink, incoming = anyio.create_memory_object_stream[Any](0)
    outgoing, outgoing_source = anyio.create_memory_object_stream[Any](0)
    tasks = [
        asyncio.create_task(program.read(incoming_sink, limit)),
        asyncio.create_task(program.write(outgoing_source)),
        asyncio.create_task(program.read_errors()),
    ]
    try:
        yield incoming, outgoing, program
    finally:
        cancelled = await _stopped(program)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for stream in (incoming_sink, incoming, outgoing, outgoing_source):
            stream.close()
        if cancelled:
            raise asyncio.CancelledError


async def _start(
    command: Sequence[str], environment: Mapping[str, str], user: ProgramUser | None
) -> asyncio.subprocess.Process:
    """Starts the process of a program; see `open_stdio`."""
    if user is None and os.geteuid() == 0:
        raise ConnectError("programs are not started as root")
    user_variables = user.environment if user is not None else {}
    variables = {**get_default_environment(), **user_variables, **environment}
    if shutil.which(command[0], path=variables.get("PATH")) is None:
        raise ConnectError(f"the program {command[0]} was not found")
    uid = user.uid if user is not None else -1
    encoded_variables = json.dumps(variables).encode()
    launcher = (sys.executable, "-I", "-S", "-c", _START, str(os.getpid()), str(uid))
    starting = asyncio.create_subprocess_exec(
        *(*launcher, str(len(encoded_variables)), *command),
        cwd=user.home if user is not None else None,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=get_default_environment(),
        start_new_session=True,
    )
    try:
        process = await starting
    except OSError as error:
        raise ConnectError(f"the program could not be started: {error.strerror}") from None
    assert process.stdin is not None
    # Only buffered here; `Program.write` waits until the program has read it.
    process.stdin.write(encoded_variables)
    return process


async def _stopped(program: Program) -> bool:
    """Stops a program, even if cancelled meanwhile; returns whether it was cancelled."""
    stopping = asyncio.create_task(program.stop())
    cancelled = False
    while not stopping.done():
        try:
            await asyncio.shield(stopping)
        except asyncio.CancelledError:
            # Stopping takes a bounded time; otherwise the program would stay forever.
            cancelled = True
    return cancelled


def _runs(pid: int) -> bool:
    """Returns whether a child process is running; true if that cannot be determined."""
    if sys.platform == "darwin" or sys.platform == "win32":
        return True
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except ChildProcessError:
        # The event loop has collected its exit status already.
        return False
