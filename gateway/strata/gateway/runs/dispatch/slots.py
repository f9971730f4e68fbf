"""Slots for concurrent runs in this gateway, with a limit per project."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from strata.shared.fair_slots import SHARE, share_of


class RunSlots:
    """Slots for runs; each project gets at most its share.

    There is no queue here: runs without a slot wait in the database, where all gateways see them.

    Args:
        slots: Maximum number of concurrent runs.
        most: Maximum number of concurrent runs of one project; None for its share of the slots.
    """

    def __init__(self, slots: int, most: int | None = None) -> None:
        self._slots = slots
        self._most = share_of(slots, SHARE) if most is None else most
        self._held_by_project: Counter[str] = Counter()
        self._used = 0

    @property
    def free(self) -> int:
        """Number of free slots."""
        return max(0, self._slots - self._used)

    @property
    def used(self) -> int:
        """Number of used slots."""
        return self._used

    @property
    def most(self) -> int:
        """Maximum number of slots of one project."""
        return self._most

    @property
    def held(self) -> Mapping[str, int]:
        """Number of used slots by project, without projects that use none."""
        return self._held_by_project

    def has_slot(self, project_id: str) -> bool:
        """Whether one more run of a project may start."""
        return self._used < self._slots and self._held_by_project[project_id] < self._most

    def take(self, project_id: str) -> None:
        """Takes a slot, even if none is free: a claimed run must be executed."""
        self._used += 1
        self._held_by_project[project_id] += 1

    def release(self, project_id: str) -> None:
        """Releases a slot."""
        self._used -= 1
        self._held_by_project[project_id] -= 1
        if not self._held_by_project[project_id]:
            del self._held_by_project[project_id]
