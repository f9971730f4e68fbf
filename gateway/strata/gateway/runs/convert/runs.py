"""Validates and converts requests and responses for runs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

from strata.api.agent_loop.v1 import group_service_pb2 as group_pb
from strata.api.agent_loop.v1 import turn_service_pb2 as turn_pb
from strata.api.common.v1 import message_pb2, run_event_pb2
from strata.api.gateway.v1 import run_service_pb2 as pb
from strata.gateway.runs.domain.approvals import OnApproval
from strata.gateway.runs.domain.chains import Chain, conversation_with
from strata.gateway.runs.domain.memory_agents import MemoryMark
from strata.gateway.runs.domain.principals import Principal
from strata.gateway.runs.domain.runs import (
    Dispatch,
    NewRun,
    OnBusy,
    Run,
    RunFailure,
    RunFilter,
    RunKind,
    is_group,
)
from strata.gateway.runs.domain.states import RunState
from strata.protocol.errors import Reason, StrataError
from strata.shared.agent_messages import without_name
from strata.shared.checks import Checks
from strata.shared.context import Caller
from strata.shared.convert.enums import EnumTable
from strata.shared.convert.messages import PROVENANCES, labels_from_proto
from strata.shared.convert.runs import STOP_REASONS
from strata.shared.convert.usage import usage_to_proto
from strata.shared.ids import default_conversation_id, new_id
from strata.shared.message_inputs import content_violations
from strata.shared.provenance import Provenance
from strata.shared.record_fields import replace
from strata.shared.response_formats import response_format_violations
from strata.shared.stop_reasons import StopReason
from strata.shared.usage import Usage

MAX_MESSAGES = 64
_KINDS = EnumTable(pb.RunKind, RunKind)
_STATES = EnumTable(pb.RunState, RunState)
MAX_CHARACTERS = 200_000
MAX_STEPS = 200

_MAX_DELAY = timedelta(days=366)
_MAX_PARTS = 64
_MAX_NAME = 128
_MAX_TENDED = 100
_ROLES = frozenset(
    {
        message_pb2.ROLE_UNSPECIFIED,
        message_pb2.ROLE_USER,
        message_pb2.ROLE_SYSTEM,
        message_pb2.ROLE_ASSISTANT,
    }
)
UNTRUSTED = frozenset({message_pb2.PROVENANCE_WEB, message_pb2.PROVENANCE_MCP})
_ON_BUSY = EnumTable(pb.OnBusy, OnBusy, default=OnBusy.ENQUEUE)
ON_APPROVAL = EnumTable(
    pb.OnApproval, [OnApproval.REJECT, OnApproval.DENY], default=OnApproval.REJECT
)


def new_run(
    request: pb.SendMessageRequest | pb.StartRunRequest,
    caller: Caller,
    kind: RunKind,
    chain: Chain = (),
) -> NewRun:
    """Returns the run to start for a request.

    With a group_id, the run is part of that group's run (see `is_asked_in_group`).

    Args:
        request: The request.
        caller: The caller.
        kind: The kind of caller that starts the run.
        chain: The run whose agent makes the request, and its parents; empty for a client.

    Raises:
        InvalidArgumentError: Fields are wrong; the violations name all of them.
    """
    checks = Checks()
    checks.id(request.agent_id, "agent", "agent_id")
    checks.id(request.conversation_id, "conversation", "conversation_id", optional=True)
    _check_new_run(checks, request)
    group_run_id = ""
    if checks.id(request.group_id, "group", "group_id", optional=True):
        if len(chain) > 1 and chain[1].agent_id == request.group_id:
            group_run_id = chain[1].run_id
        else:
            checks.fail("group_id", "must be the group that has your turn")
    checks.done()
    conversation_id = (
        request.conversation_id
        or conversation_with(chain, request.agent_id)
        or default_conversation_id(request.agent_id)
    )
    payload = turn_pb.ExecuteRunRequest(
        agent_id=request.agent_id,
        conversation_id=conversation_id,
        messages=request.messages,
        max_steps=request.max_steps,
        sender_agent_id=chain[0].agent_id if chain else "",
        response_format=request.response_format if request.HasField("response_format") else None,
        group_id=request.group_id,
    )
    new = _new_run(request, caller, kind, chain, payload)
    return replace(new, group_run_id=group_run_id)


def is_asked_in_group(request: pb.SendMessageRequest | pb.StartRunRequest, caller: Caller) -> bool:
    """Whether the manager agent of a group calls one of its members."""
    asks = isinstance(request, pb.SendMessageRequest) and caller.run_id is not None
    return asks and bool(request.agent_id and request.group_id)


def new_group_run(
    request: pb.SendMessageRequest | pb.StartRunRequest,
    caller: Caller,
    kind: RunKind,
    chain: Chain = (),
) -> NewRun:
    """Returns the run of a group to start for a request; `with_group` completes it.

    Raises:
        InvalidArgumentError: Fields are wrong; the violations name all of them.
    """
    checks = Checks()
    checks.id(request.group_id, "group", "group_id")
    _check_new_run(checks, request)
    for name in ("agent_id", "conversation_id"):
        checks.unless(not getattr(request, name), name, "must be empty beside group_id")
    if request.HasField("response_format"):
        problem = "must be unset beside group_id: each member replies in the format of its own"
        checks.fail("response_format", problem)
    checks.done()
    payload = turn_pb.ExecuteRunRequest(
        agent_id=request.group_id,
        conversation_id=request.group_id,
        messages=request.messages,
        max_steps=request.max_steps,
    )
    return _new_run(request, caller, kind, chain, payload)


def with_group(new: NewRun, group: group_pb.Group) -> NewRun:
    """Returns a new run with the present state of its group.

    The group is not in the hash, so a repeated request gets the same run if the group has changed.
    """
    payload = turn_pb.ExecuteRunRequest.FromString(new.payload)
    payload.group.CopyFrom(group)
    return replace(new, payload=payload.SerializeToString(deterministic=True))


def _new_run(
    request: pb.SendMessageRequest | pb.StartRunRequest,
    caller: Caller,
    kind: RunKind,
    chain: Chain,
    execute: turn_pb.ExecuteRunRequest,
) -> NewRun:
    payload = execute.SerializeToString(deterministic=True)
    run_at = None
    if isinstance(request, pb.StartRunRequest) and request.HasField("start_time"):
        run_at = _start_time(request)
    return NewRun(
        id=new_id("run"),
        principal=principal_of(caller),
        agent_id=execute.agent_id,
        conversation_id=execute.conversation_id,
        kind=kind,
        payload=payload,
        payload_hash=hashlib.sha256(_identifying(execute, payload) + _start_mark(run_at)).digest(),
        max_steps=request.max_steps,
        request_id=request.request_id or None,
        on_busy=_ON_BUSY.from_proto[request.on_busy],
        on_approval=ON_APPROVAL.from_proto[request.on_approval],
        parent_run_id=chain[0].run_id if chain else "",
        run_at=run_at,
    )


def _identifying(execute: turn_pb.ExecuteRunRequest, payload: bytes) -> bytes:
    """Returns what a repeated request must have in common with the first one.

    Without the name of an agent that sends the messages, which may have been renamed meanwhile.
    """
    if not execute.sender_agent_id:
        return payload
    identifying = turn_pb.ExecuteRunRequest.FromString(payload)
    for message in identifying.messages:
        message.name = ""
        for part in message.parts:
            if part.HasField("text"):
                part.text.text = without_name(part.text.text, execute.sender_agent_id)
    return identifying.SerializeToString(deterministic=True)


def _check_new_run(checks: Checks, request: pb.SendMessageRequest | pb.StartRunRequest) -> None:
    check_run(checks, request)
    _check_messages(checks, request.messages)
    checks.extend(response_format_violations(request))
    checks.unless(request.on_busy in _ON_BUSY.from_proto, "on_busy", "is not a known policy")
    is_known = request.on_approval in ON_APPROVAL.from_proto
    checks.unless(is_known, "on_approval", "is not a known policy")
    if isinstance(request, pb.StartRunRequest) and request.HasField("start_time"):
        _check_start(checks, request)


def _check_start(checks: Checks, request: pb.StartRunRequest) -> None:
    latest = datetime.now(UTC) + _MAX_DELAY
    start = _start_time(request)
    checks.unless(
        start is not None and start <= latest,
        "start_time",
        f"must be a valid time, at most {_MAX_DELAY.days} days ahead",
    )
    checks.unless(
        request.on_busy in (pb.ON_BUSY_UNSPECIFIED, pb.ON_BUSY_ENQUEUE),
        "on_busy",
        "must be ENQUEUE for a run with a start_time",
    )
    checks.unless(
        request.on_approval in (pb.ON_APPROVAL_UNSPECIFIED, pb.ON_APPROVAL_REJECT),
        "on_approval",
        "must be REJECT for a run with a start_time",
    )


def _start_time(request: pb.StartRunRequest) -> datetime | None:
    """Returns when a run may start; None if the field is not a valid time."""
    try:
        return request.start_time.ToDatetime(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None


def _start_mark(run_at: datetime | None) -> bytes:
    """Returns the start time as part of the request's hash; empty for an immediate start."""
    return b"" if run_at is None else f"|{run_at.isoformat()}".encode()


