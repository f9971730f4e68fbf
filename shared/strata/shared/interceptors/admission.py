"""Refuses calls politely when there are too many.

gRPC's own `maximum_concurrent_rpcs` lets callers run into their deadlines; a
refusal with a hint lets them go elsewhere.
"""

from __future__ import annotations

import random
from typing import Any

from strata.shared.errors import Reason, ResourceExhaustedError
from strata.shared.interceptors.pipeline import Method, Next, ServerCall


class Admission:
    """Sheds calls over a number in flight; health and reflection always pass.

    Unary calls and streams are counted apart, so that long streams cannot starve the
    short calls that they depend on.

    Args:
        max_unary: Unary calls at once.
        max_streams: Streaming calls at once.
        retry_after_s: Mean of the hint; spread by half to either side, so that the shed
            callers do not come back together.
    """

    def __init__(self, *, max_unary: int, max_streams: int, retry_after_s: float) -> None:
        self._limits = {False: max_unary, True: max_streams}
        self._in_flight = {False: 0, True: 0}
        self._retry_after_s = retry_after_s

    def bind(self, method: Method, proceed: Next) -> Next:
        """Returns the call that is counted and may be refused."""
        if method.infrastructure:
            return proceed
        streaming = method.streaming

        async def run(call: ServerCall) -> Any:
            if self._in_flight[streaming] >= self._limits[streaming]:
                raise ResourceExhaustedError(
                    "The server is at its limit of concurrent calls.",
                    reason=Reason.OVERLOADED,
                    retry_after=self._retry_after_s * random.uniform(0.5, 1.5),  # noqa: S311
                )
            self._in_flight[streaming] += 1
            try:
                return await proceed(call)
            finally:
                self._in_flight[streaming] -= 1

        return run
