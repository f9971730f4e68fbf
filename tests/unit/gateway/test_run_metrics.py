"""Metrics of the runs of a gateway."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from strata.gateway.runs.dispatch.run_metrics import RunMetrics
from strata.gateway.runs.domain.runs import RunKind
from strata.shared.metric_names import RUN_SECONDS, RUN_WAIT_SECONDS, RUNS_ACTIVE, RUNS_FINISHED
from strata.shared.stop_reasons import StopReason
from strata.shared.telemetry import Telemetry

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def run(*, attempt: int = 1, delay_s: float = 0.0) -> Any:
    return SimpleNamespace(
        kind=RunKind.BACKGROUND,
        attempt=attempt,
        create_time=NOW,
        run_at=NOW + timedelta(seconds=delay_s),
    )


@pytest.mark.parametrize(("delay_s", "waited_s"), [(0.0, 30.0), (20.0, 10.0), (60.0, 0.0)])
def test_the_waiting_time_of_a_delayed_run_counts_from_its_start_time(
    delay_s: float, waited_s: float
) -> None:
    telemetry = Telemetry()
    metrics = RunMetrics(telemetry, lambda _: 0)
    dispatch: Any = SimpleNamespace(run=run(delay_s=delay_s), age_s=30.0)
    metrics.note_start(dispatch)
    assert telemetry.histogram(RUN_WAIT_SECONDS, kind="background").sum == waited_s
    metrics.note_end(run(delay_s=delay_s), StopReason.END_TURN, 35.0)
    duration = telemetry.histogram(RUN_SECONDS, kind="background")
    assert duration.sum == max(35.0 - delay_s, 0.0)


def test_the_waiting_time_of_a_run_is_not_measured_again_after_a_take_over() -> None:
    telemetry = Telemetry()
    dispatch: Any = SimpleNamespace(run=run(attempt=2), age_s=30.0)
    RunMetrics(telemetry, lambda _: 0).note_start(dispatch)
    assert telemetry.histogram(RUN_WAIT_SECONDS, kind="background").count == 0


def test_runs_are_counted_by_kind_and_stop_reason() -> None:
    telemetry = Telemetry()
    active = {RunKind.FOREGROUND: 2, RunKind.BACKGROUND: 1, RunKind.SLEEPTIME: 0}
    metrics = RunMetrics(telemetry, active.__getitem__)
    assert telemetry.total(RUNS_ACTIVE, kind="foreground") == 2
    assert telemetry.total(RUNS_ACTIVE) == 3
    metrics.note_end(run(), StopReason.MAX_STEPS, 1.0)
    assert telemetry.total(RUNS_FINISHED, kind="background", stop_reason="max_steps") == 1
    assert telemetry.total(RUNS_FINISHED) == 1
