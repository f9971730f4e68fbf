"""Name resolution by the operating system, shared fairly between projects."""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor

from strata.protocol.errors import ResourceExhaustedError
from strata.shared.fair_slots import FairSlots

_Entry = tuple[int, int, int, str, tuple[object, ...]]

# `getaddrinfo` cannot be interrupted: a name whose server is silent keeps its thread for as long
# as the C library tries, typically 10 to 40 seconds.
_THREADS = 64
_SHARE = 1 / 16
_QUEUE = 64
_TIMEOUT_S = 5.0


def _look_up(host: str, port: int) -> list[_Entry]:
    return list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))


class SystemResolver:
    """The resolver of the operating system, on its own threads.

    A project gets at most a sixteenth of the threads, so names that hang delay only look-ups of
    their own project. A thread counts as used until the operating system returns, even if the
    caller no longer waits. The project is the current call's.

    Args:
        timeout_s: Seconds after which a look-up fails, including the wait for a thread.
    """

    def __init__(self, *, timeout_s: float = _TIMEOUT_S) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="resolver")
        self._slots = FairSlots(_THREADS, "name resolutions", share=_SHARE, queue=_QUEUE)
        self._timeout_s = timeout_s
        self._tasks: set[asyncio.Task[list[_Entry]]] = set()

    async def __call__(self, host: str, port: int) -> list[str]:
        """Returns the addresses of a name.

        Raises:
            OSError: The name has no address. `TimeoutError` if there was no answer in time, or if
                too many look-ups of the project are waiting.
        """
        has_thread = asyncio.Event()
        task = asyncio.create_task(self._resolve(host, port, has_thread))
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        try:
            async with asyncio.timeout(self._timeout_s):
                entries = await asyncio.shield(task)
        except ResourceExhaustedError as error:
            raise TimeoutError(error.message) from error
        finally:
            if not has_thread.is_set():
                task.cancel()
        return [str(entry[4][0]) for entry in entries]

    def close(self) -> None:
        """Ends the threads without waiting for running look-ups."""
        for task in self._tasks:
            task.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _resolve(self, host: str, port: int, has_thread: asyncio.Event) -> list[_Entry]:
        async with self._slots.slot():
            has_thread.set()
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._pool, _look_up, host, port)

    def _forget(self, task: asyncio.Task[list[_Entry]]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            # Marks the error as retrieved, because the caller may have stopped waiting.
            task.exception()
