"""Sets the clock of a service wrong by ``STRATA_TEST_CLOCK_SKEW_S`` seconds.

On the path of a process that the cluster of the fault tests starts; every service takes the time
from `strata.shared.clock.SystemClock`.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

from strata.shared.clock import SystemClock

_SKEW = timedelta(seconds=float(os.environ["STRATA_TEST_CLOCK_SKEW_S"]))


def _now(_: SystemClock) -> datetime:
    return datetime.now(UTC) + _SKEW


setattr(SystemClock, "now", _now)  # noqa: B010 - a method is replaced on purpose
