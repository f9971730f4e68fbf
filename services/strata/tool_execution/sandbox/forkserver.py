"""The service's end of a fork server: starts it, asks for jailed processes, hears of their end."""

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
import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from strata.tool_execution.domain.sandbox import Isolation, Limits
from strata.tool_execution.sandbox import frames, scratch
from strata.tool_execution.sandbox.shape import Shape

_START_S = 30.0
_MAX_MESSAGE = 1 << 16
_BOOT = (
    "import sys; sys.path.insert(0, sys.argv[1]);"
    " from program import server; server.main(int(sys.argv[2]), sys.argv[3])"
)


class StartError(Exception):
    """A fork server of this isolation cannot be had here; the message says why."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How a jailed process ended, as its reaper saw it.

    Attributes:
        code: Exit code; below zero the signal that ended it.
        cpu_seconds: Processor time of it and of those that it waited for.
        peak_bytes: Most memory.
        over: The limit for which the watchdog ended it, if that was it.
        reason: Why there never was a process, or why nobody knows; empty otherwise.
    """

    code: int
    cpu_seconds: float = 0.0
    peak_bytes: int = 0
    over: str = ""
    reason: str = ""


@dataclass(slots=True)
class Child:
    """A jailed process that waits for its request, or works on it."""

    id: int
    server: ForkServer
    connection: socket.socket
    output: int
    errors: int
    exited: asyncio.Future[Exit]
    scratch: str = ""
    closed: bool = field(default=False)

    @property
    def is_there(self) -> bool:
        """Whether its process lives, as far as can be told: the end may not be heard of yet."""
        if self.closed or self.exited.done():
            return False
        poll = select.poll()
        # Hanging up is always told.
        poll.register(self.connection, 0)
        return not poll.poll(0)

    def close(self) -> None:
        """Closes its descriptors and removes its scratch folder; it must have ended."""
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
    """How fork servers are started.

    Attributes:
        uid: User and group that they become when the service is root.
        environments: Folder under which the folders with packages are; None for none.
        scratch_root: Where scratch folders are made when there are no namespaces.
        interpreter: The Python that runs tools; it must be readable by `uid` or by root.
        ca_file: Certificates that are shown to calls; None for none.
        support: Modules that calls can import, by name.
    """

    uid: int
    environments: Path | None
    scratch_root: Path
    interpreter: str
    ca_file: Path | None = None
    support: Mapping[str, Path] = field(default_factory=dict)


class ForkServer:
    """One fork server. Made by `start`."""

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
        self._loop.add_reader(self._control.fileno(), self._hear)

    def _execute(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        settings = {
            "namespaces": self.isolation is Isolation.NAMESPACES,
            "uid": self.config.uid,
            "environments": str(self.config.environments or ""),
            "ca_file": str(self.config.ca_file or ""),
            "support": {name: str(path) for name, path in self.config.support.items()},
        }
        # -I -S -B: no environment, no user's site, no site-packages, nothing written.
        return subprocess.Popen(  # noqa: S603 - an interpreter and a program of our own
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
            StartError: It cannot be had here.
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
        """The id of its process."""
        return self._process.pid

    def spawn(self, shape: Shape) -> Child:
        """Asks for a process that locks itself in and waits; it can be talked to at once.

        Args:
            shape: Of the call that it will serve.

        Raises:
            OSError: The service has no descriptor or no scratch folder left.
        """
        folder = ""
        opened: list[int] = []
        connection: socket.socket | None = None
        try:
            if self.isolation is Isolation.LANDLOCK:
                folder = scratch.make(self.config.scratch_root, self.config.uid)
            connection, theirs = socket.socketpair()
            opened.append(theirs.detach())
            for _ in range(2):
                opened += os.pipe2(os.O_CLOEXEC)
            theirs_fd, output, their_output, errors, their_errors = opened
            os.set_blocking(output, False)
            os.set_blocking(errors, False)
            connection.setblocking(False)
            # Past the fork server, like all that follows; the socket is empty and has space.
            connection.sendall(frames.framed(shape.as_message(folder)))
            child = Child(
                next(self._numbers), self, connection, output, errors,
                self._loop.create_future(), folder,
            )  # fmt: skip
            self._pass(child.id, [theirs_fd, their_output, their_errors])
        except BaseException:
            for descriptor in opened:
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
        """Has a process watched from now on, which gets its request next."""
        self._send({
            "watch": child.id, "tree_bytes": limits.tree_bytes, "processes": limits.processes,
            "scratch": child.scratch, "disk_bytes": limits.disk_bytes, "files": limits.files,
        })  # fmt: skip

    def kill(self, child: Child) -> None:
        """Ends a process and all that it started; one that has ended is left alone."""
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
                # It is gone, which its end of the socket tells.
                self._unsent.clear()
                break
            self._unsent.popleft()
        with contextlib.suppress(OSError, ValueError):
            self._loop.remove_writer(self._control.fileno())

    def _hear(self) -> None:
        while True:
            try:
                message = self._control.recv(_MAX_MESSAGE)
            except BlockingIOError:
                return
            except OSError:
                message = b""
            if not message:
                self._gone()
                return
            heard = json.loads(message)
            if "exit" in heard:
                self._exited(heard)
            elif not self._ready.done():
                self._ready.set_result(heard.get("failed", ""))

    def _exited(self, heard: dict[str, Any]) -> None:
        child = self._children.pop(heard["exit"], None)
        if child is not None and not child.exited.done():
            child.exited.set_result(
                Exit(
                    heard["code"], heard.get("cpu", 0.0), heard.get("peak", 0),
                    heard.get("over", ""), heard.get("failed", ""),
                )
            )  # fmt: skip

    def _gone(self) -> None:
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
        """Ends it, and with it every process that it made."""
        if self._control.fileno() >= 0:
            self._gone()
            self._control.close()
        await asyncio.to_thread(self._process.wait)


def this_interpreter() -> str:
    """Returns the Python that runs this, without the virtual environment around it."""
    return str(Path(sys.executable).resolve())