def principal_of(caller: Caller) -> Principal:
    """Returns the principal of a run that a caller starts."""
    return Principal(caller.organization_id, caller.project_id, caller.principal, caller.scopes)


def check_run(
    checks: Checks,
    request: pb.SendMessageRequest | pb.StartRunRequest | pb.RespondToApprovalRequest,
) -> None:
    """Checks the fields that all requests for a run share."""
    checks.request_id(request.request_id)
    checks.unless(
        0 <= request.max_steps <= MAX_STEPS,
        "max_steps",
        f"must be between 0 (the default) and {MAX_STEPS}",
    )


def _check_messages(checks: Checks, messages: Sequence[message_pb2.MessageInput]) -> None:
    checks.unless(bool(messages), "messages", "must hold at least one message")
    if len(messages) > MAX_MESSAGES:
        checks.fail("messages", f"must hold at most {MAX_MESSAGES} messages")
        return
    total = sum(len(part.text.text) for message in messages for part in message.parts)
    checks.unless(
        total <= MAX_CHARACTERS,
        "messages",
        f"must hold at most {MAX_CHARACTERS} characters of text, not {total}",
    )
    for index, message in enumerate(messages):
        field = f"messages[{index}]"
        checks.unless(message.role in _ROLES, f"{field}.role", "must be USER, SYSTEM or ASSISTANT")
        for name in ("name", "client_message_id"):
            value = getattr(message, name)
            checks.unless(
                len(value) <= _MAX_NAME and (not value or value.isprintable()),
                f"{field}.{name}",
                f"must be at most {_MAX_NAME} printable characters",
            )
        are_known = UNTRUSTED.issuperset(message.taint)
        checks.unless(are_known, f"{field}.taint", "must contain only WEB and MCP")
        if len(message.parts) > _MAX_PARTS:
            checks.fail(f"{field}.parts", f"must hold at most {_MAX_PARTS} parts")
            return
    checks.extend(content_violations("messages", messages))


