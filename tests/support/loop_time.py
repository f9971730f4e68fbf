"""Sets the clock of an event loop forward.

A limit short enough for a test can end on a busy machine before anything else has happened. A long
limit whose time the test advances, once everything else has happened, cannot.
"""

from __future__ import annotations

import asyncio


def put_forward(seconds: float) -> None:
    """Puts the clock of the running loop forward; the loop must be asyncio's and the test's own."""
    loop = asyncio.get_running_loop()
    clock = loop.time
    loop.time = lambda: clock() + seconds  # type: ignore[method-assign]
