"""Gives every call an end."""

from __future__ import annotations

import asyncio
from typing import Any

from strata.shared.context import current, use
from strata.shared.errors import DeadlineExceededError
from strata.shared.interceptors.pipeline import Method, Next, ServerCall


class Deadline:
    """Puts the deadline into the context, imposes one on calls that come without.

    A call that came with a deadline is cancelled by the transport when it passes; one
    that came without is ended here with DEADLINE_EXCEEDED. A call that has less than
    the floor left is refused: its caller will be gone before the answer is.

    Args:
        unary_s: Imposed on unary calls.
        stream_s: Imposed on streams.
        floor_s: The least time that is worth starting for.
    """

    def __init__(self, *, unary_s: float, stream_s: float, floor_s: float) -> None:
        self._default = {False: unary_s, True: stream_s}
        self._floor = floor_s

    def bind(self, method: Method, proceed: Next) -> Next:
        """Returns the call with an end."""
        if method.infrastructure:
            return proceed
        default, floor = self._default[method.streaming], self._floor

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
            "The call came without a deadline and exceeded the one imposed on it."
        ) from None
