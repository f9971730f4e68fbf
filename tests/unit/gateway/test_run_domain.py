"""States and transitions of runs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.api.common.v1 import message_pb2, run_event_pb2
from strata.api.gateway.v1 import run_service_pb2
from strata.gateway.runs.convert import runs as convert
from strata.gateway.runs.domain.runs import RunEnding, trigger_of
from strata.gateway.runs.domain.states import (
    ACTIVE_STATES,
    FINAL_STATES,
    OPEN_STATES,
    TRANSITIONS,
    RunState,
    Trigger,
    after,
    sources,
)
from strata.gateway.runs.store.rows import stop_reason_of
from strata.protocol.errors import FailedPreconditionError, Reason
from strata.shared.stop_reasons import StopReason
from strata.shared.usage import Usage

triggers = st.lists(st.sampled_from(Trigger), max_size=30)


@given(triggers)
def test_random_transitions_only_advance_and_a_final_state_stays(life: list[Trigger]) -> None:
    rank = {RunState.QUEUED: 0, RunState.RUNNING: 1, RunState.CANCELLING: 2}
    state = RunState.QUEUED
    for trigger in life:
        before = state
        if (before, trigger) not in TRANSITIONS:
            with pytest.raises(FailedPreconditionError) as raised:
                after(state, trigger)
            assert raised.value.reason is Reason.RUN_FINISHED
            continue
        state = after(state, trigger)
        assert rank.get(state, 3) >= rank.get(before, 3)
        if before.final:
            assert state is before


def test_every_open_run_can_be_cancelled_and_every_active_run_ended_or_taken_over() -> None:
    assert sources(Trigger.CANCEL) >= OPEN_STATES
    for trigger in (Trigger.COMPLETE, Trigger.FAIL, Trigger.STOP, Trigger.TAKE_OVER):
        assert sources(trigger) == ACTIVE_STATES
    assert not FINAL_STATES & OPEN_STATES


def test_a_cancelling_run_never_becomes_running_or_queued_again() -> None:
    followers = {
        state for (before, _), state in TRANSITIONS.items() if before is RunState.CANCELLING
    }
    assert RunState.RUNNING not in followers
    assert RunState.QUEUED not in followers


@pytest.mark.parametrize("reason", StopReason)
def test_the_stop_reason_decides_the_last_state(reason: StopReason) -> None:
    good = {"END_TURN", "MAX_STEPS", "TOOL_RULE", "REQUIRES_APPROVAL"}
    state = RunEnding(reason, None, Usage(), 0).state
    if reason.name in good:
        assert state is RunState.COMPLETED
    elif reason is StopReason.CANCELLED:
        assert state is RunState.CANCELLED
    else:
        assert state is RunState.FAILED
    assert after(RunState.CANCELLING, trigger_of(reason)) is state


def test_the_names_of_states_and_reasons_match_the_contract() -> None:
    states = {f"RUN_STATE_{state}" for state in RunState}
    assert states == set(run_service_pb2.RunState.keys()) - {"RUN_STATE_UNSPECIFIED"}
    reasons = {f"STOP_REASON_{reason.name}" for reason in StopReason}
    assert reasons == set(run_event_pb2.StopReason.keys()) - {"STOP_REASON_UNSPECIFIED"}


@pytest.mark.parametrize("number", [0, 99])
def test_an_end_without_a_known_reason_counts_as_an_error(number: int) -> None:
    finished = run_event_pb2.RunFinished()
    finished.stop_reason = number  # type: ignore[assignment]
    reason, failure = convert.stop_of(finished)
    assert reason is StopReason.ERROR
    assert failure is not None
    assert failure.reason == "INTERNAL"


def test_unknown_values_of_a_newer_release_are_omitted() -> None:
    assert stop_reason_of("END_TURN") is StopReason.END_TURN
    assert stop_reason_of("UNSPECIFIED") is None
    assert stop_reason_of("BORED") is None
    finished = convert.build_run_finished(StopReason.END_TURN, Usage(), 1, taint=["WEB", "RADIO"])
    assert list(finished.taint) == [message_pb2.PROVENANCE_WEB]
