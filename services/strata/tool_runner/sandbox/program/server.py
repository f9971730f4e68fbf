"""The fork server: creates and ends a jailed process for every call.

A process is created before its call and immediately locks itself for a shape: limits, packages,
network. Then it waits for one request.

The fork server starts in a new interpreter with an empty environment and one descriptor, a socket
to the service, so it holds no secrets. Requests go directly to the jailed process, not through it.

Messages from the service: ``{"spawn": id}`` with three descriptors (socket of the call, standard
output and standard error), ``{"watch": id, ...}`` when the call starts, ``{"kill": id}``. Messages
to the service: ``{"ready": true}`` or ``{"failed": reason}`` once, then ``{"exit": id, ...}`` for
every spawn.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import sys
import time
import types
from collections.abc import Mapping
from typing import Any, NoReturn

from . import jail, kernel, landlock, network, seccomp, syscalls, tool
from .watchdog import PERIOD_S, Watched, largest_socket, look

_CALL = 3
_SETUP_FAILED = 120
_MAX_MESSAGE = 1 << 16
# Modules that tools commonly import, loaded once.
_PRELOAD = (
    "ast", "asyncio", "base64", "bisect", "calendar", "collections", "copy", "csv", "ctypes",
    "dataclasses", "datetime", "decimal", "difflib", "enum", "fractions", "functools", "hashlib",
    "heapq", "html", "inspect", "io", "itertools", "math", "operator", "pathlib", "random", "re",
    "shutil", "statistics", "string", "struct", "subprocess", "tempfile", "textwrap", "threading",
    "traceback", "types", "typing", "urllib.parse", "uuid", "zlib",
)  # fmt: skip


class ForkServer:
    """The main loop; it runs in the main thread, which must not end before the process."""

    def __init__(self, control: socket.socket, config: jail.Config) -> None:
        self._control = control
        self._config = config
        self._calls: dict[int, int] = {}
        self._pids: dict[int, int] = {}
        self._watched: dict[int, Watched] = {}
        self._last_look = 0.0
        self._socket_bytes = largest_socket()
        self._wake, self._wake_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._filters: dict[bool, bytes] = {}
        self._own_pids = -1
        if config.namespaces:
            self._own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
            machine = syscalls.machine()
            for egress in (False, True):
                code = seccomp.assemble(seccomp.instructions(machine, network=egress))
                self._filters[egress] = code

    def serve(self) -> NoReturn:
        """Serves until the service closes the socket."""
        signal.set_wakeup_fd(self._wake_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        self._send({"ready": True})
        while True:
            events = poll.poll(PERIOD_S * 1000 if self._watched else None)
            self._look()
            for descriptor, _ in events:
                if descriptor == self._wake:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wake, 4096)
                    self._reap()
                else:
                    self._receive()

    def _send(self, message: dict[str, object]) -> None:
        try:
            self._control.send(json.dumps(message).encode())
        except OSError:
            os._exit(0)

    def _receive(self) -> None:
        size = socket.CMSG_LEN(3 * array.array("i").itemsize)
        try:
            message, ancillary, _, _ = self._control.recvmsg(_MAX_MESSAGE, size)
        except OSError:
            message, ancillary = b"", []
        if not message:
            os._exit(0)
        descriptors = array.array("i")
        for _, _, data in ancillary:
            descriptors.frombytes(data)
        request = json.loads(message)
        try:
            if "spawn" in request:
                self._spawn(request["spawn"], descriptors)
            elif "watch" in request:
                self._watch(request.pop("watch"), request)
            else:
                self._kill(request["kill"])
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _spawn(self, call: int, descriptors: array.array[int]) -> None:
        try:
            pid = self._fork()
        except OSError as error:
            self._send({"exit": call, "code": -signal.SIGKILL, "failed": str(error)})
            return
        if pid == 0:
            self._child(descriptors)
        self._calls[pid] = call
        self._pids[call] = pid

    def _fork(self) -> int:
        if not self._config.namespaces:
            return os.fork()
        # For the next child only: it is the first process of a PID namespace, so all of its
        # descendants, including daemons, are killed when it ends.
        kernel.unshare(kernel.CLONE_NEWPID)
        pid = -1
        try:
            pid = os.fork()
        finally:
            if pid:
                kernel.setns(self._own_pids, kernel.CLONE_NEWPID)
        return pid

    def _child(self, descriptors: array.array[int]) -> NoReturn:
        connection: socket.socket | None = None
        try:
            connection = self._arrange(descriptors)
            if self._config.namespaces:
                jail.prepare()
            body = tool.receive(connection)
            if not body:
                os._exit(0)
            shape = json.loads(body)
            if shape["egress"]:
                network.pass_listener(connection, self._config.namespaces)
            jail.lock(shape, self._config, self._filters.get(shape["egress"]))
        except BaseException as error:  # noqa: BLE001 - after any failure the call is not run
            if connection is not None:
                text = f"{type(error).__name__}: {error}"
                tool.send(connection, json.dumps({"refused": text}).encode())
            os._exit(_SETUP_FAILED)
        # The process is now fully locked and has dropped all privileges.
        tool.send(connection, b'{"locked":true}')
        tool.make_ready(connection)
        body = tool.receive(connection)
        if body:
            tool.run(connection, body)
        os._exit(0)

    def _arrange(self, descriptors: array.array[int]) -> socket.socket:
        """Leaves four descriptors: an empty input, the two outputs, and the socket of the call."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # Moved to higher numbers first, since 0 to 3 are overwritten.
        call, output, errors = (fcntl.fcntl(d, fcntl.F_DUPFD, 10) for d in descriptors)
        nothing = os.open("/dev/null", os.O_RDONLY)
        for source, target in ((nothing, 0), (output, 1), (errors, 2), (call, _CALL)):
            if source != target:
                os.dup2(source, target)
        kernel.close_from(_CALL + 1)
        os.set_inheritable(_CALL, False)
        return socket.socket(fileno=_CALL)

    def _watch(self, call: int, limits: dict[str, Any]) -> None:
        pid = self._pids.get(call)
        if pid is None:
            return
        if not self._watched:
            # First check after one period: a check takes longer than most calls and delays them.
            self._last_look = time.monotonic()
        self._watched[pid] = Watched(**limits)

    def _kill(self, call: int) -> None:
        # Known processes are not reaped yet, so the id cannot belong to another process.
        pid = self._pids.get(call)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)

    def _look(self) -> None:
        now = time.monotonic()
        if not self._watched or now - self._last_look < PERIOD_S * 0.9:
            return
        self._last_look = now
        look(self._watched, self._config.namespaces, self._socket_bytes)
        for pid, call in self._watched.items():
            if call.over:
                os.kill(pid, signal.SIGKILL)

    def _reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            call = self._calls.pop(pid, None)
            watched = self._watched.pop(pid, None)
            if call is None:
                continue
            del self._pids[call]
            self._send({
                "exit": call,
                "code": os.waitstatus_to_exitcode(status),
                "cpu": usage.ru_utime + usage.ru_stime,
                "peak": max(usage.ru_maxrss * 1024, watched.peak_bytes if watched else 0),
                "over": watched.over if watched else "",
            })  # fmt: skip


