"""Keeps the collector of garbage away from what stays until the process ends.

Modules, descriptors and compiled statements are never garbage; to walk them all holds the event
loop for 150 ms each time.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

# Pauses after the start; the SDKs of model providers are there after the first.
_AGAIN_S = (5.0, 25.0, 90.0)
_YOUNG = 1


def freeze_long_lived() -> None:
    """Takes all objects that there are out of every later collection.

    The collector starts a full collection when what came since the last one is a quarter of what
    that one has left (CPython's `long_lived_total`), and `gc.freeze` does not change that count: a
    large start would put off the first collection until it is a long one. So one collects at once,
    with nothing to walk.
    """
    gc.freeze()
    gc.collect()


@asynccontextmanager
async def start_freezing() -> AsyncIterator[None]:
    """Sets aside what the start has made, and what comes soon after.

    Some is loaded in the background or by the first calls. Then nothing is walked before: the few
    objects in use at these moments may stay, too.
    """

    async def again() -> None:
        for pause in _AGAIN_S:
            await asyncio.sleep(pause)
            gc.collect(_YOUNG)
            freeze_long_lived()

    gc.collect()
    freeze_long_lived()
    later = asyncio.create_task(again(), name="set the start aside")
    try:
        yield
    finally:
        later.cancel()
