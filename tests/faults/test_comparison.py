"""The comparison of the fault tests finds each kind of deviation."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from faults.comparison import Account, Fault, File, Run, Stream, compare
from strata.api.common.v1 import message_pb2, run_event_pb2
from strata.api.common.v1.run_event_pb2 import RunEvent
from strata.api.common.v1.usage_pb2 import Usage
from strata.api.gateway.v1 import run_service_pb2 as run_pb

_END, _ASKS = (
    run_event_pb2.STOP_REASON_END_TURN,
    run_event_pb2.STOP_REASON_REQUIRES_APPROVAL,
)
_OK, _FAILED = message_pb2.TOOL_STATUS_OK, message_pb2.TOOL_STATUS_FAILED


def message(number: int, role: Any, *parts: message_pb2.Part, tokens: int = 0) -> Any:
    usage = Usage(total_tokens=tokens) if tokens else None
    return message_pb2.Message(
        id=f"message-{number}", sequence=number, role=role, parts=parts, usage=usage
    )


def text(value: str) -> message_pb2.Part:
    return message_pb2.Part(text=message_pb2.TextPart(text=value))


def calls(name: str, number: int) -> message_pb2.Part:
    part = message_pb2.ToolCallPart(tool_call_id=f"call-{number}", name=name)
    return message_pb2.Part(tool_call=part)


def returns(name: str, number: int, content: str, status: Any = _OK) -> message_pb2.Part:
    part = message_pb2.ToolReturnPart(
        tool_call_id=f"call-{number}", name=name, content=content, status=status
    )
    return message_pb2.Part(tool_return=part)


def shown(message: Any) -> list[RunEvent]:
    """Returns the events of a reply that is streamed and stored."""
    value = "".join(part.text.text for part in message.parts)
    pieces = [value[:4], value[4:]] if value else []
    deltas = [
        RunEvent(text_delta=run_event_pb2.TextDelta(message_id=message.id, text=piece))
        for piece in pieces
    ]
    return [*deltas, stored(message)]


def stored(message: Any) -> RunEvent:
    return RunEvent(message_stored=run_event_pb2.MessageStored(message=message))


def a_run(number: int, kind: str, began: float, *events: RunEvent, stop: Any = _END) -> Run:
    """Returns a correct run; a second client follows it from the middle of its first reply."""
    tag = f"a{number:04}"
    usage = Usage(
        total_tokens=sum(event.message_stored.message.usage.total_tokens for event in events)
    )
    finished = run_event_pb2.RunFinished(stop_reason=stop, usage=usage)
    started = RunEvent(run_started=run_event_pb2.RunStarted(attempt=1))
    run = Run(tag, kind, began, ended=began + 1)
    for event in (started, *events, RunEvent(run_finished=finished)):
        numbered = event.WhichOneof("event") != "text_delta"
        event.run_id = f"run-{kind}-{number}"
        event.sequence = len(run.stored) + 1 if numbered else 0
        run.seen.events.append(event)
        if numbered:
            run.stored.append(event)
    run.seen.connections = 1
    run.followed = Stream(list(run.seen.events), 1)
    for i, event in enumerate(run.seen.events):
        if event.HasField("text_delta"):
            snapshot = run_event_pb2.TextSnapshot(
                message_id=event.text_delta.message_id, text=event.text_delta.text
            )
            run.followed.events[i] = RunEvent(text_snapshot=snapshot)
            break
    run.row = run_pb.Run(
        state=run_pb.RUN_STATE_COMPLETED,
        stop_reason=stop,
        usage=usage,
        last_sequence=len(run.stored),
    )
    return run


def consistent() -> Account:
    """Returns an account without deviations."""
    user, assistant, tool, asking = (
        message_pb2.ROLE_USER,
        message_pb2.ROLE_ASSISTANT,
        message_pb2.ROLE_TOOL,
        message_pb2.ROLE_APPROVAL,
    )
    log = [
        message(0, user, text("record a0000 file")),
        message(1, assistant, text("One moment."), calls("effects__record", 1), tokens=10),
        message(2, tool, returns("effects__record", 1, "done")),
        message(3, assistant, text("Done with it."), tokens=12),
        message(4, user, text("plain a0001 file")),
        message(5, assistant, text("A plain reply."), tokens=7),
        message(6, user, text("client a0002 file")),
        message(7, asking, text("One moment."), calls("show_map", 2), tokens=9),
        message(8, assistant, text("One moment."), calls("show_map", 2)),
        message(9, tool, returns("show_map", 2, "shown for a0002", _FAILED)),
        message(10, assistant, text("Done with it."), tokens=11),
    ]
    asked = message_pb2.ApprovalRequestPart(approval_id="approval-1")
    runs = [
        a_run(0, "record", 0.0, *shown(log[1]), stored(log[2]), *shown(log[3])),
        a_run(1, "plain", 2.0, *shown(log[5])),
        a_run(
            2,
            "client",
            4.0,
            *shown(log[7]),
            RunEvent(approval_requested=run_event_pb2.ApprovalRequested(approval=asked)),
            stop=_ASKS,
        ),
        a_run(2, "answer", 6.0, stored(log[8]), stored(log[9]), *shown(log[10])),
    ]
    runs[3].returned = (_FAILED, "shown for a0002")
    files = [File("a.txt", "0a"), File("b.txt", "0b")]
    return Account(
        runs,
        {
            ("a0000", False): 1,
            ("a0000", True): 1,
            ("a0001", False): 1,
            ("a0002", False): 1,
            ("a0002", True): 1,
        },
        recorded={"a0000": 1},
        log=log,
        uploaded=files,
        listed=copy.deepcopy(files),
    )


def test_a_consistent_account_passes() -> None:
    counts = compare(consistent(), [])
    assert counts == {"TOOL_STATUS_OK": 1}


def answer_through_a_tool(account: Account) -> None:
    """Makes the agent of the first run a V2 agent, whose last reply calls ``send_message``."""
    log = [*account.log]
    log[3].parts[0].CopyFrom(calls("send_message", 20))
    answer = message(20, message_pb2.ROLE_TOOL, returns("send_message", 20, "None"))
    log.insert(4, answer)
    for sequence, entry in enumerate(log):
        entry.sequence = sequence
    account.log = log
    events = (*shown(log[1]), stored(log[2]), *shown(log[3]), stored(answer))
    run = a_run(0, "record", 0.0, *events)
    run.sends_message = True
    account.runs = [run, *account.runs[1:]]


def test_answer_through_a_tool_passes() -> None:
    account = consistent()
    answer_through_a_tool(account)
    compare(account, [])


def answer_fails(account: Account) -> None:
    answer_through_a_tool(account)
    for event in account.runs[0].stored:
        for part in event.message_stored.message.parts:
            if part.tool_return.name == "send_message":
                part.tool_return.status = _FAILED


def answer_is_missing(account: Account) -> None:
    account.runs[0].sends_message = True


def lose_an_event(account: Account) -> None:
    del account.runs[0].stored[2]


def lose_an_event_on_the_way(account: Account) -> None:
    events = account.runs[0].seen.events
    events.remove(next(e for e in events if e.HasField("message_stored")))


def lose_an_event_of_the_follower(account: Account) -> None:
    assert account.runs[0].followed is not None
    events = account.runs[0].followed.events
    events.remove(next(e for e in events if e.HasField("message_stored")))


def show_an_event_twice(account: Account) -> None:
    account.runs[1].seen.events.insert(1, account.runs[1].seen.events[0])


def store_another_time(account: Account) -> None:
    event = copy.deepcopy(account.runs[1].stored[0])
    event.create_time.seconds += 1
    account.runs[1].stored[0] = event


def leave_a_gap(account: Account) -> None:
    for event in account.runs[1].stored[1:]:
        event.sequence += 1
    account.runs[1].row.last_sequence += 1


def end_in_an_error(account: Account) -> None:
    account.runs[1].finished.stop_reason = run_event_pb2.STOP_REASON_ERROR
    account.runs[1].row.stop_reason = run_event_pb2.STOP_REASON_ERROR


def drop_a_delta(account: Account) -> None:
    events = account.runs[1].seen.events
    events.remove(next(e for e in events if e.HasField("text_delta")))


def drop_a_snapshot_of_the_follower(account: Account) -> None:
    assert account.runs[1].followed is not None
    events = account.runs[1].followed.events
    events.remove(next(e for e in events if e.HasField("text_snapshot")))


def leave_text_that_is_not_stored(account: Account) -> None:
    delta = run_event_pb2.TextDelta(message_id="message-99", text="lost")
    account.runs[1].seen.events.insert(1, RunEvent(text_delta=delta))


def leave_the_row_running(account: Account) -> None:
    account.runs[1].row.state = run_pb.RUN_STATE_RUNNING


def count_other_tokens_in_the_row(account: Account) -> None:
    account.runs[1].row.usage.total_tokens += 1


def start_a_second_run(account: Account) -> None:
    for event in account.runs[1].seen.events:
        event.run_id = account.runs[0].id


def buy_a_reply_twice(account: Account) -> None:
    account.bought["a0001", False] += 1  # type: ignore[index]


def buy_a_reply_of_no_run(account: Account) -> None:
    account.bought["a0001", True] = 1  # type: ignore[index]


def buy_a_summary_that_is_not_used(account: Account) -> None:
    account.summaries = [2.5]


def forget_tokens(account: Account) -> None:
    account.runs[1].finished.usage.total_tokens -= 1
    account.runs[1].row.usage.total_tokens -= 1


def count_too_many_tokens(account: Account) -> None:
    account.runs[1].finished.usage.total_tokens += 1
    account.runs[1].row.usage.total_tokens += 1


def have_an_effect_with_status_failed(account: Account) -> None:
    account.log[2].parts[0].tool_return.status = _FAILED
    _replace(account, 2)


def have_no_effect_with_status_ok(account: Account) -> None:
    account.recorded = {}


def repeat_an_effect(account: Account) -> None:
    account.recorded = {"a0000": 2}


def have_an_effect_without_a_call(account: Account) -> None:
    account.recorded = {"a0000": 1, "a0001": 1}


def change_what_the_client_returned(account: Account) -> None:
    account.log[9].parts[0].tool_return.status = _OK
    _replace(account, 9)


def lose_a_message(account: Account) -> None:
    account.log = [m for m in account.log if m.id != "message-5"]
    for number, message in enumerate(account.log):
        message.sequence = number


def store_a_message_twice(account: Account) -> None:
    again = copy.deepcopy(account.log[4])
    again.id, again.sequence = "message-11", 11
    account.log = [*account.log, again]


def store_a_reply_without_an_event(account: Account) -> None:
    reply = message(11, message_pb2.ROLE_ASSISTANT, text("Nobody saw this."))
    account.log = [*account.log, reply]


def store_another_text(account: Account) -> None:
    changed = copy.deepcopy(account.log[5])
    changed.parts[0].text.text = "Another reply."
    account.log = [*account.log[:5], changed, *account.log[6:]]


def lose_a_return(account: Account) -> None:
    account.log[2].parts[0].tool_return.tool_call_id = "call-9"
    _replace(account, 2)


def lose_a_file(account: Account) -> None:
    account.listed = account.listed[:1]


def keep_a_file_twice(account: Account) -> None:
    account.listed = [*account.listed, account.listed[0]]


def leave_a_file_unprepared(account: Account) -> None:
    account.listed[1].ready = False


def leave_an_approval_open(account: Account) -> None:
    account.open_approvals = 1


def _replace(account: Account, number: int) -> None:
    """Replaces a message in all events with the one in the log."""
    for run in account.runs:
        assert run.followed is not None
        for event in (*run.seen.events, *run.followed.events):
            if event.HasField("message_stored"):
                message = event.message_stored.message
                if message.id == account.log[number].id:
                    message.CopyFrom(account.log[number])


DEVIATIONS = (
    answer_fails,
    answer_is_missing,
    lose_an_event,
    lose_an_event_on_the_way,
    lose_an_event_of_the_follower,
    show_an_event_twice,
    store_another_time,
    leave_a_gap,
    end_in_an_error,
    drop_a_delta,
    drop_a_snapshot_of_the_follower,
    leave_text_that_is_not_stored,
    leave_the_row_running,
    count_other_tokens_in_the_row,
    start_a_second_run,
    buy_a_reply_twice,
    buy_a_reply_of_no_run,
    buy_a_summary_that_is_not_used,
    forget_tokens,
    count_too_many_tokens,
    have_an_effect_with_status_failed,
    have_no_effect_with_status_ok,
    repeat_an_effect,
    have_an_effect_without_a_call,
    change_what_the_client_returned,
    lose_a_message,
    store_a_message_twice,
    store_a_reply_without_an_event,
    store_another_text,
    lose_a_return,
    lose_a_file,
    keep_a_file_twice,
    leave_a_file_unprepared,
    leave_an_approval_open,
)


@pytest.mark.parametrize("deviate", DEVIATIONS, ids=lambda function: function.__name__)
def test_every_deviation_is_detected(deviate: Callable[[Account], None]) -> None:
    account = consistent()
    deviate(account)
    with pytest.raises(AssertionError):
        compare(account, [])


def _buy_again(account: Account, streamed: str) -> None:
    """Changes the second run as if the agent loop had died in the middle of its reply."""
    run = account.runs[1]
    delta = RunEvent(text_delta=run_event_pb2.TextDelta(message_id="message-lost", text=streamed))
    restarted = RunEvent(
        step_restarted=run_event_pb2.StepRestarted(message_id="message-lost"), sequence=2
    )
    for event in run.stored[1:]:
        event.sequence += 1
    run.stored.insert(1, restarted)
    run.seen.events[1:1] = [delta, restarted]
    run.followed = None
    run.row.last_sequence += 1
    account.bought["a0001", False] += 1  # type: ignore[index]


AGENT_LOOP_DIED = [Fault("agent_loop", "kill", 2.5, 2.6)]


def test_a_repeated_model_request_after_an_agent_loop_death_must_be_counted() -> None:
    account = consistent()
    _buy_again(account, "Some of the text")
    with pytest.raises(AssertionError, match="7 tokens of 7 and 2"):
        compare(account, AGENT_LOOP_DIED)
    for usage in (account.runs[1].finished.usage, account.runs[1].row.usage):
        usage.total_tokens = 30
    assert compare(account, AGENT_LOOP_DIED)["replies bought again"] == 1


@pytest.mark.parametrize(
    "faults",
    [[], [Fault("recall", "kill", 2.5, 2.6)], [Fault("agent_loop", "kill", 3.5, 3.9)]],
    ids=["no fault", "of recall", "of the agent loop after the run"],
)
def test_no_other_fault_explains_a_repeated_model_request(faults: list[Fault]) -> None:
    account = consistent()
    _buy_again(account, "Some of the text")
    for usage in (account.runs[1].finished.usage, account.runs[1].row.usage):
        usage.total_tokens = 30
    with pytest.raises(AssertionError, match="2 requests"):
        compare(account, faults)
