"""Shifts the clock of a service by ``STRATA_TEST_CLOCK_SKEW_S`` seconds.

The cluster of the fault tests puts this folder on the import path of the processes it starts, so
that Python imports this module first. Services read the time from
`strata.shared.clock.SystemClock`, which is replaced here.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

from strata.shared.clock import SystemClock

_SKEW = timedelta(seconds=float(os.environ["STRATA_TEST_CLOCK_SKEW_S"]))


def _now(_: SystemClock) -> datetime:
    return datetime.now(UTC) + _SKEW


setattr(SystemClock, "now", _now)  # noqa: B010 - a method is replaced on purpose
