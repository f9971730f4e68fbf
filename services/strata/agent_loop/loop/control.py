"""State of a running turn that others set: cancellation, deadline, loss of the caller."""

from __future__ import annotations

import asyncio


class CallerLostError(Exception):
    """The caller disconnected; the current step is stored and the next attempt continues."""


class TurnControl:
    """Holds the reason why a turn must stop.

    A cancelled task alone is not a reason, since a shutdown of the process cancels tasks too.
    Only when the run is over are returns stored for interrupted calls. In all other cases the
    journal keeps the known results for the next attempt.

    Attributes:
        cancelled: The run is over: it was cancelled at the gateway, or its deadline has passed.
        late: The deadline had passed before the turn was dispatched.
        detached: The stream to the gateway broke: the current step is finished, no other started.
        limit: The deadline of the turn while its steps run.
    """

    def __init__(self, *, cancelled: bool = False, late: bool = False) -> None:
        self.cancelled = cancelled
        self.late = late
        self.detached = False
        self.limit: asyncio.Timeout | None = None

    def check_attached(self) -> None:
        """Checks that the caller is still connected.

        Raises:
            CallerLostError: The stream to the gateway broke.
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
