"""For how long messages are kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from strata.recall.domain.messages import Cursor

MAX_DAYS = 36_500
TURN_DAYS = 7
"""Days for which it is remembered at least that a run has begun.

It keeps the run from beginning a second time. A repeat needs the run's own token, and that ends
a minute after the run's deadline, minutes after it was first dispatched: a week is as good as
for ever, also where an operator lets runs take days.
"""


@dataclass(frozen=True, slots=True)
class Retention:
    """How long a project keeps messages.

    Attributes:
        days: Days; 0 is for ever.
        update_time: When that was set; None if it never was.
    """

    days: int = 0
    update_time: datetime | None = None


class RetentionSettings(Protocol):
    """What projects have set; works in the current project."""

    async def get(self) -> Retention:
        """Returns the project's retention."""
        ...

    async def set(self, days: int, now: datetime) -> Retention:
        """Sets it; repeating it keeps the time at which it was set."""
        ...


@dataclass(frozen=True, slots=True)
class Swept:
    """A batch of old messages, or of turns, that was looked through.

    Attributes:
        forgotten: How many were deleted.
        cursor: Where the next batch starts; None at the end.
    """

    forgotten: int
    cursor: Cursor | None


class OldMessages(Protocol):
    """What is older than its project wants to keep, over all projects."""

    async def projects(self, after: str, limit: int) -> Sequence[tuple[str, int]]:
        """Returns projects that forget, and after how many days, in order of ids."""
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
    ) -> Swept:
        """Deletes what may go of some of an agent's oldest messages, and notes it for the index."""
        ...

    async def sweep_turns(
        self,
        project_id: str,
        agent_id: str,
        before: datetime,
        cursor: Cursor | None,
        limit: int,
    ) -> Swept:
        """Forgets some of an agent's oldest turns: those that nothing asks for any more.

        A turn stays while its run has the window, and while a message of it is left.

        Args:
            project_id: The project.
            agent_id: The agent.
            before: Turns that began later stay; at least `TURN_DAYS` ago.
            cursor: Where to start; None for the beginning.
            limit: Turns to look through.
        """
        ...
