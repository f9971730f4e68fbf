"""Fair scheduling of unary calls between projects."""

from __future__ import annotations

from typing import Any

from strata.shared.context import current
from strata.shared.fair_slots import ProjectUse, slots_of_short_work
from strata.shared.foreground_work import ForegroundWork
from strata.shared.interceptors.pipeline import Next, ServedMethod, ServerCall


class FairCalls:
    """Lets calls of a quiet project overtake the waiting calls of a busy project.

    Streams are not scheduled here: they are long, and their work is scheduled where it is done.
    Calls without a project, such as those of an organization key, always pass. Background work of
    the process gives way to calls that are made for runs.

    Args:
        max_unary: Unary calls that the server takes at once.
        foreground: Where the calls for runs are foreground work; None if nothing gives way to them.
        use: See `FairSlots`.
    """

    def __init__(
        self,
        max_unary: int,
        foreground: ForegroundWork | None = None,
        use: ProjectUse | None = None,
    ) -> None:
        self._foreground = foreground or ForegroundWork()
        self._slots = slots_of_short_work(max_unary, "calls", use)

    def bind(self, method: ServedMethod, proceed: Next) -> Next:
        """Returns the call with a wait for a slot of its project."""
        if method.infrastructure or method.shape.streaming:
            return proceed

        async def run(call: ServerCall) -> Any:
            caller = current().caller
            if caller is None or not caller.project_id:
                return await proceed(call)
            async with self._slots.slot(caller.project_id):
                if caller.run_id is None:
                    return await proceed(call)
                with self._foreground:
                    return await proceed(call)

        return run
