"""How runs are dispatched, and when a run whose attempts fail is given up."""

from __future__ import annotations

from dataclasses import dataclass, field

from strata.gateway.runs.memory_agents import MemoryBudget
from strata.shared.errors import AbortedError, InternalError, StrataError, passes

# Failures that are counted; those that pass by themselves are waited for.
_REPEATABLE = (InternalError, AbortedError)
# Unexpected errors in a row without progress after which a run is given up.
_MAX_DEFECTS = 2


@dataclass(frozen=True, slots=True)
class DispatchTerms:
    """How runs are carried out; times in seconds.

    Attributes:
        heartbeat_s: Pause between two renewals of the leases; a third of the lease.
        poll_s: Pause between two looks for runs that nobody holds.
        max_attempts: Failed dispatches without progress before a run is given up; a gateway that
            was lost with the run counts as one. A service that is away does not count: it is
            waited for until the run's deadline.
        first_pause_s: Pause before the second dispatch; it doubles from there.
        longest_pause_s: Longest pause between dispatches.
        settle_s: How long agent_loop may take to end a turn that was cancelled, or whose
            deadline has passed.
        max_memory_runs: Runs of memory agents that this gateway carries out at once, beside
            max_runs.
        max_memory_runs_of_project: Those of one project.
        memory_budget: Tokens that they may take.
        max_runs: Runs that this gateway carries out at once. A project has its share of them at
            most; runs that have no slot wait in the queue, from which the projects are served
            in turn. A few more can be under way for a moment: a run may be accepted while others
            are being claimed.
    """

    heartbeat_s: float = 3.0
    poll_s: float = 1.0
    max_attempts: int = 8
    first_pause_s: float = 0.2
    longest_pause_s: float = 5.0
    settle_s: float = 10.0
    max_runs: int = 1000
    max_memory_runs: int = 8
    max_memory_runs_of_project: int = 2
    memory_budget: MemoryBudget = field(default_factory=MemoryBudget)


class AttemptFailures:
    """What the attempts of a run failed with, and when that is enough.

    A service that is away says nothing about the run: it is waited for. A stream that breaks off
    in the middle of a turn, and a defect, are counted until the run makes progress: the run may be
    what kills its process. A defect that comes again at once comes every time.

    Args:
        terms: Times and bounds.
        progress: How far the run has come.
        lost: Gateways that were lost since then while they carried it out.
    """

    def __init__(self, terms: DispatchTerms, progress: object = None, lost: int = 0) -> None:
        self._terms = terms
        self._counted = lost
        self._defects = 0
        self._progress = progress
        self._pause_s = terms.first_pause_s

    def note(self, error: StrataError, progress: object, *, broke_off: bool) -> None:
        """Takes a failure in."""
        if progress != self._progress:
            self._progress, self._counted, self._defects = progress, 0, 0
            self._pause_s = self._terms.first_pause_s
        if not passes(error) or (error.lost and broke_off):
            self._counted += 1
        self._defects = self._defects + 1 if isinstance(error, InternalError) else 0

    def exhausted(self, error: StrataError) -> bool:
        """Says whether the run is to be given up."""
        if not passes(error) and not isinstance(error, _REPEATABLE):
            return True
        return self.too_many or self._defects >= _MAX_DEFECTS

    @property
    def too_many(self) -> bool:
        """Whether the run may be dispatched no more, since nothing came of it too often."""
        return self._counted >= self._terms.max_attempts

    def pause(self, error: StrataError) -> float:
        """Returns the seconds until the next attempt; they double up to a bound."""
        pause, longest = self._pause_s, self._terms.longest_pause_s
        self._pause_s = min(pause * 2, longest)
        return max(pause, min(error.retry_after or 0.0, longest))
