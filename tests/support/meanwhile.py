"""Something that happens at a moment that a test chooses."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from threading import Thread


def at_once(work: Callable[[], Awaitable[object]]) -> None:
    """Does something to its end before it returns, though an event loop runs here.

    Args:
        work: Runs in a thread with a loop of its own; so it opens its own connections.
    """
    failures: list[BaseException] = []

    async def main() -> None:
        await work()

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:
            failures.append(error)

    thread = Thread(target=contextvars.copy_context().run, args=(run,))
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
