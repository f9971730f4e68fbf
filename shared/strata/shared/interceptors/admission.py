"""Sheds load: refuses calls with a retry hint when too many are in flight.

With gRPC's own `maximum_concurrent_rpcs`, callers would run into their deadlines; after a refusal
with a hint they can try another replica.
"""

from __future__ import annotations

import random
from collections import Counter
from contextlib import AbstractContextManager
from typing import Any

from strata.protocol.errors import Reason, ResourceExhaustedError
from strata.shared.context import calling_project
from strata.shared.fair_slots import share_of
from strata.shared.interceptors.pipeline import Next, ServedMethod, ServerCall


class Slots:
    """Limits how many of one kind are in progress, of all projects and of each.

    Args:
        limit: Maximum number of concurrent ones.
        kind: The counted objects, as a plural noun for messages.
        retry_after_s: Mean of the retry hint, with a jitter of 50%, so that refused callers do not
            return at the same time.
        share: Share of the limit that one project may take; the rest is kept for other projects.
    """

    def __init__(self, limit: int, *, kind: str, retry_after_s: float, share: float = 1.0) -> None:
        self._limit = limit
        self._kind = kind
        self._retry_after_s = retry_after_s
        self._limit_of_project = share_of(limit, share)
        self._taken_slots = 0
        self._taken_of_project: Counter[str] = Counter()

    def take(self, project: str) -> AbstractContextManager[None]:
        """Takes a slot, which the end of the block gives back.

        Args:
            project: The project that it counts for; empty for none.

        Raises:
            ResourceExhaustedError: There is none left.
        """
        if self._taken_slots >= self._limit:
            raise self._refusal(f"The server is at its limit of concurrent {self._kind}.")
        if project and self._taken_of_project[project] >= self._limit_of_project:
            raise self._refusal(
                f"The project has {self._limit_of_project} {self._kind} in progress on this server,"
                " which is its limit. Try again when some have ended."
            )
        self._taken_slots += 1
        self._taken_of_project[project] += 1
        return _Taken(self, project)

    def give_back(self, project: str) -> None:
        """Gives a slot back that `take` took."""
        self._taken_slots -= 1
        self._taken_of_project[project] -= 1
        if not self._taken_of_project[project]:
            del self._taken_of_project[project]

    def _refusal(self, message: str) -> ResourceExhaustedError:
        return ResourceExhaustedError(
            message,
            reason=Reason.OVERLOADED,
            retry_after=self._retry_after_s * random.uniform(0.5, 1.5),  # noqa: S311
        )


class _Taken:
    """A slot that the end of the block gives back; every call has one."""

    __slots__ = ("_project", "_slots")

    def __init__(self, slots: Slots, project: str) -> None:
        self._slots = slots
        self._project = project

    def __enter__(self) -> None:
        """Does nothing: the slot is taken."""

    def __exit__(self, *_error: object) -> None:
        self._slots.give_back(self._project)


class Admission:
    """Refuses calls beyond a number in flight; health and reflection always pass.

    Unary calls and streams are counted apart, so that long streams cannot starve the
    short calls that they depend on.

    Args:
        max_unary: Unary calls at once.
        max_streams: Streaming calls at once.
        share: See `Slots`.
        retry_after_s: See `Slots`.
    """

    def __init__(
        self, *, max_unary: int, max_streams: int, retry_after_s: float, share: float = 1.0
    ) -> None:
        self._slots = {
            streaming: Slots(limit, kind=kind, retry_after_s=retry_after_s, share=share)
            for streaming, limit, kind in (
                (False, max_unary, "calls"),
                (True, max_streams, "streams"),
            )
        }

    def bind(self, method: ServedMethod, proceed: Next) -> Next:
        """Returns the call that is counted and may be refused."""
        if method.infrastructure:
            return proceed
        slots = self._slots[method.shape.streaming]

        async def run(call: ServerCall) -> Any:
            with slots.take(calling_project()):
                return await proceed(call)

        return run
