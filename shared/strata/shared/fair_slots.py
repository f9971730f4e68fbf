"""Concurrency slots that are shared fairly between projects."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self

from strata.protocol.errors import Reason, ResourceExhaustedError
from strata.shared.context import calling_project
from strata.shared.project_use import Patience, ProjectUse

SHARE = 0.75
"""Default share of the slots that one project may hold."""
QUEUE = 256
"""Default number of waiters that one project may have."""
_RETRY_S = 1.0
# One slot would leave processors idle; more would make the other projects wait longer.
_SHORT_BESIDE_OTHERS = 2
_SHORT_S = 0.1
# With 0.02 s, a turn of a quiet project waited as long as without giving way (decision 0122).
_SHORT_GIVE_WAY_S = 0.05
ANY_NUMBER = 2**31
"""Queue length for work that is already limited where runs or calls are accepted."""


def share_of(slots: int, share: float = SHARE) -> int:
    """Returns how many of the slots one project may hold; at least one, all of a few.

    Args:
        slots: Slots in all.
        share: Share of one project; the result is rounded up.
    """
    return max(1, min(slots, math.ceil(slots * share)))


def slots_of_short_work(
    slots: int, name: str, use: ProjectUse | None = None, *, arriving: bool = False
) -> FairSlots:
    """Returns slots for work that takes milliseconds of processor time, such as a call.

    Without fair slots, the only call of a quiet project would wait behind all calls that a busy
    project has started. A project that is alone has its normal share of the slots. While another
    project is active it has two, and more while processors are idle; if it used them for longer
    lately than one that holds a slot, it waits for each of them, at most 0.05 s. A slot counts as
    free after 0.1 s: work that takes longer waits for a model or another service and does not
    occupy the processor.

    Args:
        slots: Slots in all.
        name: See `FairSlots`.
        use: See `FairSlots`.
        arriving: See `FairSlots`.
    """
    return FairSlots(
        slots,
        name,
        queue=ANY_NUMBER,
        most_beside_others=_SHORT_BESIDE_OTHERS,
        hold_s=_SHORT_S,
        give_way_s=_SHORT_GIVE_WAY_S,
        use=use,
        arriving=arriving,
    )


class FairSlots:
    """A fixed number of slots that projects hold while their work runs.

    A project holds at most its share, so that slots are left for others even when work is long. A
    free slot goes to the project that holds the fewest; among equals, to the one that was served
    longest ago. Within a project, waiters are served in order of arrival.

    Args:
        slots: Slots in all.
        name: The use of a slot, as shown in errors: "calls in the sandbox".
        share: Share of the slots that one project may hold.
        queue: Maximum number of waiters of one project; further requests are refused.
        most_beside_others: Slots that one project may hold while other projects want slots, or
            wanted some in the last ten seconds, of this kind or another one of `use`; None for its
            share.
        hold_s: Seconds after which a slot counts as free although its block still runs, so that
            work that waits for something else does not block other projects. None for never.
        give_way_s: A project that has held slots for longer lately than another one gets no
            further slot while that one holds any, but waits at most these seconds; None if
            projects do not give way.
        use: Where the slots of several kinds count, if projects give way; None to count only these.
        arriving: Whether the slots are for work that arrives from outside, for which projects give
            way: beside other projects, one project has few slots of all such kinds together, and
            waits for one of any of them, not `give_way_s` for each.
        now: A monotonic clock, in seconds.

    Attributes:
        hold_s: As the argument.
    """

    def __init__(
        self,
        slots: int,
        name: str,
        *,
        share: float = SHARE,
        queue: int = QUEUE,
        most_beside_others: int | None = None,
        hold_s: float | None = None,
        give_way_s: float | None = None,
        use: ProjectUse | None = None,
        arriving: bool = False,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._slots = slots
        self._name = name
        self._most = share_of(slots, share)
        self._most_beside_others = most_beside_others or self._most
        self._queue = queue
        self.hold_s = hold_s
        self._use = use or ProjectUse(now)
        self._arriving = arriving
        # None if projects do not give way.
        self._patience: Patience | None = None
        if arriving:
            self._patience = self._use.patience()
        elif give_way_s is not None:
            self._patience = Patience(give_way_s, now)
        self._wake: asyncio.TimerHandle | None = None
        self._used = 0
        self._held: dict[str, int] = {}
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        # The order in which projects were served: those without an entry come first.
        self._served: dict[str, int] = {}
        self._turn = 0

    @property
    def most(self) -> int:
        """Slots that one project may hold."""
        return self._most

    def held(self, project_id: str) -> int:
        """Returns how many slots a project holds."""
        return self._held.get(project_id, 0)

    def waiting(self, project_id: str) -> int:
        """Returns how many waiters a project has."""
        return len(self._waiting.get(project_id, ()))

    def is_shared(self, project_id: str) -> bool:
        """Returns whether another project wanted slots in the last ten seconds, of any kind.

        Always False for slots without `most_beside_others`.
        """
        return self._most_beside_others != self._most and self._use.is_shared(project_id)

    @property
    def has_waiters(self) -> bool:
        """Whether any project waits for a slot."""
        return bool(self._waiting)

    def slot(self, project_id: str | None = None) -> Slot:
        """Returns a slot, which ``async with`` waits for and holds while the block lasts.

        Args:
            project_id: The project; None for the project of the call being served.

        Raises:
            ResourceExhaustedError: The queue of the project is full (``OVERLOADED``).
        """
        return Slot(self, calling_project() if project_id is None else project_id)

    def acquire_now(self, project: str) -> bool:
        """Takes a slot if one is free and no call of the project waits; returns whether it did."""
        self._note(project)
        if self._waiting and self._waiting.get(project):
            return False
        if not self._may_have(project):
            return False
        self._take(project)
        return True

    def take(self, project: str) -> None:
        """Takes a slot even if none is free, for work that cannot be delayed.

        The project gets no further slot until it holds fewer than it may.
        """
        self._note(project)
        self._take(project)

    async def acquire(self, project: str) -> None:
        """Waits for a slot; raises as `slot` does."""
        waiters = self._waiting.setdefault(project, deque())
        if len(waiters) >= self._queue:
            raise ResourceExhaustedError(
                f"The project has reached the limit of {self._name}: {self._most} at once and"
                f" {self._queue} more that wait. Try again when some have ended.",
                reason=Reason.OVERLOADED,
                metadata={"limit": self._most, "queue": self._queue, "of": self._name},
                retry_after=_RETRY_S,
            )
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiters.append(waiter)
        if self._patience is not None:
            self._use.wait_for(self)
        self._wake_later()
        try:
            await waiter
        except BaseException:
            if waiter.done() and not waiter.cancelled():
                # The slot was assigned at the moment of the cancellation.
                self.release(project)
            elif waiter in waiters:
                waiters.remove(waiter)
                self._tidy(project)
            raise

    def _note(self, project: str) -> None:
        if self._arriving or self._most_beside_others != self._most:
            self._use.ask(project)

    def _may_have(self, project: str) -> bool:
        held = self._held.get(project, 0)
        if self._used >= self._slots or (
            held >= self._most_beside_others and held >= self._limit(project)
        ):
            return False
        if self._arriving and not self._use.may_begin(project):
            return False
        return self._patience is None or not self._use.must_wait(project, self._patience)

    def _wake_later(self) -> None:
        """Arranges that projects that give way get a slot when they have waited long enough."""
        if self._wake is not None or self._patience is None:
            return
        pause = self._patience.next_end_s()
        if pause < math.inf:
            self._wake = asyncio.get_running_loop().call_later(pause, self._wake_now)

    def _wake_now(self) -> None:
        self._wake = None
        self.hand_out()

    def _limit(self, project: str) -> int:
        """Returns how many slots a project may hold that holds `most_beside_others`."""
        few = self._most_beside_others
        if few == self._most or not self._use.is_shared(project):
            return self._most
        return min(self._most, max(few, self._use.level))

    def _take(self, project: str) -> None:
        self._used += 1
        self._held[project] = self._held.get(project, 0) + 1
        self._turn += 1
        self._served[project] = self._turn
        if self._patience is not None:
            self._use.take(project, arriving=self._arriving)
            self._patience.stop(project)

    def release(self, project: str) -> None:
        """Gives a slot back that `acquire`, `acquire_now` or `take` took."""
        self._give_back(project)
        self._hand_out_after(project)

    def replace(self, project: str, take: Callable[[], object]) -> None:
        """Gives a slot back, and calls a function that may take another before waiters do."""
        self._give_back(project)
        take()
        self._hand_out_after(project)

    def _give_back(self, project: str) -> None:
        self._used -= 1
        held = self._held.pop(project) - 1
        if held:
            self._held[project] = held
        if self._patience is not None:
            self._use.release(project, arriving=self._arriving)

    def _hand_out_after(self, project: str) -> None:
        if self._patience is not None:
            self._use.hand_out_after(project, arriving=self._arriving)
        if self._waiting:
            self.hand_out()
        self._tidy(project)

    def hand_out(self) -> None:
        """Gives free slots to those that wait and may have one."""
        while self._waiting and self._used < self._slots:
            able = [key for key in self._waiting if self.waiting(key) and self._may_have(key)]
            if not able:
                self._wake_later()
                return
            project = min(able, key=self._claim)
            waiter = self._waiting[project].popleft()
            # A cancelled waiter is still in the queue until its task runs again.
            if not waiter.done():
                self._take(project)
                waiter.set_result(None)
                if self._patience is not None:
                    self._use.note_served(self)
            self._tidy(project)

    def _claim(self, project: str) -> tuple[int, int]:
        return self.held(project), self._served.get(project, 0)

    def _tidy(self, project: str) -> None:
        """Drops the entries of a project without slots and waiters, because projects are many."""
        if self._waiting:
            if self._waiting.get(project):
                return
            self._waiting.pop(project, None)
        if self._patience is not None:
            self._use.stop_waiting(project, self._patience)
        if project not in self._held:
            self._served.pop(project, None)


class Slot:
    """One slot, which may be held several times in turn.

    A class and not a generator: every call of a service takes one, and most at once.
    """

    __slots__ = ("_held", "_project", "_slots", "_timer")

    def __init__(self, slots: FairSlots, project: str) -> None:
        self._slots = slots
        self._project = project
        self._held = False
        self._timer: asyncio.TimerHandle | None = None

    def acquire_now(self) -> bool:
        """Takes the slot if it is held already or free; returns whether it is held."""
        if self._held or self._slots.acquire_now(self._project):
            self._hold()
        return self._held

    async def acquire(self) -> None:
        """Waits for the slot, unless it is held; raises as `FairSlots.slot` does."""
        if not self.acquire_now():
            await self._slots.acquire(self._project)
            self._hold()

    def take(self) -> None:
        """Takes the slot even if none is free, for work that cannot be delayed."""
        if not self._held:
            self._slots.take(self._project)
        self._hold()

    def release_after(self, seconds: float) -> None:
        """Gives the slot back after some time, unless it is taken again before.

        It gives it back at once if no other project has wanted slots in the last ten seconds.
        """
        if self._held and self._slots.is_shared(self._project):
            self._release_after(seconds)
        else:
            self.release()

    def release(self) -> None:
        """Gives the slot back if it is held."""
        if self._timer is not None:
            self._stop_timer()
        if self._held:
            self._held = False
            self._slots.release(self._project)

    def replace_by(self, other: Slot) -> None:
        """Gives the slot back, if it is held, and takes another one of the project if it is free.

        No waiter of another project gets a slot in between.
        """
        if self._timer is not None:
            self._stop_timer()
        if self._held:
            self._held = False
            self._slots.replace(self._project, other.acquire_now)

    def _hold(self) -> None:
        self._held = True
        if self._slots.hold_s is not None:
            self._release_after(self._slots.hold_s)
        elif self._timer is not None:
            self._stop_timer()

    def _release_after(self, seconds: float) -> None:
        if self._timer is not None:
            self._stop_timer()
        self._timer = asyncio.get_running_loop().call_later(seconds, self.release)

    def _stop_timer(self) -> None:
        assert self._timer is not None
        self._timer.cancel()
        self._timer = None

    async def __aenter__(self) -> Self:
        # As `acquire`, without one more coroutine for every call.
        if not self.acquire_now():
            await self._slots.acquire(self._project)
            self._hold()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()
