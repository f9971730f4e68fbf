"""What the projects use of a process, over all kinds of slots that they share."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from strata.shared.spare_capacity import SpareCapacity

_RECENT_S = 10.0
# Two entries are enough: at least one of them is another project.
_RECENT_PROJECTS = 2
# The longest wait of a project for work that arrives from outside, of all kinds together. The time
# alone would be a limit of four pieces of work a second, however little the other projects do.
_GIVE_WAY_S = 0.25
_GIVE_WAY_TO = 4


class Kind(Protocol):
    """A kind of slots."""

    @property
    def has_waiters(self) -> bool:
        """Whether any project waits for one."""
        ...

    def waiting(self, project_id: str) -> int:
        """Returns how many waiters a project has."""
        ...

    def hand_out(self) -> None:
        """Gives free slots to those that wait and may have one."""
        ...


class RecentProjects:
    """The last two projects that asked for a slot.

    Args:
        now: A monotonic clock, in seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        # With the time; the newest comes last.
        self._asked: dict[str, float] = {}

    def note(self, project: str) -> None:
        """Notes that a project asks."""
        self._asked.pop(project, None)
        self._asked[project] = self._now()
        while len(self._asked) > _RECENT_PROJECTS:
            del self._asked[next(iter(self._asked))]

    def has_others(self, project: str) -> bool:
        """Returns whether another project has asked in the last ten seconds."""
        earliest = self._now() - _RECENT_S
        return any(when > earliest for other, when in self._asked.items() if other != project)


class Patience:
    """How long projects that give way have waited for their next slot.

    Args:
        longest_s: The longest wait, seconds.
        now: A monotonic clock, in seconds.
        most_taken: A wait also ends after this number of slots was taken by others.
    """

    def __init__(
        self, longest_s: float, now: Callable[[], float], most_taken: float = math.inf
    ) -> None:
        self._longest_s = longest_s
        self._now = now
        self._most_taken = most_taken
        # The time at which the wait ends, and the number of slots at which it ends.
        self._ends: dict[str, tuple[float, float]] = {}

    def waits(self, project: str, taken: int = 0) -> bool:
        """Returns whether a project still has to wait, and begins its wait if it has none.

        Args:
            project: The project.
            taken: Slots that were taken so far.
        """
        now = self._now()
        end, last = self._ends.setdefault(
            project, (now + self._longest_s, taken + self._most_taken)
        )
        return now < end and taken < last

    def stop(self, project: str) -> None:
        """Ends the wait of a project; its next wait starts anew."""
        self._ends.pop(project, None)

    def next_end_s(self) -> float:
        """Returns the seconds until the next wait ends; infinity if no project waits."""
        now = self._now()
        # Projects whose wait has ended wait for a free slot, and the release of a slot wakes them.
        return min((end - now for end, _ in self._ends.values() if end > now), default=math.inf)


