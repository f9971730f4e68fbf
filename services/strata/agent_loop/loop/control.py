"""What reaches a running turn from outside: a cancellation, its deadline, a lost caller."""

from __future__ import annotations

import asyncio


class CallerLostError(Exception):
    """The caller is gone and the step under way is stored; the next attempt continues the turn."""


class TurnControl:
    """Says why a turn is to stop.

    The cancellation of the turn's task alone says nothing: it also comes from a process that
    shuts down. Only a run that is over stores returns for calls that were cut off; in all other
    cases the ledger keeps what is known, and the next attempt goes by that.

    Attributes:
        cancelled: The run is over: somebody cancelled it, and its row in the gateway says so, or
            its deadline has passed.
        late: The deadline had passed before the turn was dispatched.
        detached: The stream to the gateway broke. The step under way is finished, no other begun.
        limit: The turn's deadline, while the turn runs under it.
    """

    def __init__(self, *, cancelled: bool = False, late: bool = False) -> None:
        self.cancelled = cancelled
        self.late = late
        self.detached = False
        self.limit: asyncio.Timeout | None = None

    def check_attached(self) -> None:
        """Makes sure that somebody waits for the next step.

        Raises:
            CallerLostError: Nobody does.
        """
        if self.detached:
            raise CallerLostError

    @property
    def timed_out(self) -> bool:
        """Whether the deadline of the run has passed."""
        return self.late or (self.limit is not None and self.limit.expired())

    @property
    def over(self) -> bool:
        """Whether the run ends here, so that no other attempt follows."""
        return self.cancelled or self.timed_out
