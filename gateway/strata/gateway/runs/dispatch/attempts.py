"""Settings of the dispatcher, and the count of failed attempts after which a run fails."""

from __future__ import annotations

from dataclasses import dataclass, field

from strata.gateway.runs.domain.memory_agents import MemoryBudget
from strata.gateway.runs.domain.timing import HEARTBEAT_S, MAX_ATTEMPTS
from strata.protocol.errors import AbortedError, InternalError, StrataError, is_transient

# Failures that count as failed attempts; transient ones are retried without counting.
_REPEATABLE = (InternalError, AbortedError)
# Consecutive unexpected errors without progress after which a run fails.
_MAX_DEFECTS = 2


@dataclass(frozen=True, slots=True)
class DispatchTerms:
    """Settings of the dispatcher; times in seconds.

    Attributes:
        heartbeat_s: See `HEARTBEAT_S`.
        max_attempts: See `MAX_ATTEMPTS`.
        first_pause_s: Pause before the second dispatch; it doubles from there.
        longest_pause_s: Longest pause between dispatches.
        settle_s: Time for agent_loop to end a turn that was cancelled or has passed its deadline:
            twice ten seconds, to store a step or else to journal it.
        max_memory_runs: Maximum number of concurrent runs of memory agents in this gateway, in
            addition to max_runs.
        max_memory_runs_of_project: Maximum number of them per project.
        memory_budget: Tokens that they may use.
        max_runs: Maximum number of concurrent runs in this gateway. A project gets at most its
            share; runs without a slot wait in the queue, from which the projects are served in
            turn. For a moment there can be a few more, if a run is accepted while others are being
            claimed.
    """

    heartbeat_s: float = HEARTBEAT_S
    max_attempts: int = MAX_ATTEMPTS
    first_pause_s: float = 0.2
    longest_pause_s: float = 5.0
    settle_s: float = 20.0
    max_runs: int = 1000
    max_memory_runs: int = 8
    max_memory_runs_of_project: int = 2
    memory_budget: MemoryBudget = field(default_factory=MemoryBudget)


class AttemptFailures:
    """Counts the failed attempts of a run, and decides when the run fails.

    An unavailable service does not count: the run waits for it. A stream that breaks off in the
    middle of a turn, and an unexpected error, count until the run makes progress: the run itself
    may crash the process. An unexpected error that repeats at once counts as permanent.

    Args:
        terms: Times and bounds.
        progress: Progress of the run.
        lost: Gateways that died with the run since that progress.
    """

    def __init__(self, terms: DispatchTerms, progress: object = None, lost: int = 0) -> None:
        self._terms = terms
        self._counted = lost
        self._defects = 0
        self._progress = progress
        self._pause_s = terms.first_pause_s

    def note(self, error: StrataError, progress: object, *, broke_off: bool) -> None:
        """Counts a failure."""
        if progress != self._progress:
            self._progress, self._counted, self._defects = progress, 0, 0
            self._pause_s = self._terms.first_pause_s
        if not is_transient(error) or (error.lost and broke_off):
            self._counted += 1
        self._defects = self._defects + 1 if isinstance(error, InternalError) else 0

    def exhausted(self, error: StrataError) -> bool:
        """Whether the run fails after this error."""
        if not is_transient(error) and not isinstance(error, _REPEATABLE):
            return True
        return self.too_many or self._defects >= _MAX_DEFECTS

    @property
    def too_many(self) -> bool:
        """Whether too many attempts without progress have failed."""
        return self._counted >= self._terms.max_attempts

    def pause(self, error: StrataError) -> float:
        """Returns the seconds until the next attempt; they double up to a bound."""
        pause, longest = self._pause_s, self._terms.longest_pause_s
        self._pause_s = min(pause * 2, longest)
        return max(pause, min(error.retry_after or 0.0, longest))
