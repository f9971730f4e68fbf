"""Ends of a run that reopen the approval that it answered."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from security_examples import security_examples
from strata.api.agent_loop.v1 import turn_service_pb2 as turn_pb
from strata.api.common.v1 import message_pb2, run_event_pb2
from strata.gateway.runs.convert.approvals import reopened_if_no_call_ran
from strata.gateway.runs.domain.runs import RunEnding, RunFailure
from strata.gateway.runs.events.progress import RunProgress
from strata.protocol.errors import Reason
from strata.shared.stop_reasons import StopReason
from strata.shared.usage import Usage

FAILURE = RunFailure("LLM_NOT_CONFIGURED", "no model", retryable=False)
YES: dict[str, Any] = {"approve": True}


def ended(reason: StopReason, failure: RunFailure | None = None) -> RunEnding:
    return RunEnding(reason, failure, Usage(), 0)


def payload(*decisions: dict[str, Any]) -> bytes:
    answer = message_pb2.ApprovalResponsePart(
        approval_id="approval-1",
        decisions=[message_pb2.ApprovalDecision(**decision) for decision in decisions],
    )
    return turn_pb.ExecuteRunRequest(approval=answer).SerializeToString()


@pytest.mark.parametrize(
    ("ending", "decisions", "reopens"),
    [
        (ended(StopReason.LLM_API_ERROR, FAILURE), [YES], True),
        (ended(StopReason.ERROR, FAILURE), [{"reason": "no"}, YES], True),
        (ended(StopReason.CANCELLED), [YES], True),
        (ended(StopReason.END_TURN), [YES], False),
        (ended(StopReason.REQUIRES_APPROVAL), [YES], False),
        (ended(StopReason.ERROR, FAILURE), [{"reason": "no"}], False),
        (ended(StopReason.ERROR, FAILURE), [{**YES, "client_return": "mine"}], False),
        (
            ended(
                StopReason.ERROR, RunFailure(Reason.APPROVAL_NOT_FOUND.value, "", retryable=False)
            ),
            [YES],
            False,
        ),
    ],
)
def test_approved_calls_that_did_not_start_reopen_their_approval(
    ending: RunEnding, decisions: list[dict[str, Any]], reopens: bool
) -> None:
    run_end = reopened_if_no_call_ran(payload(*decisions), ending, answer_is_stored=True)
    assert run_end.reopens == ("approval-1" if reopens else "")


@pytest.mark.parametrize("decision", [YES, {"reason": "no"}, {"client_return": "mine"}])
@pytest.mark.parametrize(
    ("ending", "reopens"),
    [
        (ended(StopReason.CANCELLED), True),
        (ended(StopReason.ERROR, FAILURE), True),
        (
            ended(
                StopReason.ERROR, RunFailure(Reason.APPROVAL_NOT_FOUND.value, "", retryable=False)
            ),
            False,
        ),
    ],
)
def test_an_answer_that_was_not_stored_reopens_its_approval(
    ending: RunEnding, decision: dict[str, Any], reopens: bool
) -> None:
    run_end = reopened_if_no_call_ran(payload(decision), ending, answer_is_stored=False)
    assert run_end.reopens == ("approval-1" if reopens else "")


@security_examples
@given(st.sampled_from(StopReason))
def test_a_run_started_by_a_message_reopens_no_approval(reason: StopReason) -> None:
    message = turn_pb.ExecuteRunRequest(agent_id="agent-1").SerializeToString()
    for answer_is_stored in (True, False):
        run_end = reopened_if_no_call_ran(message, ended(reason), answer_is_stored=answer_is_stored)
        assert run_end.reopens == ""


@pytest.mark.parametrize(
    ("event", "began"),
    [
        (run_event_pb2.RunEvent(run_started=run_event_pb2.RunStarted()), False),
        (run_event_pb2.RunEvent(step_started=run_event_pb2.StepStarted(step=1)), False),
        # Denied calls get their result before anything is stored.
        (run_event_pb2.RunEvent(tool_finished=run_event_pb2.ToolFinished()), False),
        (run_event_pb2.RunEvent(tool_started=run_event_pb2.ToolStarted()), True),
        (
            run_event_pb2.RunEvent(
                message_stored=run_event_pb2.MessageStored(
                    message=message_pb2.Message(role=message_pb2.ROLE_ASSISTANT)
                )
            ),
            True,
        ),
    ],
)
def test_a_started_tool_or_a_stored_reply_counts_as_an_effect(
    event: run_event_pb2.RunEvent, began: bool
) -> None:
    progress = RunProgress()
    progress.note(event, event.WhichOneof("event"))
    assert progress.has_effects is began
