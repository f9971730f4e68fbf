"""Limits of the number of runs per project."""

from __future__ import annotations

from dataclasses import dataclass

from strata.protocol.errors import Reason, ResourceExhaustedError

MAX_RUNS_OF_GROUP_RUN = 128
"""Maximum number of open runs within one run of a group.

They do not count as open runs of the project, in which the run of the group counts. A group has at
most 32 members; each can be asked, and can get the messages that were sent while it was busy.
"""
_RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class RunQuotas:
    """Limits per project.

    Attributes:
        open_runs: Maximum number of runs that are active or may start.
        delayed_runs: Maximum number of runs with a start time in the future. From that time on they
            count as open runs.
    """

    open_runs: int = 500
    delayed_runs: int = 500

    def check(self, count: int, *, is_later: bool) -> None:
        """Raises an error if the quota of a new run is used up.

        Args:
            count: Runs of the project that count against the same quota.
            is_later: Whether the run has a start time in the future.

        Raises:
            ResourceExhaustedError: The quota is used up (``QUOTA_EXCEEDED``).
        """
        quota = "delayed_runs" if is_later else "open_runs"
        limit = self.delayed_runs if is_later else self.open_runs
        if count >= limit:
            raise _exceeded(f"The project has {count} {quota.replace('_', ' ')}", quota, limit)


def check_group_quota(count: int) -> None:
    """Raises an error if too many runs that the run of a group started are open.

    Args:
        count: Open runs of the members in the run of the group.

    Raises:
        ResourceExhaustedError: The quota is used up (``QUOTA_EXCEEDED``).
    """
    if count >= MAX_RUNS_OF_GROUP_RUN:
        words = f"The run of the group has {count} open runs of its agents"
        raise _exceeded(words, "group_runs", MAX_RUNS_OF_GROUP_RUN)


def _exceeded(count: str, quota: str, limit: int) -> ResourceExhaustedError:
    return ResourceExhaustedError(
        f"{count}, which is the limit.",
        reason=Reason.QUOTA_EXCEEDED,
        metadata={"quota": quota, "limit": limit},
        # A delayed run occupies the quota until it starts, so there is no sensible time to retry.
        retry_after=None if quota == "delayed_runs" else _RETRY_S,
    )
