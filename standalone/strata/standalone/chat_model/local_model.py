"""The local demo model: preparing, starting and stopping it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import TypeVar

import httpx2
import platformdirs

from strata.protocol.errors import FailedPreconditionError
from strata.standalone.chat_model import cpu
from strata.standalone.chat_model.assets import ModelAssembler, PackageSource, PartSource, UrlSource
from strata.standalone.chat_model.choice import LOCAL_DEMO_ID
from strata.standalone.chat_model.manifest import LOCAL_DEMO
from strata.standalone.chat_model.packages import PackageClient, available_clients
from strata.standalone.chat_model.progress import (
    Cancellation,
    LocalModelError,
    Progress,
    ProgressCallback,
    StartPhase,
    WorkCancelledError,
    ignore,
)
from strata.standalone.chat_model.runtime import RuntimeInstaller
from strata.standalone.chat_model.settings import LocalDemoMode
from strata.standalone.ports import pick_port
from strata.standalone.supervisor import Command, FolderLock, ProcessSupervisor, end, spawn, tail

_T = TypeVar("_T")

_NEEDED_MEMORY_BYTES = 2_000_000_000
_BATCH_TOKENS = 128
_LOAD_SECONDS = 180.0
_LOAD_POLL_SECONDS = 0.1
_STOP_SECONDS = 3.0
_LOCK_POLL_SECONDS = 0.5
_RUN = (
    "import runpy, sys; sys.path.append(sys.argv.pop(1)); "
    "runpy.run_module('serving', run_name='__main__', alter_sys=True)"
)


def default_cache_folder() -> Path:
    """Returns the default folder of the model and its runtime."""
    return Path(platformdirs.user_cache_dir("strata"))


class LocalChatModel:
    """`local-demo`: fetched and built once, and run as a supervised child with OpenAI's API.

    Args:
        cache_folder: Folder of model and runtime; None for the user's cache folder.
        mode: With `off`, `ensure` raises an error.
        model_url: URL of the model file, tried before the packages.
        context_tokens: Maximum number of tokens of prompt and reply together.
    """

    model_id = LOCAL_DEMO_ID

    def __init__(
        self,
        cache_folder: Path | None = None,
        *,
        mode: LocalDemoMode = LocalDemoMode.AUTO,
        model_url: str | None = None,
        context_tokens: int = 8192,
    ) -> None:
        self._folder = (cache_folder or default_cache_folder()).absolute() / LOCAL_DEMO_ID
        self._mode = mode
        self._model_url = model_url
        self.context_tokens = context_tokens
        self._cpu = cpu.detect()
        self._key = secrets.token_urlsafe(32)
        self._port: int | None = None
        self._log = self._folder / "server.log"
        self._supervisor = ProcessSupervisor(
            LOCAL_DEMO_ID,
            self._launch,
            stop_signal=signal.SIGTERM,
            stop_timeout=_STOP_SECONDS,
            log_path=self._log,
        )

    @property
    def base_url(self) -> str:
        """Address of the OpenAI-compatible API; stays the same when the child is restarted."""
        if self._port is None:
            raise LocalModelError("the local demo model has not been started")
        return f"http://127.0.0.1:{self._port}/v1"

    @property
    def api_key(self) -> str:
        """The bearer token of this start. Only this process and the child know it."""
        return self._key

    @property
    def cache_folder(self) -> Path:
        """The folder with the model, its runtime and the log of its process."""
        return self._folder

    @property
    def pid(self) -> int | None:
        """The child's pid while it runs."""
        return self._supervisor.pid

    @property
    def prepared(self) -> bool:
        """Whether the model is fetched and its runtime is built."""
        return self._assembler([]).ready() and self._runtime().ready()

    async def ensure(self, report: ProgressCallback = ignore) -> None:
        """Fetches the model and builds its runtime, unless that has been done.

        If another process prepares the same folder, it waits for that. `report` is called from a
        thread.

        Raises:
            LocalModelError: The model is turned off, or cannot be used here; the message says why.
        """
        if self._mode is LocalDemoMode.OFF:
            raise LocalModelError("the local demo model is turned off (STRATA_LOCAL_DEMO=off)")
        self._require_memory()
        if not self.prepared:
            await _in_thread(lambda cancellation: self._prepare(report, cancellation))

    async def start(self, report: ProgressCallback = ignore) -> None:
        """Starts the child and waits until it has loaded the model. Call `ensure` first.

        Raises:
            LocalModelError: The child does not start; the message says why.
        """
        self._require_memory()
        report(Progress(StartPhase.LOAD, f"Loading {LOCAL_DEMO.title}"))
        await self._supervisor.start()

    async def stop(self) -> None:
        """Ends the child, if it runs."""
        await self._supervisor.stop()

    async def wait_serving(self) -> None:
        """Waits until the child serves again after a crash.

        Raises:
            UnavailableError: The child keeps crashing.
        """
        await self._supervisor.wait_serving()

    def _require_memory(self) -> None:
        available = cpu.available_memory()
        if available is not None and available < _NEEDED_MEMORY_BYTES:
            raise LocalModelError(
                f"the local demo model needs {_NEEDED_MEMORY_BYTES // 1_000_000} MB of memory, "
                f"but only {available // 1_000_000} MB are available"
            )

    def _assembler(self, sources: list[PartSource]) -> ModelAssembler:
        return ModelAssembler(LOCAL_DEMO, self._folder / "model", sources)

    def _runtime(self, clients: Sequence[PackageClient] = ()) -> RuntimeInstaller:
        python = f"cp{sys.version_info.major}{sys.version_info.minor}"
        return RuntimeInstaller(self._folder / "runtime", self._cpu, clients, python)

    def _prepare(self, report: ProgressCallback, cancellation: Cancellation) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        with self._only_one(report, cancellation):
            # The runtime first, so that a machine that cannot build it fetches no gigabyte.
            clients = available_clients()
            self._runtime(clients).ensure(report, cancellation)
            for left_behind in self._folder.glob("scratch-*"):  # by a process that was killed
                shutil.rmtree(left_behind, ignore_errors=True)
            with tempfile.TemporaryDirectory(dir=self._folder, prefix="scratch-") as scratch:
                sources: list[PartSource] = [
                    PackageSource(client, Path(scratch)) for client in clients
                ]
                if self._model_url:
                    sources.insert(0, UrlSource(self._model_url))
                self._assembler(sources).ensure(report, cancellation)

    @contextlib.contextmanager
    def _only_one(
        self, report: ProgressCallback, cancellation: Cancellation
    ) -> Generator[None, None, None]:
        lock = FolderLock(self._folder / "lock", "the local demo model's cache folder")
        logged = False
        while True:
            try:
                lock.acquire("preparing the local demo model")
                break
            except FailedPreconditionError as error:
                if not logged:
                    pid = error.metadata.get("pid", "unknown")
                    report(
                        Progress(StartPhase.MODEL, f"Process {pid} is preparing the model; waiting")
                    )
                logged = True
                cancellation.wait(_LOCK_POLL_SECONDS)
        try:
            yield
        finally:
            lock.release()

    async def _launch(self) -> subprocess.Popen[bytes]:
        self._port = pick_port(self._port)
        config = self._write_config(self._port)
        process = spawn(self._command(config))
        try:
            await self._wait_loaded(process)
        except BaseException:
            await end(process, signal.SIGKILL, _STOP_SECONDS)
            raise
        finally:
            config.unlink(missing_ok=True)
        return process

    def _write_config(self, port: int) -> Path:
        config = {
            "model_path": str(self._assembler([]).path),
            "model_id": self.model_id,
            "api_key": self._key,
            "port": port,
            "context_tokens": self.context_tokens,
            "batch_tokens": _BATCH_TOKENS,
            "threads": self._cpu.threads,
        }
        descriptor, path = tempfile.mkstemp(prefix="config-", suffix=".json", dir=self._folder)
        with os.fdopen(descriptor, "w") as file:
            json.dump(config, file)
        return Path(path)

    def _command(self, config: Path) -> Command:
        python = str(self._runtime().python)
        serving = str(Path(__file__).parent)
        program = [python, "-I", "-c", _RUN, serving, str(config)]
        return Command(program=program, folder=self._folder, log_path=self._log)

    async def _wait_loaded(self, process: subprocess.Popen[bytes]) -> None:
        headers = {"Authorization": f"Bearer {self._key}"}
        deadline = asyncio.get_running_loop().time() + _LOAD_SECONDS
        async with httpx2.AsyncClient(trust_env=False, headers=headers) as client:
            while True:
                if process.poll() is not None:
                    raise LocalModelError(self._explain(process.returncode))
                with contextlib.suppress(httpx2.TransportError):
                    response = await client.get(f"http://127.0.0.1:{self._port}/health")
                    if response.status_code == httpx2.codes.OK:
                        return
                if asyncio.get_running_loop().time() > deadline:
                    raise LocalModelError(f"the local demo model did not load; see {self._log}")
                await asyncio.sleep(_LOAD_POLL_SECONDS)

    def _explain(self, code: int) -> str:
        if code == -signal.SIGILL:
            return "the local demo model's runtime uses instructions that this processor refuses"
        if code == -signal.SIGKILL:
            return "the local demo model was killed while loading, probably for lack of memory"
        last = tail(self._log, 400).strip().splitlines()
        return f"the local demo model did not load: {last[-1] if last else f'exit code {code}'}"


async def _in_thread(work: Callable[[Cancellation], _T]) -> _T:
    """Runs blocking work in a thread; if the caller is cancelled, it first stops the work."""
    cancellation = Cancellation()
    task = asyncio.ensure_future(asyncio.to_thread(work, cancellation))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        cancellation.cancel()
        with contextlib.suppress(WorkCancelledError, LocalModelError):
            await task
        raise
