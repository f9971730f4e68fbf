"""Enforces a deadline for every call."""

from __future__ import annotations

import asyncio
from typing import Any

from strata.protocol.errors import DeadlineExceededError
from strata.shared.context import current, use
from strata.shared.interceptors.pipeline import Next, ServedMethod, ServerCall


class Deadline:
    """Sets the deadline in the context, and imposes one on calls without.

    The transport cancels a call whose own deadline passes. A call without a deadline is ended
    here with DEADLINE_EXCEEDED. A call with less time left than the floor is refused, because its
    caller would not wait for the answer.

    Args:
        unary_s: Seconds imposed on unary calls.
        stream_s: Seconds imposed on streams.
        floor_s: Minimum seconds that a call must have left to be started.
    """

    def __init__(self, *, unary_s: float, stream_s: float, floor_s: float) -> None:
        self._default = {False: unary_s, True: stream_s}
        self._floor = floor_s

    def bind(self, method: ServedMethod, proceed: Next) -> Next:
        """Returns the call with its deadline enforced."""
        if method.infrastructure:
            return proceed
        default, floor = self._default[method.shape.streaming], self._floor

        async def run(call: ServerCall) -> Any:
            now = asyncio.get_running_loop().time()
            remaining = call.context.time_remaining()
            if remaining is not None:
                if remaining < floor:
                    raise DeadlineExceededError("Too little time is left to start the call.")
                with use(current().with_deadline(now + remaining)):
                    return await proceed(call)
            deadline = now + default
            with use(current().with_deadline(deadline)):
                return await _until(deadline, call, proceed)

        return run


async def _until(deadline: float, call: ServerCall, proceed: Next) -> Any:
    try:
        async with asyncio.timeout_at(deadline) as scope:
            return await proceed(call)
    except TimeoutError:
        if not scope.expired():
            raise
        raise DeadlineExceededError(
            "The call had no deadline and exceeded the server's default."
        ) from None
