"""Limits how many runs of one project use the processors at the same time.

A run uses the processors while it begins, builds model requests and stores its steps; most of the
time it waits for a model or for tools. In one event loop, and on the same processors, each part of
a turn waits behind the parts of all turns that work at that moment. So what a busy project costs
the others depends on how many of its runs work at once, and not on how many wait for a model.
"""

from __future__ import annotations

from strata.api.agent_loop.v1 import turn_service_pb2 as turn_pb
from strata.shared.fair_slots import ANY_NUMBER, FairSlots, Slot
from strata.shared.project_use import ProjectUse

_SLOTS = 1024
# More working runs of one project do not make a gateway faster, but the first turn of another
# project works beside all of them.
_ALONE = 24
# While other projects are active: a turn of another project then shares the processors with one
# run, and with the runs whose models answer at that moment.
_BESIDE_OTHERS = 1
# Work that takes longer waits for something else, such as an unavailable service.
_HOLD_S = 0.25
# How long a run that waits keeps its slot beside other projects: a model or a tool that answers
# within this time uses the same processors, and the run continues. Without it, another run would
# begin during the wait, and the rest of the turn of a quiet project would work beside it.
_SHORT_WAIT_S = 0.03


def slots_of_working_runs(use: ProjectUse | None = None) -> FairSlots:
    """Returns the slots for the working runs of a gateway; for `use` see `FairSlots`."""
    return FairSlots(
        _SLOTS,
        "working runs",
        share=_ALONE / _SLOTS,
        queue=ANY_NUMBER,
        most_beside_others=_BESIDE_OTHERS,
        hold_s=_HOLD_S,
        use=use,
        arriving=True,
    )


class RunWork:
    """The slot of one run, held while it works.

    A run waits for its slot before each dispatch. It gives the slot back when it starts to wait for
    a model or for tools, beside other projects a moment later. When it continues, it takes the slot
    even if none is free, because the agent loop does not wait for this gateway; other runs of the
    project begin later instead.

    Args:
        slots: Slots of the gateway; None for a run that needs none.
        project_id: Project of the run.
    """

    def __init__(self, slots: FairSlots | None, project_id: str) -> None:
        self._slot = None if slots is None else slots.slot(project_id)
        self._tools: set[str] = set()

    def begin_now(self) -> bool:
        """Starts the work if a slot is free; returns whether it did."""
        self._tools.clear()
        return self._slot is None or self._slot.acquire_now()

    async def begin(self) -> None:
        """Waits for a slot, and starts the work."""
        if not self.begin_now() and self._slot is not None:
            await self._slot.acquire()

    def begin_after(self, acceptance: Slot) -> None:
        """Starts the work if a slot is free when the slot of the run's acceptance is given back."""
        if self._slot is not None:
            acceptance.replace_by(self._slot)

    def note(self, response: turn_pb.ExecuteRunResponse) -> None:
        """Notes from a response of the agent loop whether the run works or waits."""
        kind: str | None = response.WhichOneof("content")
        if kind == "event":
            kind = response.event.WhichOneof("event")
        match kind:
            case "request":
                self._wait()
            case "reply":
                self._resume()
            case "tool_started":
                if not self._tools:
                    self._wait()
                self._tools.add(response.event.tool_started.tool_call_id)
            case "tool_finished" if self._tools:
                self._tools.discard(response.event.tool_finished.tool_return.tool_call_id)
                if not self._tools:
                    self._resume()
            case _:
                pass

    def pause(self) -> None:
        """Gives the slot back: the run waits for long, or has ended."""
        if self._slot is not None:
            self._slot.release()

    def _wait(self) -> None:
        if self._slot is not None:
            self._slot.release_after(_SHORT_WAIT_S)

    def _resume(self) -> None:
        if self._slot is not None:
            self._slot.take()
