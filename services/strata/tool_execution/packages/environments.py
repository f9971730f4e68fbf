"""The folder of environments. Each is built by the first request for it, and then only read.

<key>/              a finished environment; its mtime is its last use, to ten minutes
.building-<key>-*/  an environment that is being built by the process that holds its lock
.removing-*/        an environment that is being removed
.locks/<key>        the lock that is held while the environment is built or removed
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import secrets
import shutil
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import timedelta
from pathlib import Path

from strata.shared.fair_slots import FairSlots
from strata.shared.logs import get_logger
from strata.tool_execution.domain.packages import PackagesError
from strata.tool_execution.packages.builder import Builder
from strata.tool_execution.packages.requirements import key_of, normal

_TOUCH_S = 600.0
# Environments used this recently are never removed: a call may still read them.
_RECENT_S = 3600.0
_POLL_S = 0.1
_PARALLEL = 2
# A project builds one environment at a time.
_SHARE = 0.5
_log = get_logger(__name__)


class Environments:
    """Provides environments with packages; several processes may share the folder.

    Args:
        root: The folder, on a file system with locks; it is created if needed.
        builder: Builds environments.
        unused: Time without use after which an environment is removed.
        most: Maximum number of environments; the most recently used ones are kept.
    """

    def __init__(self, root: Path, builder: Builder, *, unused: timedelta, most: int = 100) -> None:
        self._root = root
        self._builder = builder
        self._unused_s = unused.total_seconds()
        self._most = most
        self._building: dict[str, asyncio.Task[None]] = {}
        self._slots = FairSlots(
            _PARALLEL, "sets of packages that are fetched", share=_SHARE, queue=20
        )
        (root / ".locks").mkdir(parents=True, exist_ok=True)
        # Tools may run as another user.
        with contextlib.suppress(PermissionError):
            root.chmod(0o755)

    @property
    def root(self) -> Path:
        """The folder of all environments."""
        return self._root

    async def folder(self, requirements: Sequence[str]) -> str:
        """See `Packages.folder`."""
        normalized = normal(requirements)
        key = key_of(normalized)
        path = self._root / key
        if not _used(path):
            task = self._building.get(key)
            if task is None:
                task = asyncio.create_task(self._make(key, normalized))
                self._building[key] = task
                task.add_done_callback(lambda done: self._on_built(key, done))
            await asyncio.shield(task)
        return str(path)

    def _on_built(self, key: str, task: asyncio.Task[None]) -> None:
        del self._building[key]
        # All callers may have been cancelled, so the error is logged here.
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning("packages not built", environment=key, error=str(error))

    async def close(self) -> None:
        """Cancels running builds."""
        tasks = list(self._building.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _make(self, key: str, normalized: Sequence[str]) -> None:
        async with self._slots.slot(), self._locked(key) as lock:
            path = self._root / key
            if path.is_dir():
                return
            folder = self._root / f".building-{key}-{secrets.token_hex(4)}"
            try:
                folder.mkdir(mode=0o755)
                packages = await self._builder.build(normalized, folder, lock)
                # The rename makes the complete environment visible at once.
                packages.rename(path)
            except OSError as error:
                raise PackagesError(
                    f"The packages cannot be stored: {error.strerror}.", temporary=True
                ) from error
            finally:
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        _log.info("packages built", environment=key, requirements=list(normalized))
        await asyncio.to_thread(self.remove_unused)

    @contextlib.asynccontextmanager
    async def _locked(self, key: str) -> AsyncIterator[int]:
        """Holds the lock of a key. If the process dies, its uv keeps the lock until it ends."""
        deadline = time.monotonic() + 2 * self._builder.limits.seconds
        with _open_lock(self._root / ".locks" / key) as lock:
            while not _try_lock(lock):
                if time.monotonic() > deadline:
                    raise PackagesError("The packages are still being fetched.", temporary=True)
                await asyncio.sleep(_POLL_S)
            yield lock

    def remove_unused(self) -> None:
        """Removes unused environments, excess ones, and leftovers of processes that died."""
        now = time.time()
        by_last_use: list[tuple[float, Path]] = []
        for path in self._root.iterdir():
            with contextlib.suppress(OSError):
                if path.name.startswith(".building-"):
                    self._remove(path, path.name.split("-")[1], now)
                elif path.name.startswith(".removing-"):
                    shutil.rmtree(path, ignore_errors=True)
                elif not path.name.startswith("."):
                    by_last_use.append((path.stat().st_mtime, path))
        by_last_use.sort(reverse=True)
        for index, (used, path) in enumerate(by_last_use):
            limit = self._unused_s if index < self._most else _RECENT_S
            if now - used > limit:
                with contextlib.suppress(OSError):
                    self._remove(path, path.name, now - limit)

    def _remove(self, path: Path, key: str, before: float) -> None:
        with _open_lock(self._root / ".locks" / key) as lock:
            # A process builds it, or it has been used again.
            if not _try_lock(lock) or path.stat().st_mtime > before:
                return
            moved_path = self._root / f".removing-{secrets.token_hex(8)}"
            path.rename(moved_path)
        shutil.rmtree(moved_path, ignore_errors=True)


def _used(path: Path) -> bool:
    """Returns whether an environment exists, and updates its time of last use."""
    try:
        if time.time() - path.stat().st_mtime > _TOUCH_S:
            os.utime(path)
    except FileNotFoundError:
        return False
    except OSError:
        # It exists, only its time could not be updated.
        return True
    return True


@contextlib.contextmanager
def _open_lock(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