def run_filter(request: pb.ListRunsRequest) -> RunFilter:
    """Returns the filter of a list request.

    Raises:
        InvalidArgumentError: A malformed id or an unknown state.
    """
    checks = Checks()
    checks.id(request.agent_id, "agent", "agent_id", optional=True)
    checks.id(request.conversation_id, "conversation", "conversation_id", optional=True)
    if checks.id(request.group_id, "group", "group_id", optional=True):
        checks.unless(not request.agent_id, "agent_id", "must be empty beside group_id")
    are_known = all(state in _STATES.from_proto for state in request.states)
    checks.unless(are_known, "states", "is not a known state")
    checks.done()
    states = frozenset(_STATES.from_proto[state] for state in request.states)
    return RunFilter(request.agent_id or request.group_id, request.conversation_id, states)


def execute_request(
    dispatch: Dispatch, attempt: int, remaining_s: float
) -> turn_pb.ExecuteRunRequest:
    """Returns the request to agent_loop for a dispatch, with `remaining_s` until its deadline."""
    request = turn_pb.ExecuteRunRequest.FromString(dispatch.payload)
    request.run_id = dispatch.run.id
    request.attempt = attempt
    # The call itself carries the trace.
    request.ClearField("traceparent")
    # Each follower decides for itself; one that needs the tokens may join later.
    request.stream_tokens = True
    request.remaining_time.FromTimedelta(timedelta(seconds=remaining_s))
    return request


def traced(payload: bytes, traceparent: str) -> bytes:
    """Returns a payload with the span of the call that starts the run."""
    # Messages that follow each other are merged.
    return payload + turn_pb.ExecuteRunRequest(traceparent=traceparent).SerializeToString()


def traceparent_of(payload: bytes) -> str:
    """Returns the span of the call that started a run; empty for none."""
    traceparent: str = turn_pb.ExecuteRunRequest.FromString(payload).traceparent
    return traceparent


