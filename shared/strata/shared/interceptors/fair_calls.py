"""Serves the unary calls of the projects in turn."""

from __future__ import annotations

from typing import Any

from strata.shared.fair_slots import calling_project, slots_of_short_work
from strata.shared.interceptors.pipeline import Method, Next, ServerCall


class FairCalls:
    """Lets a call of a quiet project pass those that a busy project waits with.

    Streams are not ordered: they last, and what they do within is ordered where it is done.
    Calls without a project, such as those of an organisation key, always pass.

    Args:
        max_unary: Unary calls that the server takes at once.
    """

    def __init__(self, max_unary: int) -> None:
        self._slots = slots_of_short_work(max_unary, "calls")

    def bind(self, method: Method, proceed: Next) -> Next:
        """Returns the call that waits for the turn of its project."""
        if method.infrastructure or method.streaming:
            return proceed

        async def run(call: ServerCall) -> Any:
            project = calling_project()
            if not project:
                return await proceed(call)
            async with self._slots.slot(project):
                return await proceed(call)

        return run
