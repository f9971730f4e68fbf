"""The tool runner's side of the sandbox.

It starts the fork server, and again if it dies, and gives each call one of the restricted
processes that the fork server makes. The restrictions are in `program/jail.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from strata.protocol import argument_conversion
from strata.protocol.errors import UnavailableError
from strata.shared.context import current
from strata.shared.fair_slots import FairSlots
from strata.shared.sandbox import (
    CONVERSION_MODULE,
    JAIL_UID,
    Isolation,
    RunResult,
    RunStatus,
    SandboxRun,
    tool_interpreter,
)
from strata.tool_runner.domain.proxy import Proxies
from strata.tool_runner.sandbox import outcome
from strata.tool_runner.sandbox.call import JailedCall, check
from strata.tool_runner.sandbox.forkserver import (
    Child,
    ForkServer,
    ServerConfig,
    StartError,
)
from strata.tool_runner.sandbox.pool import Pool
from strata.tool_runner.sandbox.shape import Shape

_CONVERSION = Path(argument_conversion.__file__)
_REFILL_S = 0.002
# Part of a caller's time that is reserved for returning the result.
_ANSWER_S = 0.5
_LEVELS = (Isolation.NAMESPACES, Isolation.LANDLOCK)
_PROBE = SandboxRun(source="def probe():\n    return 1\n", function="probe")


@dataclass(frozen=True, slots=True)
class Probe:
    """The isolation that this machine supports.

    Attributes:
        isolation: The isolation in force; with NONE every call is refused.
        missing: Why better isolation levels are not available.
    """

    isolation: Isolation
    missing: Mapping[Isolation, str]

    def description(self) -> str:
        """Returns a description for people."""
        reasons = "; ".join(f"no {level.label}: {why}" for level, why in self.missing.items())
        return f"{self.isolation.label}" + (f" ({reasons})" if reasons else "")


@dataclass(frozen=True, slots=True)
class JailConfig:
    """Configuration of the sandbox.

    Attributes:
        minimum: The weakest isolation to start with.
        warm: Number of locked processes that wait for calls.
        idle_s: Seconds without a call after which one process is left waiting, since each uses
            5 MB of memory. The next call fills the pool again.
        parallel: Maximum number of concurrent calls; others wait. Slots are shared fairly between
            projects, and a project has at most three quarters. Calls with an answerer have a
            separate limit of a quarter, since the tools that they call may need slots themselves.
        environments: Folder of the package environments; None for none.
        uid: User that calls run as when the service is root.
        scratch_root: Folder for scratch folders when there are no namespaces.
        interpreter: The Python interpreter of tools.
        proxies: Creates proxies for calls with hosts; None refuses such calls.
        ca_file: CA file with which calls verify servers; None for none.
        support: Modules of Strata that calls can import, by name; loaded once.
    """

    minimum: Isolation = Isolation.LANDLOCK
    warm: int = 2 * (os.cpu_count() or 1)
    idle_s: float = 60.0
    parallel: int = 32
    environments: Path | None = None
    uid: int = JAIL_UID
    scratch_root: Path | None = None
    interpreter: str | None = None
    proxies: Proxies | None = None
    ca_file: Path | None = None
    support: Mapping[str, Path] = field(default_factory=lambda: {CONVERSION_MODULE: _CONVERSION})


class JailSandbox:
    """Runs every call in a new jailed process. Create it with `start`."""

    def __init__(self, config: JailConfig, server: ForkServer | None, probe: Probe) -> None:
        self._config = config
        self._server = server
        self._probe = probe
        self._pool = Pool(config.warm)
        self._slots = FairSlots(config.parallel, "calls in the sandbox")
        asking = max(1, config.parallel // 4)
        self._asking = FairSlots(asking, "calls in the sandbox that call tools")
        self._starting = asyncio.Lock()
        self._shrinking: asyncio.TimerHandle | None = None
        self._closed = False
        self._running: set[asyncio.Task[RunResult]] = set()

    @classmethod
    async def start(cls, config: JailConfig | None = None) -> JailSandbox:
        """Starts with the best isolation that works on this machine.

        If no isolation reaches the minimum, the sandbox starts anyway and refuses every call with
        the reasons.
        """
        config = config or JailConfig()
        missing: dict[Isolation, str] = {}
        for level in _LEVELS:
            if level < config.minimum:
                missing[level] = f"weaker than the minimum, {config.minimum.label}"
                continue
            try:
                server = await ForkServer.start(_server_config(config), level)
            except StartError as error:
                missing[level] = str(error)
                continue
            sandbox = cls(config, server, Probe(level, missing))
            tried = await sandbox.run(replace(_PROBE, minimum=level))
            if tried.status is RunStatus.OK:
                return sandbox
            missing[level] = tried.detail or tried.status.value
            await sandbox.close()
        return cls(config, None, Probe(Isolation.NONE, missing))

    @property
    def isolation(self) -> Isolation:
        """The isolation of calls."""
        return self._probe.isolation

    @property
    def probe(self) -> Probe:
        """The isolation in force, and why better levels are not available."""
        return self._probe

    @property
    def running_count(self) -> int:
        """Number of running calls."""
        return len(self._running)

    @property
    def spare_count(self) -> int:
        """Number of processes that wait for a call."""
        return len(self._pool)

    @property
    def server_pid(self) -> int | None:
        """Process id of the fork server; None if it is not running."""
        return self._server.pid if self._server and self._server.alive else None

    async def run(self, run: SandboxRun) -> RunResult:
        """Runs one call to its end. Cancelling it kills every process of the call.

        Waiting for a slot does not count towards the time limit. The call is stopped before the
        deadline of the context, so that its result is returned in time.

        Raises:
            UnavailableError: The sandbox is closed, or its fork server cannot be restarted.
            ResourceExhaustedError: Too many calls of the project are waiting.
        """
        if self._closed:
            raise UnavailableError("The sandbox is not running.")
        if self.isolation < max(run.minimum, Isolation.LANDLOCK):
            return self._too_little(run)
        reason = check(run) or self._no_network(run)
        shape = None
        if not reason:
            shape, reason = self._shape(run)
        if shape is None:
            return replace(outcome.refused(reason), isolation=self.isolation)
        slots = self._slots if run.answerer is None else self._asking
        async with slots.slot():
            task = asyncio.ensure_future(self._call(run, shape))
            self._running.add(task)
            try:
                return await _through(task)
            finally:
                self._running.discard(task)

    def _too_little(self, run: SandboxRun) -> RunResult:
        reason = (
            f"The call needs at least the isolation {run.minimum.label};"
            f" this machine gives {self._probe.description()}."
        )
        return replace(outcome.refused(reason), isolation=self.isolation)

    def _no_network(self, run: SandboxRun) -> str:
        """Returns why a call cannot reach its hosts; empty if it can or has none."""
        if not run.hosts:
            return ""
        if self._config.proxies is None:
            return "This sandbox gives calls no network access: the list of hosts must be empty."
        if self.isolation < Isolation.NAMESPACES:
            # Landlock can restrict ports but not addresses, and ports only since Linux 6.7.
            return (
                "Calls with hosts need network namespaces;"
                f" this machine gives {self._probe.description()}."
            )
        return ""

    def _shape(self, run: SandboxRun) -> tuple[Shape | None, str]:
        """Returns the shape of a process for the call, or why there is none."""
        egress = bool(run.hosts)
        if run.packages is None:
            return Shape.of(run.limits, egress=egress), ""
        root = self._config.environments
        if root is None:
            return None, "The sandbox has no folder of environments; packages cannot be used."
        path, root = Path(run.packages).resolve(), root.resolve()
        if root not in path.parents:
            return None, "The packages are not in the sandbox's folder of environments."
        try:
            status = path.stat()
        except OSError:
            status = None
        if status is None or not stat.S_ISDIR(status.st_mode):
            return None, "The folder of the packages does not exist."
        inside = self.isolation is Isolation.NAMESPACES
        name = str(path.relative_to(root)) if inside else str(path)
        return Shape.of(run.limits, packages=name, packages_status=status, egress=egress), ""

    async def _call(self, run: SandboxRun, shape: Shape) -> RunResult:
        remaining_s = current().remaining()
        if remaining_s is not None:
            seconds = min(run.limits.wall_seconds, remaining_s - _ANSWER_S)
            if seconds <= 0:
                reason = "No time was left when a slot became free."
                return replace(outcome.refused(reason), isolation=self.isolation)
            run = replace(run, limits=replace(run.limits, wall_seconds=seconds))
        server = await self._ready()
        child = self._take(server, shape)
        try:
            server.watch(child, run.limits)
            proxies = self._config.proxies
            proxy = proxies(run.hosts) if proxies is not None and run.hosts else None
            result = await JailedCall(child, run, proxy).run()
        finally:
            child.close()
            if not child.exited.done():
                # The fork server no longer works; the next call starts a new one.
                await server.close()
            # Delayed, so that creating a process does not slow down the result and the next call.
            loop = asyncio.get_running_loop()
            loop.call_later(_REFILL_S, self._refill, server, shape)
        return result

    async def _ready(self) -> ForkServer:
        """Returns the fork server; starts a new one if it has died."""
        async with self._starting:
            if self._server is not None and self._server.alive:
                return self._server
            if self._server is not None:
                await self._retire()
            if self._closed:
                raise UnavailableError("The sandbox is not running.")
            try:
                self._server = await ForkServer.start(_server_config(self._config), self.isolation)
            except StartError as error:
                raise UnavailableError(f"The sandbox cannot be restarted: {error}.") from error
            return self._server

    async def _retire(self) -> None:
        self._pool.clear()
        if self._server is not None:
            await self._server.close()
            self._server = None

    def _take(self, server: ForkServer, shape: Shape) -> Child:
        try:
            return self._pool.take(server, shape) or server.spawn(shape)
        except OSError as error:
            raise UnavailableError(f"No process can be started for the call: {error}.") from error

    def _refill(self, server: ForkServer, shape: Shape) -> None:
        if not server.alive or self._closed:
            return
        # The next call tries again and reports the error.
        with contextlib.suppress(OSError):
            self._pool.refill(server, shape)
        self._stop_timer()
        loop = asyncio.get_running_loop()
        self._shrinking = loop.call_later(self._config.idle_s, self._shrink, server)

    def _shrink(self, server: ForkServer) -> None:
        if server.alive and not self._running:
            self._pool.shrink(server, 1)

    def _stop_timer(self) -> None:
        if self._shrinking is not None:
            self._shrinking.cancel()
            self._shrinking = None

    async def close(self) -> None:
        """Kills running calls and stops the sandbox."""
        self._closed = True
        self._stop_timer()
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        async with self._starting:
            # Stopping the fork server kills all its processes, so their folders can be removed.
            server, self._server = self._server, None
            if server is not None:
                await server.close()
            await self._retire()


async def _through(task: asyncio.Task[RunResult]) -> RunResult:
    """Waits for a call; cancellation cancels the call and waits for its end."""
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if task.cancelled():
            raise UnavailableError("The sandbox was closed during the call.") from None
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        raise


def _server_config(config: JailConfig) -> ServerConfig:
    return ServerConfig(
        uid=config.uid,
        environments=config.environments,
        scratch_root=config.scratch_root or Path(tempfile.gettempdir()),
        interpreter=config.interpreter or tool_interpreter(),
        ca_file=config.ca_file if config.proxies is not None else None,
        support=config.support,
    )