def _preload() -> None:
    for name in _PRELOAD:
        importlib.import_module(name)


def _load(support: Mapping[str, str]) -> None:
    """Loads the modules of Strata that calls can import, without revealing their paths."""
    for name, path in support.items():
        with open(path, encoding="utf-8") as file:  # noqa: PTH123
            code = compile(file.read(), f"<{name}>", "exec")
        module = sys.modules[name] = types.ModuleType(name)
        exec(code, module.__dict__)  # noqa: S102 - a part of this program


def _start(control: socket.socket, config: jail.Config) -> None:
    sources = jail.become_unprivileged(config)
    if config.namespaces:
        jail.enter_namespaces()
        inner = os.fork()
        if inner:
            # Only waits: the first process of the namespace is its child.
            control.close()
            kernel.close_from(3)
            os.waitpid(inner, 0)
            os._exit(0)
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        jail.build_root(sources)
    elif not landlock.abi():
        raise OSError("the kernel has no Landlock, or it is off")
    else:
        for path in jail.base_paths():
            if not os.access(path, os.R_OK | os.X_OK):
                raise OSError(f"Python's own folder {path} cannot be read by an unprivileged user")


def main(descriptor: int, settings: str) -> None:
    """Runs the fork server over an inherited socket."""
    control = socket.socket(fileno=descriptor)
    config = jail.Config(**json.loads(settings))
    os.set_inheritable(descriptor, False)
    os.umask(0o022)
    sys.dont_write_bytecode = True
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _preload()
    # The folder of this program; tools do not import it.
    del sys.path[0]
    try:
        _load(config.support)
        _start(control, config)
        server = ForkServer(control, config)
    except Exception as error:  # noqa: BLE001 - every error means that this isolation is not available
        control.send(json.dumps({"failed": f"{type(error).__name__}: {error}"}).encode())
        return
    gc.collect()
    gc.freeze()
    server.serve()