def run_to_pb(run: Run) -> pb.Run:
    """Converts a run."""
    of_group = is_group(run.agent_id)
    out = pb.Run(
        id=run.id,
        agent_id="" if of_group else run.agent_id,
        conversation_id="" if of_group else run.conversation_id,
        group_id=run.agent_id if of_group else "",
        kind=_KINDS.to_proto[run.kind],
        state=_STATES.to_proto[run.state],
        usage=usage_to_proto(run.usage),
        step_count=run.step_count,
        attempt=run.attempt,
        last_sequence=run.last_sequence,
        request_id=run.request_id,
        taint=_labels_of(run.taint),
        parent_run_id=run.parent_run_id,
    )
    if run.stop_reason is not None:
        out.stop_reason = STOP_REASONS.to_proto[run.stop_reason]
    if run.failure is not None:
        out.error.CopyFrom(failure_to_pb(run.failure))
    out.create_time.FromDatetime(run.create_time)
    if run.run_at is not None and run.run_at > run.create_time:
        out.not_before_time.FromDatetime(run.run_at)
    if run.start_time is not None:
        out.start_time.FromDatetime(run.start_time)
    if run.finish_time is not None:
        out.finish_time.FromDatetime(run.finish_time)
    return out


def memory_agents_of(request: pb.GetMemoryStatusRequest) -> list[str]:
    """Returns the ids of the agents in a request.

    Raises:
        InvalidArgumentError: A malformed id, no id or too many, or both fields.
    """
    checks = Checks()
    checks.exactly_one(request, "agent_id", "agent_ids")
    checks.id(request.agent_id, "agent", "agent_id", optional=True)
    agent_ids = checks.ids(request.agent_ids, "agent", "agent_ids", most=_MAX_TENDED)
    checks.done()
    return agent_ids or [request.agent_id]


def mark_to_pb(mark: MemoryMark) -> pb.MemoryStatus:
    """Converts the progress of a memory agent."""
    out = pb.MemoryStatus(
        agent_id=mark.agent_id,
        conversation_id="" if mark.file_id else mark.conversation_id,
        memory_agent_id=mark.memory_agent_id,
        sleeptime_agent_frequency=mark.frequency,
        turns_counter=mark.turns_counter,
        last_processed_message_id=mark.processed_message_id,
        last_processed_sequence=mark.processed_sequence,
        pending_messages=mark.pending,
        run_id=mark.run_id,
        run_open=mark.run_open,
        failures=mark.failures,
        last_error=mark.last_error,
        file_id=mark.file_id,
        file_name=mark.file_name,
        block_label=mark.block_label,
    )
    if mark.run_at is not None:
        out.next_run_time.FromDatetime(mark.run_at)
    return out


def failure_to_pb(failure: RunFailure) -> run_event_pb2.RunError:
    """Converts a failure."""
    return run_event_pb2.RunError(
        reason=failure.reason, message=failure.message, retryable=failure.retryable
    )


def failure_of(error: StrataError, *, retryable: bool) -> RunFailure:
    """Returns the failure of a run that ended with an error."""
    return RunFailure(error.reason.value, error.message, retryable)


def taint_of(labels: Iterable[message_pb2.Provenance.ValueType]) -> tuple[str, ...]:
    """Returns the names of labels, without labels unknown to this release."""
    return tuple(label.name for label in labels_from_proto(labels))


def _labels_of(taint: Iterable[str]) -> list[message_pb2.Provenance.ValueType]:
    # A gateway of a newer release may have stored a label that this one lacks.
    members = Provenance.__members__
    return [PROVENANCES.to_proto[members[name]] for name in taint if name in members]


def stop_of(finished: run_event_pb2.RunFinished) -> tuple[StopReason, RunFailure | None]:
    """Returns the stop reason and the failure of a run.

    A missing stop reason, or one unknown to this release, counts as ERROR.
    """
    failure = None
    if finished.HasField("error"):
        error = finished.error
        failure = RunFailure(error.reason, error.message, error.retryable)
    stop_reason = STOP_REASONS.from_proto.get(finished.stop_reason)
    if stop_reason is None:
        return StopReason.ERROR, failure or RunFailure(
            Reason.INTERNAL.value, "The run ended without a reason.", retryable=True
        )
    return stop_reason, failure


def build_run_finished(
    stop_reason: StopReason,
    usage: Usage,
    step_count: int,
    failure: RunFailure | None = None,
    taint: Iterable[str] = (),
) -> run_event_pb2.RunFinished:
    """Returns the last event of a run that the gateway itself ends."""
    event = run_event_pb2.RunFinished(
        stop_reason=STOP_REASONS.to_proto[stop_reason],
        usage=usage_to_proto(usage),
        step_count=step_count,
        taint=_labels_of(taint),
    )
    if failure is not None:
        event.error.CopyFrom(failure_to_pb(failure))
    return event


def finished_event(run_id: str, stop_reason: StopReason, usage: Usage) -> bytes:
    """Returns the only event of a run that never started, serialised."""
    event = run_event_pb2.RunEvent(
        sequence=1, run_id=run_id, run_finished=build_run_finished(stop_reason, usage, 0)
    )
    event.create_time.GetCurrentTime()
    return event.SerializeToString()
