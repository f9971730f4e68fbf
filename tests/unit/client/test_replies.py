"""Replies as text."""

from __future__ import annotations

import pytest

from strata.api.common.v1 import message_pb2, run_event_pb2
from strata.api.common.v1.run_event_pb2 import MessageStored, RunError, RunEvent, RunFinished
from strata.client import RunFailedError
from strata.client.replies import ReplyCollector

CANCELLED = RunFinished(stop_reason=run_event_pb2.STOP_REASON_CANCELLED)
WAITING = RunFinished(stop_reason=run_event_pb2.STOP_REASON_REQUIRES_APPROVAL)
FAILED = RunFinished(
    stop_reason=run_event_pb2.STOP_REASON_ERROR, error=RunError(message="It broke.")
)


def stored(text: str, role: message_pb2.Role.ValueType = message_pb2.ROLE_ASSISTANT) -> RunEvent:
    reasoning = message_pb2.Part(reasoning=message_pb2.ReasoningPart(text="Hm."))
    part = message_pb2.Part(text=message_pb2.TextPart(text=text))
    message = message_pb2.Message(role=role, parts=[reasoning, part])
    return RunEvent(message_stored=MessageStored(message=message))


def reply_of(*events: RunEvent) -> str:
    collector = ReplyCollector()
    for event in events:
        collector.add(event)
    return collector.reply()


def test_the_texts_of_assistant_messages_are_joined() -> None:
    # The run that waits for a client tool is followed by the one that continues.
    events = (
        stored("Hi.", message_pb2.ROLE_USER),
        stored("First."),
        RunEvent(run_finished=WAITING),
        stored(""),
        stored("Second."),
        RunEvent(run_finished=RunFinished(stop_reason=run_event_pb2.STOP_REASON_END_TURN)),
    )
    assert reply_of(*events) == "First.\n\nSecond."


@pytest.mark.parametrize(
    ("finished", "message"),
    [
        (FAILED, "It broke."),
        (CANCELLED, "The run ended with STOP_REASON_CANCELLED."),
        (WAITING, "The run ended with STOP_REASON_REQUIRES_APPROVAL."),
    ],
)
def test_a_run_without_a_reply_is_an_error(finished: RunFinished, message: str) -> None:
    with pytest.raises(RunFailedError) as failed:
        reply_of(stored("First."), RunEvent(run_id="run-1", run_finished=finished))
    assert str(failed.value) == message
    assert (failed.value.run_id, failed.value.finished) == ("run-1", finished)
