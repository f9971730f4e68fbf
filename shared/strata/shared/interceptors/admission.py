"""Sheds load: refuses calls with a retry hint when too many are in flight.

With gRPC's own `maximum_concurrent_rpcs`, callers would run into their deadlines; after a refusal
with a hint they can try another replica.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from strata.protocol.errors import Reason, ResourceExhaustedError
from strata.shared.fair_slots import calling_project, share_of
from strata.shared.interceptors.pipeline import Method, Next, ServerCall


class Admission:
    """Refuses calls beyond a number in flight; health and reflection always pass.

    Unary calls and streams are counted apart, so that long streams cannot starve the
    short calls that they depend on.

    Args:
        max_unary: Unary calls at once.
        max_streams: Streaming calls at once.
        share: Share of each that one project may take; the rest is kept for other projects.
        retry_after_s: Mean of the retry hint, with a jitter of 50%, so that refused callers do not
            return at the same time.
    """

    def __init__(
        self, *, max_unary: int, max_streams: int, retry_after_s: float, share: float = 1.0
    ) -> None:
        self._limits = {False: max_unary, True: max_streams}
        self._shares = {kind: share_of(limit, share) for kind, limit in self._limits.items()}
        self._in_flight = {False: 0, True: 0}
        self._of_project: dict[bool, Counter[str]] = {False: Counter(), True: Counter()}
        self._retry_after_s = retry_after_s

    def bind(self, method: Method, proceed: Next) -> Next:
        """Returns the call that is counted and may be refused."""
        if method.infrastructure:
            return proceed
        streaming = method.shape.streaming

        async def run(call: ServerCall) -> Any:
            if self._in_flight[streaming] >= self._limits[streaming]:
                raise self._refusal("The server is at its limit of concurrent calls.")
            project, held = calling_project(), self._of_project[streaming]
            most = self._shares[streaming]
            if project and held[project] >= most:
                kind = "streams" if streaming else "calls"
                raise self._refusal(
                    f"The project has {most} {kind} in progress on this server, which is its limit."
                    " Try again when some have ended."
                )
            self._in_flight[streaming] += 1
            held[project] += 1
            try:
                return await proceed(call)
            finally:
                self._in_flight[streaming] -= 1
                held[project] -= 1
                if not held[project]:
                    del held[project]

        return run

    def _refusal(self, words: str) -> ResourceExhaustedError:
        return ResourceExhaustedError(
            words,
            reason=Reason.OVERLOADED,
            retry_after=self._retry_after_s * random.uniform(0.5, 1.5),  # noqa: S311
        )
