"""A bounded number of background tasks, at most one for each key."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)


class BoundedTasks(Generic[KeyT]):
    """Runs tasks in the background, so that one that takes long does not hold the others.

    Args:
        most: Maximum number of tasks at the same time.
        ended: Called when a task has ended and another one may start.
    """

    def __init__(self, most: int, ended: Callable[[], None]) -> None:
        self._most = most
        self._ended = ended
        self._tasks: dict[KeyT, asyncio.Task[None]] = {}

    @property
    def free(self) -> int:
        """How many more tasks may start now."""
        return self._most - len(self._tasks)

    def start(self, key: KeyT, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Starts a task, unless one of this key is running.

        Args:
            key: The key.
            work: Returns what the task runs, which handles its own errors.
        """
        if key in self._tasks:
            return
        task = asyncio.create_task(work())
        self._tasks[key] = task
        task.add_done_callback(lambda _: self._end(key))

    def cancel(self) -> None:
        """Cancels all tasks."""
        for task in self._tasks.values():
            task.cancel()

    def _end(self, key: KeyT) -> None:
        del self._tasks[key]
        self._ended()
