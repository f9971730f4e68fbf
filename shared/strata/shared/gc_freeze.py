"""Keeps garbage collections short: long-lived objects are frozen (`gc.freeze`).

Modules, descriptors and compiled statements are never garbage; traversing them all blocks the event
loop for 150 ms each time.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

# Pauses after the start; the SDKs of model providers are loaded after the first.
_AGAIN_S = (5.0, 25.0, 90.0)
_YOUNG = 1


def freeze_long_lived() -> None:
    """Excludes all present objects from later collections.

    CPython starts a full collection when the objects added since the last one are a quarter of
    those that survived it (`long_lived_total`). `gc.freeze` does not change that count: after a
    large start the first collection would come late and take long. Therefore a collection runs at
    once, with nothing to traverse.
    """
    gc.freeze()
    gc.collect()


@contextmanager
def one_collection() -> Iterator[None]:
    """Runs one garbage collection after the block instead of many during it, and freezes the rest.

    It is for imports of many modules. What they create stays; the collections that they start
    traverse it again and again, which takes a tenth to a sixth of the CPU time of the imports.
    """
    gc.disable()
    try:
        yield
        gc.collect()
        gc.freeze()
    finally:
        gc.enable()


@asynccontextmanager
async def start_freezing() -> AsyncIterator[None]:
    """Freezes the objects of the start, and again those that are loaded soon after.

    Some objects are loaded in the background or by the first calls. No full collection runs before
    the later freezes: the few temporary objects of those moments may be frozen, too.
    """

    async def again() -> None:
        for pause in _AGAIN_S:
            await asyncio.sleep(pause)
            gc.collect(_YOUNG)
            freeze_long_lived()

    gc.collect()
    freeze_long_lived()
    later = asyncio.create_task(again(), name="freeze long-lived objects")
    try:
        yield
    finally:
        later.cancel()
