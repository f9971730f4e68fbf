"""Metrics of the runs that a gateway executes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from strata.gateway.runs.domain.runs import Dispatch, Run, RunKind
from strata.shared.metric_names import RUN_SECONDS, RUN_WAIT_SECONDS, RUNS_ACTIVE, RUNS_FINISHED
from strata.shared.stop_reasons import StopReason
from strata.shared.telemetry import Telemetry


class RunMetrics:
    """Counts and times runs.

    Args:
        telemetry: Registry of the metrics.
        count_active: Returns how many runs of a kind are active.
    """

    def __init__(self, telemetry: Telemetry, count_active: Callable[[RunKind], int]) -> None:
        self._telemetry = telemetry
        for kind in RunKind:
            telemetry.read_gauge(RUNS_ACTIVE, partial(count_active, kind), kind=_label(kind))

    def note_start(self, dispatch: Dispatch) -> None:
        """Records how long a run waited for its first dispatch."""
        run = dispatch.run
        if run.attempt == 1:
            waited = self._telemetry.histogram(RUN_WAIT_SECONDS, kind=_label(run.kind))
            waited.observe(since_due(run, dispatch.age_s))

    def note_end(self, run: Run, stop_reason: StopReason, age_s: float) -> None:
        """Records the end of a run.

        Args:
            run: The run.
            stop_reason: Why it ended.
            age_s: Seconds since it was accepted.
        """
        kind = _label(run.kind)
        self._telemetry.counter(RUNS_FINISHED, kind=kind, stop_reason=stop_reason.value).inc()
        self._telemetry.histogram(RUN_SECONDS, kind=kind).observe(since_due(run, age_s))


def since_due(run: Run, age_s: float) -> float:
    """Returns the seconds since a run could start at the earliest."""
    delay_s = 0.0 if run.run_at is None else (run.run_at - run.create_time).total_seconds()
    # A run that goes before others in the queue has a `run_at` before its creation.
    return max(age_s - max(delay_s, 0.0), 0.0)


def _label(kind: RunKind) -> str:
    return kind.value.lower()
