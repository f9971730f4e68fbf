"""The folder of environments: each is built once, by whoever asks first, and then only read.

<key>/              a finished environment; its time is that of its last use, to ten minutes
.building-<key>-*/  one that is being built, by who holds the lock of its key
.removing-*/        one that is on its way out
.locks/<key>        held while the key's environment is built or removed
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
# One that was used within this is never removed: a call may still read it.
_RECENT_S = 3600.0
_POLL_S = 0.1
_PARALLEL = 2
# One project fetches one at a time.
_SHARE = 0.5
_log = get_logger(__name__)


class Environments:
    """Provides environments; any number of processes may share the folder.

    Args:
        root: The folder, on a file system with locks; it is made if it is not there.
        builder: Builds one.
        unused: Time after which one that nobody used is removed.
        most: Environments that are kept at most; those used last are kept.
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
        # The user that tools run as may be another.
        with contextlib.suppress(PermissionError):
            root.chmod(0o755)

    @property
    def root(self) -> Path:
        """The folder that all environments are in."""
        return self._root

    async def folder(self, requirements: Sequence[str]) -> str:
        """See `Packages.folder`."""
        wanted = normal(requirements)
        key = key_of(wanted)
        path = self._root / key
        if not _used(path):
            task = self._building.get(key)
            if task is None:
                task = asyncio.create_task(self._make(key, wanted))
                self._building[key] = task
                task.add_done_callback(lambda done: self._built(key, done))
            await asyncio.shield(task)
        return str(path)

    def _built(self, key: str, task: asyncio.Task[None]) -> None:
        del self._building[key]
        # Those who asked may all have gone.
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning("packages not built", environment=key, error=str(error))

    async def close(self) -> None:
        """Ends what is being built."""
        tasks = list(self._building.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _make(self, key: str, wanted: Sequence[str]) -> None:
        async with self._slots.slot(), self._locked(key) as lock:
            path = self._root / key
            if path.is_dir():
                return
            folder = self._root / f".building-{key}-{secrets.token_hex(4)}"
            try:
                folder.mkdir(mode=0o755)
                packages = await self._builder.build(wanted, folder, lock)
                # There is all of it, or nothing.
                packages.rename(path)
            except OSError as error:
                raise PackagesError(
                    f"The packages cannot be stored: {error.strerror}.", temporary=True
                ) from error
            finally:
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        _log.info("packages built", environment=key, requirements=list(wanted))
        await asyncio.to_thread(self.remove_unused)

    @contextlib.asynccontextmanager
    async def _locked(self, key: str) -> AsyncIterator[int]:
        """Holds the lock of a key; who holds it and dies, loses it once his uv has ended."""
        deadline = time.monotonic() + 2 * self._builder.limits.seconds
        with _open_lock(self._root / ".locks" / key) as lock:
            while not _try_lock(lock):
                if time.monotonic() > deadline:
                    raise PackagesError("The packages are still being fetched.", temporary=True)
                await asyncio.sleep(_POLL_S)
            yield lock

    def remove_unused(self) -> None:
        """Removes what nobody has used for long, what is too many, and what the dead left."""
        now = time.time()
        found: list[tuple[float, Path]] = []
        for path in self._root.iterdir():
            with contextlib.suppress(OSError):
                if path.name.startswith(".building-"):
                    self._remove(path, path.name.split("-")[1], now)
                elif path.name.startswith(".removing-"):
                    shutil.rmtree(path, ignore_errors=True)
                elif not path.name.startswith("."):
                    found.append((path.stat().st_mtime, path))
        found.sort(reverse=True)
        for index, (used, path) in enumerate(found):
            limit = self._unused_s if index < self._most else _RECENT_S
            if now - used > limit:
                with contextlib.suppress(OSError):
                    self._remove(path, path.name, now - limit)

    def _remove(self, path: Path, key: str, before: float) -> None:
        with _open_lock(self._root / ".locks" / key) as lock:
            # Held by who builds it; used again meanwhile.
            if not _try_lock(lock) or path.stat().st_mtime > before:
                return
            gone = self._root / f".removing-{secrets.token_hex(8)}"
            path.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)


def _used(path: Path) -> bool:
    """Says whether an environment is there, and notes that it is used."""
    try:
        if time.time() - path.stat().st_mtime > _TOUCH_S:
            os.utime(path)
    except FileNotFoundError:
        return False
    except OSError:
        # It can be read all the same.
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