class ProjectUse:
    """How many slots projects hold, and have taken lately, over several kinds of slots.

    The work of all kinds uses the same processors: a busy project gives way to a quiet one that
    holds a slot of another kind, too. Beside other projects, the work of one project that arrives
    from outside has few slots of all kinds together. Neither holds while processors are idle.

    Args:
        now: A monotonic clock, in seconds.
        capacity: The idle share of the processors; None if they count as busy.
    """

    def __init__(
        self, now: Callable[[], float] = time.monotonic, capacity: SpareCapacity | None = None
    ) -> None:
        self._now = now
        self._capacity = capacity
        self._held: Counter[str] = Counter()
        # Slots that projects took in the present period and in the one before.
        self._taken: Counter[str] = Counter()
        self._taken_before: Counter[str] = Counter()
        self._period_end = now() + _RECENT_S
        # Kinds with waiters; the one that was served last comes last.
        self._waited_for: dict[Kind, None] = {}
        # Work that arrives: the slots held, their number so far, and who asked last.
        self._arriving: Counter[str] = Counter()
        self._arrived = 0
        self._askers = RecentProjects(now)
        self._patience = Patience(_GIVE_WAY_S, now, _GIVE_WAY_TO)

    @property
    def level(self) -> int:
        """How much work of one project may be under way beside others, at least 1."""
        return 1 if self._capacity is None else self._capacity.level()

    def patience(self) -> Patience:
        """Returns the waits of projects whose work arrives; waits of all kinds count."""
        return self._patience

    def wait_for(self, kind: Kind) -> None:
        """Notes that a kind of slots has waiters, which may get one when another kind has less."""
        self._waited_for.setdefault(kind)

    def note_served(self, kind: Kind) -> None:
        """Notes that a waiter for a kind of slots got one: other kinds come next."""
        self._waited_for.pop(kind, None)
        if kind.has_waiters:
            self._waited_for[kind] = None

    def gives_way(self, project: str) -> bool:
        """Returns whether the project lets others work first.

        It does if another one with less than half as many recent slots holds one now, and no
        processors are idle.
        """
        # Called for every call; usually only the calling project holds slots.
        if len(self._held) <= (project in self._held):
            return False
        taken = self._recently_taken(project)
        return self._has_quieter(project, taken) and self.level == 1

    def ask(self, project: str) -> None:
        """Notes that work of a project arrives."""
        self._askers.note(project)

    def may_begin(self, project: str) -> bool:
        """Returns whether the work of a project that arrives may have one more slot of any kind."""
        if not self._arriving[project] or not self._askers.has_others(project):
            return True
        return self._arriving[project] < self.level

    def must_wait(self, project: str, patience: Patience) -> bool:
        """Returns whether a project gives way and has not waited long enough.

        Args:
            project: The project.
            patience: How long projects have waited for the slot.
        """
        if self.gives_way(project):
            return patience.waits(project, self._arrived)
        patience.stop(project)
        return False

    def take(self, project: str, *, arriving: bool = False) -> None:
        """Counts a slot that a project takes.

        Args:
            project: The project.
            arriving: Whether it is for work that arrives.
        """
        now = self._now()
        if now >= self._period_end:
            # Counts of projects that are no longer active are dropped.
            missed = now >= self._period_end + _RECENT_S
            self._taken_before = Counter() if missed else self._taken
            self._taken = Counter()
            self._period_end = now + _RECENT_S
        self._taken[project] += 1
        self._held[project] += 1
        if arriving:
            self._arriving[project] += 1
            self._arrived += 1

    def release(self, project: str, *, arriving: bool = False) -> None:
        """Counts a slot that a project releases, and wakes the projects that waited for it."""
        _decrease(self._held, project)
        if arriving:
            _decrease(self._arriving, project)
        if arriving or project not in self._held:
            self.hand_out()

    def hand_out(self) -> None:
        """Gives out free slots of all kinds, first of the kind that was served longest ago."""
        for kind in list(self._waited_for):
            if kind.has_waiters:
                kind.hand_out()
            else:
                self._waited_for.pop(kind, None)

    def stop_waiting(self, project: str, patience: Patience) -> None:
        """Ends the wait of a project that has no waiters left for a kind of slots.

        Args:
            project: The project.
            patience: How long projects have waited for them.
        """
        # The work that arrives waits for several kinds.
        if patience is not self._patience or not any(
            kind.waiting(project) for kind in self._waited_for
        ):
            patience.stop(project)

    def _has_quieter(self, project: str, taken: int) -> bool:
        return any(
            2 * self._recently_taken(other) < taken for other in self._held if other != project
        )

    def _recently_taken(self, project: str) -> int:
        return self._taken[project] + self._taken_before[project]


def _decrease(counts: Counter[str], project: str) -> None:
    counts[project] -= 1
    if not counts[project]:
        del counts[project]


USE_OF_PROCESS = ProjectUse(capacity=SpareCapacity())
"""The slots for work that uses the processors of this process."""
