"""How many runs a project may have."""

from __future__ import annotations

from dataclasses import dataclass

from strata.shared.errors import Reason, ResourceExhaustedError

_RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class RunQuotas:
    """Limits of one project.

    Attributes:
        open_runs: Runs that are under way or may start.
        delayed_runs: Runs whose time of start is still to come. They count as open runs from
            that time on.
    """

    open_runs: int = 500
    delayed_runs: int = 500

    def check(self, count: int, *, is_later: bool) -> None:
        """Raises the error of a run that was not accepted if its quota is used up.

        Args:
            count: Runs that the project has, of those that count against the same quota.
            is_later: The run has a time of start that is still to come.

        Raises:
            ResourceExhaustedError: The quota is used up (``QUOTA_EXCEEDED``).
        """
        quota, limit = (
            ("delayed_runs", self.delayed_runs)
            if is_later
            else (
                "open_runs",
                self.open_runs,
            )
        )
        if count < limit:
            return
        words = quota.replace("_", " ")
        raise ResourceExhaustedError(
            f"The project has {count} {words}, as many as it may have.",
            reason=Reason.QUOTA_EXCEEDED,
            metadata={"quota": quota, "limit": limit},
            retry_after=None if is_later else _RETRY_S,
        )
