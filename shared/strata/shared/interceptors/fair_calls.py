"""Fair scheduling of unary calls between projects."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from strata.shared.context import current
from strata.shared.fair_slots import Slot, slots_of_short_work
from strata.shared.foreground_work import ForegroundWork
from strata.shared.interceptors.idle_uploads import is_upload
from strata.shared.interceptors.pipeline import Next, ServedMethod, ServerCall
from strata.shared.project_use import ProjectUse


class FairCalls:
    """Lets calls of a quiet project overtake the waiting calls of a busy project.

    Uploads of clients wait before each message is taken. Other streams are not scheduled here: they
    are long, and their work is scheduled where it is done. Calls without a project (of an
    organization key) or without an organization (background work of services) always pass.
    Background work of the process yields to calls that are made for runs.

    Args:
        max_unary: Unary calls that the server takes at once.
        foreground: Where the calls for runs are foreground work; None if no work yields to them.
        use: See `FairSlots`.
        from_clients: Whether clients call this server. Their calls count as arriving work; calls
            for runs do not, because they are part of it.
    """

    def __init__(
        self,
        max_unary: int,
        foreground: ForegroundWork | None = None,
        use: ProjectUse | None = None,
        *,
        from_clients: bool = False,
    ) -> None:
        self._foreground = foreground or ForegroundWork()
        self._slots = slots_of_short_work(max_unary, "calls", use)
        self._arriving = (
            slots_of_short_work(max_unary, "calls", use, arriving=True) if from_clients else None
        )

    def bind(self, method: ServedMethod, proceed: Next) -> Next:
        """Returns the call with a wait for a slot of its project."""
        if method.infrastructure:
            return proceed
        if method.shape.streaming:
            return self._upload(proceed) if is_upload(method) else proceed

        async def run(call: ServerCall) -> Any:
            caller = current().caller
            if caller is None or not caller.project_id or not caller.organization_id:
                return await proceed(call)
            if caller.run_id is None:
                async with (self._arriving or self._slots).slot(caller.project_id):
                    return await proceed(call)
            async with self._slots.slot(caller.project_id):
                with self._foreground:
                    return await proceed(call)

        return run

    def _upload(self, proceed: Next) -> Next:
        slots = self._arriving
        if slots is None:
            return proceed

        async def run(call: ServerCall) -> Any:
            caller = current().caller
            if caller is None or not caller.project_id or caller.run_id is not None:
                return await proceed(call)
            slot = slots.slot(caller.project_id)
            call.request = _taken_in_turn(call.request, slot)
            try:
                return await proceed(call)
            finally:
                slot.release()

        return run


async def _taken_in_turn(requests: Any, slot: Slot) -> AsyncIterator[Any]:
    """Yields each request, and ends, while the slot is held, which is released soon after."""
    async for request in requests:
        await slot.acquire()
        yield request
    await slot.acquire()
