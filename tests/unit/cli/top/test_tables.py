"""The figures in the tables of `strata top`."""

from __future__ import annotations

from strata.cli.top.samples import Reading, parse_samples
from strata.cli.top.tables import live_tables
from strata.shared.stop_reasons import StopReason

RUNS = """\
# TYPE strata_runs_active gauge
strata_runs_active{kind="foreground"} 1
# TYPE strata_runs_finished_total counter
"""


def test_all_failed_runs_count_as_errors_and_no_other_ones() -> None:
    finished = "".join(
        f'strata_runs_finished_total{{kind="foreground",stop_reason="{reason}"}} 10\n'
        for reason in StopReason
    )
    before = Reading("a", 0.0, parse_samples(RUNS))
    after = Reading("a", 10.0, parse_samples(RUNS + finished))
    (runs,) = live_tables([before], [after])
    row = dict(zip(runs.columns, runs.rows[0], strict=True))
    assert row["ended/s"] == "13.0"
    # All but end_turn, max_steps, tool_rule, requires_approval and cancelled.
    assert row["errors/s"] == "8.0"
