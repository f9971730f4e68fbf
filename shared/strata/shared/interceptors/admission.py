"""Refuses calls politely when there are too many.

gRPC's own `maximum_concurrent_rpcs` lets callers run into their deadlines; a
refusal with a hint lets them go elsewhere.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from strata.shared.errors import Reason, ResourceExhaustedError
from strata.shared.fair_slots import calling_project, share_of
from strata.shared.interceptors.pipeline import Method, Next, ServerCall


class Admission:
    """Sheds calls over a number in flight; health and reflection always pass.

    Unary calls and streams are counted apart, so that long streams cannot starve the
    short calls that they depend on.

    Args:
        max_unary: Unary calls at once.
        max_streams: Streaming calls at once.
        share: Part of each that one project may take, so that some is left for others.
        retry_after_s: Mean of the hint; spread by half to either side, so that the shed
            callers do not come back together.
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
        streaming = method.streaming

        async def run(call: ServerCall) -> Any:
            if self._in_flight[streaming] >= self._limits[streaming]:
                raise self._refusal("The server is at its limit of concurrent calls.")
            project, held = calling_project(), self._of_project[streaming]
            most = self._shares[streaming]
            if project and held[project] >= most:
                kind = "streams" if streaming else "calls"
                raise self._refusal(
                    f"The project has {most} {kind} under way here, as many as it may. Try again"
                    " when some have ended."
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
