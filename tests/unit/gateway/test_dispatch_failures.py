"""Failures after which a run is dispatched again, and failures that end it."""

from __future__ import annotations

from strata.gateway.runs.dispatch.attempts import AttemptFailures, DispatchTerms
from strata.protocol.errors import UnavailableError

TERMS = DispatchTerms(first_pause_s=0.2, longest_pause_s=5.0)
AWAY = UnavailableError("Recall is away.")


def test_pauses_double_up_to_a_maximum_and_restart_after_progress() -> None:
    failures, pauses = AttemptFailures(TERMS), []
    for progress in [1] * 7 + [2] * 2:
        failures.note(AWAY, progress, broke_off=False)
        pauses.append(failures.pause(AWAY))
    assert pauses == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 0.2, 0.4]


def test_a_retry_delay_of_the_service_is_used_up_to_the_maximum() -> None:
    failures = AttemptFailures(TERMS)
    for wanted, pause in ((1.0, 1.0), (60.0, 5.0)):
        error = UnavailableError("Recall is away.", retry_after=wanted)
        failures.note(error, 1, broke_off=False)
        assert failures.pause(error) == pause
