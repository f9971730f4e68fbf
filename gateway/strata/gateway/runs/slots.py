"""How many runs this gateway carries out, in all and of each project."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from strata.shared.fair_slots import SHARE, share_of


class RunSlots:
    """Slots of runs; a project holds its share at most, the rest is left to others.

    Nobody waits here: what has no slot waits in the database, where every gateway sees it.

    Args:
        slots: Runs at once.
        most: Runs of one project at once; None for its share of the slots.
    """

    def __init__(self, slots: int, most: int | None = None) -> None:
        self._slots = slots
        self._most = share_of(slots, SHARE) if most is None else most
        self._held: Counter[str] = Counter()
        self._used = 0

    @property
    def free(self) -> int:
        """Slots that nobody holds."""
        return max(0, self._slots - self._used)

    @property
    def used(self) -> int:
        """Slots that are held."""
        return self._used

    @property
    def most(self) -> int:
        """Slots that one project may hold."""
        return self._most

    @property
    def held(self) -> Mapping[str, int]:
        """Slots that each project holds; without projects that hold none."""
        return self._held

    def has_slot(self, project_id: str) -> bool:
        """Says whether one more run of a project may start."""
        return self._used < self._slots and self._held[project_id] < self._most

    def take(self, project_id: str) -> None:
        """Takes a slot, even where there is none: a run that is held must be carried out."""
        self._used += 1
        self._held[project_id] += 1

    def release(self, project_id: str) -> None:
        """Gives a slot back."""
        self._used -= 1
        self._held[project_id] -= 1
        if not self._held[project_id]:
            del self._held[project_id]
