"""Retries idempotent calls while their service is unavailable."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from strata.protocol.errors import StrataError, is_transient
from strata.shared.logs import get_logger

ResultT = TypeVar("ResultT")

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0

_log = get_logger(__name__)


async def until_available(call: Callable[[], Awaitable[ResultT]]) -> ResultT:
    """Repeats a call until its service accepts it; the pauses grow to two seconds.

    Used for writes that must not be lost, such as the commit of a reply that the provider charged
    for. The deadline of the turn, its cancellation or a newer attempt ends the repetition.

    Args:
        call: Starts the call; must be harmless when repeated.

    Raises:
        StrataError: The service refused the call.
    """
    pause = _FIRST_PAUSE_S
    while True:
        try:
            return await call()
        except StrataError as error:
            if not is_transient(error):
                raise
            _log.warning("a call is repeated until its service is back", error=repr(error))
            wait = max(pause * random.uniform(0.7, 1.3), error.retry_after or 0.0)  # noqa: S311
        await asyncio.sleep(min(wait, _LONGEST_PAUSE_S))
        pause = min(pause * 2, _LONGEST_PAUSE_S)
