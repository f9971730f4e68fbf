"""The choice of the event loop: uvloop where it is installed."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Returns the factory of uvloop's event loop; None if uvloop is not installed."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    import uvloop  # noqa: PLC0415 - optional, and not on every platform

    make: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return make
