"""The clock of an event loop, moved by hand.

A limit that is short enough to be waited for can pass on a busy machine before anything else has
happened. A long one that is let pass once the rest is there cannot.
"""

from __future__ import annotations

import asyncio


def put_forward(seconds: float) -> None:
    """Puts the clock of the running loop forward; the loop must be asyncio's and the test's own."""
    loop = asyncio.get_running_loop()
    clock = loop.time
    loop.time = lambda: clock() + seconds  # type: ignore[method-assign]
