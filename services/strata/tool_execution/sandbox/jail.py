"""The sandbox of this machine: fork servers, a pool of jailed processes, and their replacement."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from strata.shared.context import current
from strata.shared.errors import UnavailableError
from strata.shared.fair_slots import FairSlots
from strata.tool_execution.domain.sandbox import (
    CONVERSION_MODULE,
    Isolation,
    Proxies,
    Run,
    RunResult,
    RunStatus,
)
from strata.tool_execution.sandbox import outcome
from strata.tool_execution.sandbox.call import Call, check
from strata.tool_execution.sandbox.forkserver import (
    Child,
    ForkServer,
    ServerConfig,
    StartError,
    this_interpreter,
)
from strata.tool_execution.sandbox.pool import Pool
from strata.tool_execution.sandbox.shape import Shape

# Nobody's: between the ranges that distributions give to people and to services.
JAIL_UID = 64_177
_CONVERSION = Path(__file__).parents[1] / "custom" / "argument_conversion.py"
_REFILL_S = 0.002
# What of a caller's time is kept for the answer.
_ANSWER_S = 0.5
_LEVELS = (Isolation.NAMESPACES, Isolation.LANDLOCK)
_PROBE = Run(source="def probe():\n    return 1\n", function="probe")


@dataclass(frozen=True, slots=True)
class Probe:
    """What can be had on this machine.

    Attributes:
        isolation: What is in force; NONE if nothing can be had, and every call is refused.
        missing: Why a higher one is not.
    """

    isolation: Isolation
    missing: Mapping[Isolation, str]

    def words(self) -> str:
        """Returns it as a sentence, for people."""
        reasons = "; ".join(f"no {level.label}: {why}" for level, why in self.missing.items())
        return f"{self.isolation.label}" + (f" ({reasons})" if reasons else "")


@dataclass(frozen=True, slots=True)
class JailConfig:
    """How the sandbox is to be.

    Attributes:
        minimum: The least isolation that it starts with.
        warm: Processes that wait for a call, locked in already.
        parallel: Calls at a time; the others wait. They are shared fairly between projects, and
            one project has three quarters at most. Calls whose code asks are counted apart, up to
            a quarter of it: what they ask for may need a place itself.
        environments: Folder under which folders with packages are; None for none.
        uid: User that calls run as when the service is root.
        scratch_root: Where scratch folders are made when there are no namespaces.
        interpreter: The Python that runs tools.
        proxies: Makes what calls with hosts reach them through; None refuses such calls.
        ca_file: Certificates that these verify servers with; None for none.
        support: Modules of ours that calls can import, by name; loaded once, and for all.
    """

    minimum: Isolation = Isolation.LANDLOCK
    warm: int = 2 * (os.cpu_count() or 1)
    parallel: int = 32
    environments: Path | None = None
    uid: int = JAIL_UID
    scratch_root: Path | None = None
    interpreter: str | None = None
    proxies: Proxies | None = None
    ca_file: Path | None = None
    support: Mapping[str, Path] = field(default_factory=lambda: {CONVERSION_MODULE: _CONVERSION})


class JailSandbox:
    """Runs every call in a process of its own, in a jail that the kernel keeps. Made by `start`."""

    def __init__(self, config: JailConfig, server: ForkServer | None, probe: Probe) -> None:
        self._config = config
        self._server = server
        self._probe = probe
        self._pool = Pool(config.warm)
        self._slots = FairSlots(config.parallel, "calls in the sandbox")
        asking = max(1, config.parallel // 4)
        self._asking = FairSlots(asking, "calls in the sandbox that call tools")
        self._starting = asyncio.Lock()
        self._closed = False
        self._running: set[asyncio.Task[RunResult]] = set()

    @classmethod
    async def start(cls, config: JailConfig | None = None) -> JailSandbox:
        """Finds the best isolation that this machine gives, tries it, and warms up.

        Where there is none that reaches the minimum, the sandbox starts all the same and refuses
        every call, saying why.
        """
        config = config or JailConfig()
        missing: dict[Isolation, str] = {}
        for level in _LEVELS:
            if level < config.minimum:
                missing[level] = f"less than the least that is allowed, {config.minimum.label}"
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
        """What keeps calls from the machine here."""
        return self._probe.isolation

    @property
    def probe(self) -> Probe:
        """What is in force, and why not more."""
        return self._probe

    @property
    def server_pid(self) -> int | None:
        """The id of the fork server's process; None if there is none now."""
        return self._server.pid if self._server and self._server.alive else None

    async def run(self, run: Run) -> RunResult:
        """Runs one call to its end. Cancelling it kills every process of the call.

        The time that it waits for a place does not count towards its limit, but it is stopped
        before the deadline of the context, so that the answer is in time.

        Raises:
            UnavailableError: The sandbox is closed, or its fork server cannot be started again.
            ResourceExhaustedError: Too many calls of the project wait already.
        """
        if self._closed:
            raise UnavailableError("The sandbox is not running.")
        if self.isolation < max(run.minimum, Isolation.LANDLOCK):
            return self._too_little(run)
        words = check(run) or self._no_network(run)
        shape = None
        if not words:
            shape, words = self._shape(run)
        if shape is None:
            return replace(outcome.refused(words), isolation=self.isolation)
        slots = self._slots if run.answerer is None else self._asking
        async with slots.slot():
            task = asyncio.ensure_future(self._call(run, shape))
            self._running.add(task)
            try:
                return await _through(task)
            finally:
                self._running.discard(task)

    def _too_little(self, run: Run) -> RunResult:
        words = (
            f"The call needs the isolation {run.minimum.label} at least;"
            f" this machine gives {self._probe.words()}."
        )
        return replace(outcome.refused(words), isolation=self.isolation)

    def _no_network(self, run: Run) -> str:
        """Returns why a call cannot have its hosts; empty if it can, or has none."""
        if not run.hosts:
            return ""
        if self._config.proxies is None:
            return "This sandbox gives calls no network access: the list of hosts must be empty."
        if self.isolation < Isolation.NAMESPACES:
            # Landlock knows ports and no addresses, and before Linux 6.7 not even these.
            return (
                "Calls with hosts need network namespaces;"
                f" this machine gives {self._probe.words()}."
            )
        return ""

    def _shape(self, run: Run) -> tuple[Shape | None, str]:
        """Returns what a process for the call must be like, or why there can be none."""
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
            found = path.stat()
        except OSError:
            found = None
        if found is None or not stat.S_ISDIR(found.st_mode):
            return None, "The folder of the packages does not exist."
        inside = self.isolation is Isolation.NAMESPACES
        name = str(path.relative_to(root)) if inside else str(path)
        return Shape.of(run.limits, packages=name, found=found, egress=egress), ""

    async def _call(self, run: Run, shape: Shape) -> RunResult:
        left = current().remaining()
        if left is not None:
            seconds = min(run.limits.wall_seconds, left - _ANSWER_S)
            if seconds <= 0:
                words = "No time was left to run it when there was a place for it."
                return replace(outcome.refused(words), isolation=self.isolation)
            run = replace(run, limits=replace(run.limits, wall_seconds=seconds))
        server = await self._ready()
        child = self._take(server, shape)
        try:
            server.watch(child, run.limits)
            proxies = self._config.proxies
            proxy = proxies(run.hosts) if proxies is not None and run.hosts else None
            result = await Call(child, run, proxy).run()
        finally:
            child.close()
            if not child.exited.done():
                # It does not do its work any more; its successor starts with the next call.
                await server.close()
            # Not now: making one takes what the answer, and a call behind it, could have.
            loop = asyncio.get_running_loop()
            loop.call_later(_REFILL_S, self._refill, server, shape)
        return result

    async def _ready(self) -> ForkServer:
        """Returns the fork server, a new one if it has died."""
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
                raise UnavailableError(f"The sandbox cannot be started again: {error}.") from error
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
            raise UnavailableError(f"No process can be had for the call: {error}.") from error

    def _refill(self, server: ForkServer, shape: Shape) -> None:
        if not server.alive or self._closed:
            return
        # The next call asks again, and says so if it cannot be had.
        with contextlib.suppress(OSError):
            self._pool.refill(server, shape)

    async def close(self) -> None:
        """Kills what runs and ends the sandbox."""
        self._closed = True
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        async with self._starting:
            # Its end is the end of every process that it made, so what they left can go.
            server, self._server = self._server, None
            if server is not None:
                await server.close()
            await self._retire()


async def _through(task: asyncio.Task[RunResult]) -> RunResult:
    """Waits for a call; who cancels the waiting cancels the call, and waits for its end."""
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
        interpreter=config.interpreter or this_interpreter(),
        ca_file=config.ca_file if config.proxies is not None else None,
        support=config.support,
    )
