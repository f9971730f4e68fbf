"""Work that a service repeats periodically in the background."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from strata.protocol.errors import StrataError
from strata.shared.logs import get_logger

_log = get_logger(__name__)


async def keep_polling(poll: Callable[[], Awaitable[object]], every_s: float, problem: str) -> None:
    """Calls a function periodically until it is cancelled.

    The pauses are random, so that replicas do not work at the same moment.

    Args:
        poll: Does the work once.
        every_s: Mean seconds between two calls.
        problem: What is logged if a call raises a `StrataError`, after which polling continues.
    """
    while True:
        try:
            await poll()
        except StrataError as error:
            _log.warning(problem, error=repr(error))
        await asyncio.sleep(every_s * random.uniform(0.8, 1.2))  # noqa: S311
