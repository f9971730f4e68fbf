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
# What a slot costs besides the time for which it is held: work is received, checked and answered.
_SLOT_S = 0.001
# A project gives way to others that have used less by this. Projects that send as much as each
# other differ by less: if they gave way to each other, each would wait in turn.
_MORE_S = 0.5
# The most that a project has used less than the others, however long it was idle, or more: if it
# begins to send much, they give way to it for that long.
_CREDIT_S = 1.0
# A project that was busy is like one that was idle after ten seconds without a slot.
_FADING = 2 * _CREDIT_S / _RECENT_S
# Above this number of entries, or twice as many as were left the last time, those of idle projects
# are dropped.
_MOST_ENTRIES = 256


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
    """How many slots projects hold, and for how long lately, over several kinds of slots.

    The work of all kinds uses the same processors: a busy project gives way to a quiet one that
    holds a slot of another kind, too. Beside other projects, the work of one project that arrives
    from outside has few slots of all kinds together. Neither holds while processors are idle.

    Use is measured by the time for which slots are held, since their number says little: a turn
    takes ten slots, a search two. Slots for a part of work that has begun, such as the internal
    calls of a turn, do not count while a slot for the whole of it is held. As in fair queueing,
    the use of a project that was idle is raised to that of the others, less a credit.

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
        # Seconds for which projects held slots; of others it is the use of all less the credit.
        self._used: dict[str, float] = {}
        # The time until which the slots of projects are counted, or of the last release.
        self._counted_until: dict[str, float] = {}
        # The use of the least busy one of the projects that hold slots; it never falls.
        self._used_by_all = 0.0
        self._most_entries = _MOST_ENTRIES
        # Kinds with waiters; the one that was served last comes last.
        self._waited_for: dict[Kind, None] = {}
        # Work that arrives: the slots held, and their number so far.
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

        It does if another one that has used half a second less lately holds a slot now, and no
        processors are idle.
        """
        # Called for every call; usually only the calling project holds slots.
        if len(self._held) <= (project in self._held):
            return False
        return self._has_quieter(project) and self.level == 1

    def ask(self, project: str) -> None:
        """Notes that a project wants a slot of any kind."""
        self._askers.note(project)

    def is_shared(self, project: str) -> bool:
        """Returns whether another project wanted a slot in the last ten seconds."""
        return self._askers.has_others(project)

    def may_begin(self, project: str) -> bool:
        """Returns whether the work of a project that arrives may have one more slot of any kind."""
        if not self._arriving[project] or not self.is_shared(project):
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
        self._count(project)
        if arriving or not self._arriving[project]:
            self._used[project] += _SLOT_S
        self._held[project] += 1
        if arriving:
            self._arriving[project] += 1
            self._arrived += 1

    def release(self, project: str, *, arriving: bool = False) -> None:
        """Counts a slot that a project releases; `hand_out_after` follows."""
        self._count(project)
        _decrease(self._held, project)
        if arriving:
            _decrease(self._arriving, project)
        if len(self._used) > self._most_entries:
            self._drop_idle()

    def hand_out_after(self, project: str, *, arriving: bool = False) -> None:
        """Gives out what a project has released."""
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

    def _count(self, project: str) -> None:
        """Counts the time for which a project has held its present slots."""
        now = self._now()
        self._used[project] = self._use_of(project, now)
        self._counted_until[project] = now
        least = min((self._used[holder] for holder in self._held), default=self._used_by_all)
        self._used_by_all = max(self._used_by_all, least)
        self._used[project] = min(self._used[project], self._used_by_all + _CREDIT_S)

    def _use_of(self, project: str, now: float) -> float:
        idle = self._used_by_all - _CREDIT_S
        used = self._used.get(project)
        if used is None:
            return idle
        since = now - self._counted_until[project]
        slots = self._arriving[project] or self._held[project]
        return used + slots * since if slots else max(used - _FADING * since, idle)

    def _has_quieter(self, project: str) -> bool:
        now = self._now()
        quiet = self._use_of(project, now) - _MORE_S
        return any(self._use_of(other, now) < quiet for other in self._held if other != project)

    def _drop_idle(self) -> None:
        now, idle = self._now(), self._used_by_all - _CREDIT_S
        for project in list(self._used):
            if project not in self._held and self._use_of(project, now) <= idle:
                del self._used[project], self._counted_until[project]
        self._most_entries = max(_MOST_ENTRIES, 2 * len(self._used))


def _decrease(counts: Counter[str], project: str) -> None:
    counts[project] -= 1
    if not counts[project]:
        del counts[project]


USE_OF_PROCESS = ProjectUse(capacity=SpareCapacity())
"""The slots for work that uses the processors of this process."""
