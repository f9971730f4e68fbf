"""Client of a fork server: starts it, requests jailed processes, and receives their exits."""

from __future__ import annotations

import array
import asyncio
import contextlib
import itertools
import json
import os
import select
import socket
import subprocess
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from strata.shared.sandbox import Isolation, Limits
from strata.tool_runner.sandbox import frames, scratch
from strata.tool_runner.sandbox.shape import Shape

_START_S = 30.0
_MAX_MESSAGE = 1 << 16
_BOOT = (
    "import sys; sys.path.insert(0, sys.argv[1]);"
    " from program import server; server.main(int(sys.argv[2]), sys.argv[3])"
)


class StartError(Exception):
    """A fork server with this isolation cannot be started; the message has the reason."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How a jailed process ended.

    Attributes:
        code: Exit code; a negative value is the signal that killed it.
        cpu_seconds: CPU time of the process and of its awaited children.
        peak_bytes: Peak memory.
        over: The limit for which the watchdog killed it, or empty.
        reason: Why there was no process, or why its end is unknown; otherwise empty.
    """

    code: int
    cpu_seconds: float = 0.0
    peak_bytes: int = 0
    over: str = ""
    reason: str = ""


@dataclass(slots=True)
class Child:
    """A jailed process that waits for its request or executes it."""

    id: int
    server: ForkServer
    connection: socket.socket
    output: int
    errors: int
    exited: asyncio.Future[Exit]
    scratch: str = ""
    closed: bool = field(default=False)

    @property
    def is_alive(self) -> bool:
        """Whether its process is alive, as far as known: its exit may not have arrived yet."""
        if self.closed or self.exited.done():
            return False
        poll = select.poll()
        # POLLHUP is always reported.
        poll.register(self.connection, 0)
        return not poll.poll(0)

    def close(self) -> None:
        """Closes its descriptors and removes its scratch folder; the process must have ended."""
        if self.closed:
            return
        self.closed = True
        self.connection.close()
        os.close(self.output)
        os.close(self.errors)
        if self.scratch:
            scratch.remove(self.scratch)


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Configuration of fork servers.

    Attributes:
        uid: User and group that they switch to when the service is root.
        environments: Folder of the package environments; None for none.
        scratch_root: Folder for scratch folders when there are no namespaces.
        interpreter: The Python interpreter of tools; readable by `uid` or root.
        ca_file: CA file of calls; None for none.
        support: Modules that calls can import, by name.
    """

    uid: int
    environments: Path | None
    scratch_root: Path
    interpreter: str
    ca_file: Path | None = None
    support: Mapping[str, Path] = field(default_factory=dict)


class ForkServer:
    """One fork server. Create it with `start`."""

    def __init__(self, config: ServerConfig, isolation: Isolation) -> None:
        self.config = config
        self.isolation = isolation
        self.alive = False
        self._numbers = itertools.count(1)
        self._children: dict[int, Child] = {}
        self._unsent: deque[bytes] = deque()
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[str] = self._loop.create_future()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._control.setblocking(False)
            self._process = self._execute(theirs)
        except BaseException:
            self._control.close()
            raise
        finally:
            theirs.close()
        self._loop.add_reader(self._control.fileno(), self._on_message)

    def _execute(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        settings = {
            "namespaces": self.isolation is Isolation.NAMESPACES,
            "uid": self.config.uid,
            "environments": str(self.config.environments or ""),
            "ca_file": str(self.config.ca_file or ""),
            "support": {name: str(path) for name, path in self.config.support.items()},
        }
        # -I -S -B: no environment, no user's site, no site-packages, nothing written.
        return subprocess.Popen(  # noqa: S603 - an interpreter and a program of Strata
            [
                self.config.interpreter, "-I", "-S", "-B", "-c", _BOOT,
                str(Path(__file__).parent), str(theirs.fileno()), json.dumps(settings),
            ],
            env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
        )  # fmt: skip

    @classmethod
    async def start(cls, config: ServerConfig, isolation: Isolation) -> ForkServer:
        """Starts a fork server.

        Raises:
            StartError: This machine does not support the isolation, or the start failed.
        """
        try:
            server = cls(config, isolation)
        except OSError as error:
            raise StartError(f"its program cannot be started: {error}") from error
        try:
            async with asyncio.timeout(_START_S):
                reason = await server._ready
        except TimeoutError:
            reason = f"it did not start within {_START_S:g} seconds"
        except asyncio.CancelledError:
            await server.close()
            raise
        if reason:
            await server.close()
            raise StartError(reason)
        server.alive = True
        return server

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def spawn(self, shape: Shape) -> Child:
        """Requests a process that locks itself and waits; messages can be sent immediately.

        Args:
            shape: Shape of the call that it will serve.

        Raises:
            OSError: No file descriptor or scratch folder is available.
        """
        folder = ""
        descriptors: list[int] = []
        connection: socket.socket | None = None
        try:
            if self.isolation is Isolation.LANDLOCK:
                folder = scratch.make(self.config.scratch_root, self.config.uid)
            connection, theirs = socket.socketpair()
            descriptors.append(theirs.detach())
            for _ in range(2):
                descriptors += os.pipe2(os.O_CLOEXEC)
            theirs_fd, output, their_output, errors, their_errors = descriptors
            os.set_blocking(output, False)
            os.set_blocking(errors, False)
            connection.setblocking(False)
            # Sent directly to the process, not through the fork server. The empty socket has space.
            connection.sendall(frames.framed(shape.as_message(folder)))
            child = Child(
                next(self._numbers), self, connection, output, errors,
                self._loop.create_future(), folder,
            )  # fmt: skip
            self._pass(child.id, [theirs_fd, their_output, their_errors])
        except BaseException:
            for descriptor in descriptors:
                os.close(descriptor)
            if connection is not None:
                connection.close()
            if folder:
                scratch.remove(folder)
            raise
        for descriptor in (theirs_fd, their_output, their_errors):
            os.close(descriptor)
        self._children[child.id] = child
        return child

    def _pass(self, number: int, descriptors: list[int]) -> None:
        message = json.dumps({"spawn": number}).encode()
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
        self._control.sendmsg([message], [rights])

    def watch(self, child: Child, limits: Limits) -> None:
        """Starts to watch the limits of a process, before it gets its request."""
        self._send({
            "watch": child.id, "tree_bytes": limits.tree_bytes, "processes": limits.processes,
            "scratch": child.scratch, "disk_bytes": limits.disk_bytes, "files": limits.files,
        })  # fmt: skip

    def kill(self, child: Child) -> None:
        """Kills a process and its descendants, unless it has ended."""
        if not child.exited.done():
            self._send({"kill": child.id})

    def _send(self, message: dict[str, Any]) -> None:
        self._unsent.append(json.dumps(message).encode())
        self._flush()

    def _flush(self) -> None:
        while self._unsent:
            try:
                self._control.send(self._unsent[0])
            except BlockingIOError:
                self._loop.add_writer(self._control.fileno(), self._flush)
                return
            except OSError:
                # The fork server has ended; `_on_message` detects the closed socket.
                self._unsent.clear()
                break
            self._unsent.popleft()
        with contextlib.suppress(OSError, ValueError):
            self._loop.remove_writer(self._control.fileno())

    def _on_message(self) -> None:
        while True:
            try:
                message = self._control.recv(_MAX_MESSAGE)
            except BlockingIOError:
                return
            except OSError:
                message = b""
            if not message:
                self._on_end()
                return
            event = json.loads(message)
            if "exit" in event:
                self._exited(event)
            elif not self._ready.done():
                self._ready.set_result(event.get("failed", ""))

    def _exited(self, event: dict[str, Any]) -> None:
        child = self._children.pop(event["exit"], None)
        if child is not None and not child.exited.done():
            child.exited.set_result(
                Exit(
                    event["code"], event.get("cpu", 0.0), event.get("peak", 0),
                    event.get("over", ""), event.get("failed", ""),
                )
            )  # fmt: skip

    def _on_end(self) -> None:
        self.alive = False
        self._loop.remove_reader(self._control.fileno())
        with contextlib.suppress(OSError, ValueError):
            self._loop.remove_writer(self._control.fileno())
        if not self._ready.done():
            self._ready.set_result("it ended while it started")
        for child in self._children.values():
            if not child.exited.done():
                child.exited.set_result(Exit(-9, reason="the fork server ended"))
        self._children.clear()

    async def close(self) -> None:
        """Stops the fork server, which kills all of its processes."""
        if self._control.fileno() >= 0:
            self._on_end()
            self._control.close()
        await asyncio.to_thread(self._process.wait)
