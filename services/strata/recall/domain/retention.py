"""Retention of messages: its settings, and the interface that deletes old messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from strata.recall.domain.messages import Cursor

MAX_DAYS = 36_500
TURN_DAYS = 7
"""Minimum of days for which the start of a run is recorded.

The record keeps a run from starting a second time. A repetition needs the run's token, which
expires a minute after the run's deadline, so a week is enough even if runs may take days.
"""


@dataclass(frozen=True, slots=True)
class Retention:
    """How long a project keeps messages.

    Attributes:
        days: Number of days; 0 keeps messages for ever.
        update_time: When it was set; None if it never was.
    """

    days: int = 0
    update_time: datetime | None = None


class RetentionSettings(Protocol):
    """Reads and sets the retention of the current project."""

    async def get(self) -> Retention:
        """Returns the project's retention."""
        ...

    async def set(self, days: int, now: datetime) -> Retention:
        """Sets the retention; setting the same value again keeps `update_time`."""
        ...


@dataclass(frozen=True, slots=True)
class SweepResult:
    """The result of a batch of old messages or turns.

    Attributes:
        deleted: Number of deleted messages or turns.
        cursor: The cursor of the next batch; None at the end.
    """

    deleted: int
    cursor: Cursor | None


class OldMessages(Protocol):
    """Deletes messages and turns that are older than the retention of their project."""

    async def projects(self, after: str, limit: int) -> Sequence[tuple[str, int]]:
        """Returns projects with a limited retention, and its days, in order of ids."""
        ...

    async def agents(self, project_id: str, after: str, limit: int) -> Sequence[str]:
        """Returns agents of a project that have messages, in order of ids."""
        ...

    async def sweep(
        self,
        project_id: str,
        agent_id: str,
        before: datetime,
        cursor: Cursor | None,
        limit: int,
    ) -> SweepResult:
        """Deletes a batch of an agent's deletable old messages, also for the index."""
        ...

    async def sweep_turns(
        self,
        project_id: str,
        agent_id: str,
        before: datetime,
        cursor: Cursor | None,
        limit: int,
    ) -> SweepResult:
        """Deletes a batch of an agent's old turns that nothing needs.

        A turn stays while its run is active in the window, and while messages of it exist.

        Args:
            project_id: The project.
            agent_id: The agent.
            before: Only turns that started before; at least `TURN_DAYS` ago.
            cursor: Cursor of the previous batch; None for the first.
            limit: Turns per batch.
        """
        ...
