"""Fair scheduling of unary calls between projects."""

from __future__ import annotations

from typing import Any

from strata.shared.context import calling_project
from strata.shared.fair_slots import slots_of_short_work
from strata.shared.interceptors.pipeline import Next, ServedMethod, ServerCall


class FairCalls:
    """Lets calls of a quiet project overtake the waiting calls of a busy project.

    Streams are not scheduled here: they are long, and their work is scheduled where it is done.
    Calls without a project, such as those of an organization key, always pass.

    Args:
        max_unary: Unary calls that the server takes at once.
    """

    def __init__(self, max_unary: int) -> None:
        self._slots = slots_of_short_work(max_unary, "calls")

    def bind(self, method: ServedMethod, proceed: Next) -> Next:
        """Returns the call with a wait for a slot of its project."""
        if method.infrastructure or method.shape.streaming:
            return proceed

        async def run(call: ServerCall) -> Any:
            project = calling_project()
            if not project:
                return await proceed(call)
            async with self._slots.slot(project):
                return await proceed(call)

        return run
