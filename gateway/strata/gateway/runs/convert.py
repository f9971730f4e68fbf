"""Validates and converts requests and responses for runs."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from strata.api.agent_loop.v1 import group_service_pb2 as group_pb
from strata.api.agent_loop.v1 import turn_service_pb2 as turn_pb
from strata.api.common.v1 import message_pb2, run_event_pb2, usage_pb2
from strata.api.gateway.v1 import run_service_pb2 as pb
from strata.gateway.runs.approvals import OnApproval
from strata.gateway.runs.chains import Chain, conversation_with
from strata.gateway.runs.domain import (
    Dispatch,
    NewRun,
    OnBusy,
    Principal,
    Run,
    RunFailure,
    RunFilter,
    RunKind,
    StopReason,
    Usage,
    is_group,
)
from strata.gateway.runs.memory_agents import MemoryMark
from strata.gateway.runs.states import RunState
from strata.protocol.errors import FieldViolation, InvalidArgumentError, Reason, StrataError
from strata.shared.context import Caller
from strata.shared.ids import check_id, default_conversation_id, new_id
from strata.shared.message_inputs import content_violations
from strata.shared.response_formats import response_format_violations

MAX_MESSAGES = 64
MAX_CHARACTERS = 200_000
MAX_STEPS = 200

_MAX_DELAY = timedelta(days=366)
_MAX_PARTS = 64
_MAX_NAME = 128
_REQUEST_ID = re.compile(r"[!-~]{1,128}")
_ROLES = frozenset(
    {
        message_pb2.ROLE_UNSPECIFIED,
        message_pb2.ROLE_USER,
        message_pb2.ROLE_SYSTEM,
        message_pb2.ROLE_ASSISTANT,
    }
)
UNTRUSTED = frozenset({message_pb2.PROVENANCE_WEB, message_pb2.PROVENANCE_MCP})
_ON_BUSY = {
    pb.ON_BUSY_UNSPECIFIED: OnBusy.ENQUEUE,
    pb.ON_BUSY_ENQUEUE: OnBusy.ENQUEUE,
    pb.ON_BUSY_REJECT: OnBusy.REJECT,
    pb.ON_BUSY_INTERRUPT: OnBusy.INTERRUPT,
}
_ON_APPROVAL = {
    pb.ON_APPROVAL_UNSPECIFIED: OnApproval.REJECT,
    pb.ON_APPROVAL_REJECT: OnApproval.REJECT,
    pb.ON_APPROVAL_DENY: OnApproval.DENY,
}


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
        kind: What starts the run.
        chain: The run whose agent makes the request, and its parents; empty for a client.

    Raises:
        InvalidArgumentError: Naming every wrong field.
    """
    check_id(request.agent_id, "agent", field="agent_id")
    if request.conversation_id:
        check_id(request.conversation_id, "conversation", field="conversation_id")
    violations = list(_new_run_violations(request))
    group_run_id = ""
    if request.group_id:
        check_id(request.group_id, "group", field="group_id")
        if len(chain) > 1 and chain[1].agent_id == request.group_id:
            group_run_id = chain[1].run_id
        else:
            violations.append(FieldViolation("group_id", "must be the group that has your turn"))
    refuse(violations)
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
    """Whether the manager agent of a group asks one of its members."""
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
        InvalidArgumentError: Naming every wrong field.
    """
    check_id(request.group_id, "group", field="group_id")
    violations = list(_new_run_violations(request))
    violations.extend(
        FieldViolation(name, "must be empty beside group_id")
        for name in ("agent_id", "conversation_id")
        if getattr(request, name)
    )
    if request.HasField("response_format"):
        problem = "must be unset beside group_id: each member replies in the format of its own"
        violations.append(FieldViolation("response_format", problem))
    refuse(violations)
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
        payload_hash=hashlib.sha256(payload + _start_mark(run_at)).digest(),
        max_steps=request.max_steps,
        request_id=request.request_id or None,
        on_busy=_ON_BUSY[request.on_busy],
        on_approval=_ON_APPROVAL[request.on_approval],
        parent_run_id=chain[0].run_id if chain else "",
        run_at=run_at,
    )


def _new_run_violations(
    request: pb.SendMessageRequest | pb.StartRunRequest,
) -> Iterator[FieldViolation]:
    yield from run_violations(request)
    yield from _message_violations(request.messages)
    yield from response_format_violations(request)
    if request.on_busy not in _ON_BUSY:
        yield FieldViolation("on_busy", "is not a known policy")
    if request.on_approval not in _ON_APPROVAL:
        yield FieldViolation("on_approval", "is not a known policy")
    if isinstance(request, pb.StartRunRequest) and request.HasField("start_time"):
        yield from _start_violations(request)


def _start_violations(request: pb.StartRunRequest) -> Iterator[FieldViolation]:
    latest = datetime.now(UTC) + _MAX_DELAY
    start = _start_time(request)
    if start is None or start > latest:
        yield FieldViolation(
            "start_time", f"must be a valid time, at most {_MAX_DELAY.days} days ahead"
        )
    if request.on_busy not in (pb.ON_BUSY_UNSPECIFIED, pb.ON_BUSY_ENQUEUE):
        yield FieldViolation("on_busy", "must be ENQUEUE for a run with a start_time")
    if request.on_approval not in (pb.ON_APPROVAL_UNSPECIFIED, pb.ON_APPROVAL_REJECT):
        yield FieldViolation("on_approval", "must be REJECT for a run with a start_time")


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


def refuse(violations: Iterable[FieldViolation]) -> None:
    """Raises an error if a request has violations.

    Raises:
        InvalidArgumentError: Naming every wrong field.
    """
    violations = list(violations)
    if violations:
        raise InvalidArgumentError(
            f"The request has {len(violations)} wrong field(s): "
            f"{violations[0].field} {violations[0].description}.",
            violations=violations,
        )


def run_violations(
    request: pb.SendMessageRequest | pb.StartRunRequest | pb.RespondToApprovalRequest,
) -> Iterator[FieldViolation]:
    """Yields the violations of the fields that all requests for a run share."""
    yield from request_id_violations(request.request_id)
    if not 0 <= request.max_steps <= MAX_STEPS:
        yield FieldViolation("max_steps", f"must be between 0 (the default) and {MAX_STEPS}")


def request_id_violations(request_id: str) -> Iterator[FieldViolation]:
    """Yields the violations of a request_id."""
    if request_id and _REQUEST_ID.fullmatch(request_id) is None:
        yield FieldViolation("request_id", "must be at most 128 printable ASCII characters")


def _message_violations(messages: Sequence[message_pb2.MessageInput]) -> Iterator[FieldViolation]:
    if not messages:
        yield FieldViolation("messages", "must hold at least one message")
    if len(messages) > MAX_MESSAGES:
        yield FieldViolation("messages", f"must hold at most {MAX_MESSAGES} messages")
        return
    total = sum(len(part.text.text) for message in messages for part in message.parts)
    if total > MAX_CHARACTERS:
        yield FieldViolation(
            "messages", f"must hold at most {MAX_CHARACTERS} characters of text, not {total}"
        )
    for index, message in enumerate(messages):
        field = f"messages[{index}]"
        if message.role not in _ROLES:
            yield FieldViolation(f"{field}.role", "must be USER, SYSTEM or ASSISTANT")
        for name, value in (
            ("name", message.name),
            ("client_message_id", message.client_message_id),
        ):
            if len(value) > _MAX_NAME or (value and not value.isprintable()):
                yield FieldViolation(
                    f"{field}.{name}", f"must be at most {_MAX_NAME} printable characters"
                )
        if not UNTRUSTED.issuperset(message.taint):
            yield FieldViolation(f"{field}.taint", "must contain only WEB and MCP")
        if len(message.parts) > _MAX_PARTS:
            yield FieldViolation(f"{field}.parts", f"must hold at most {_MAX_PARTS} parts")
            return
    yield from content_violations("messages", messages)


def run_filter(request: pb.ListRunsRequest) -> RunFilter:
    """Returns the filter of a list request.

    Raises:
        InvalidArgumentError: A malformed id or an unknown state.
    """
    if request.agent_id:
        check_id(request.agent_id, "agent", field="agent_id")
    if request.group_id:
        check_id(request.group_id, "group", field="group_id")
        if request.agent_id:
            refuse([FieldViolation("agent_id", "must be empty beside group_id")])
    if request.conversation_id:
        check_id(request.conversation_id, "conversation", field="conversation_id")
    try:
        states = frozenset(
            RunState(pb.RunState.Name(state).removeprefix("RUN_STATE_")) for state in request.states
        )
    except ValueError:
        raise InvalidArgumentError(
            "states contains an unknown state.",
            violations=[FieldViolation("states", "is not a known state")],
        ) from None
    return RunFilter(request.agent_id or request.group_id, request.conversation_id, states)


def execute_request(
    dispatch: Dispatch, attempt: int, remaining_s: float
) -> turn_pb.ExecuteRunRequest:
    """Returns the request to agent_loop for a dispatch, with `remaining_s` until its deadline."""
    request = turn_pb.ExecuteRunRequest.FromString(dispatch.payload)
    request.run_id = dispatch.run.id
    request.attempt = attempt
    # Each follower decides for itself; one that wants the tokens may join later.
    request.stream_tokens = True
    request.remaining_time.FromTimedelta(timedelta(seconds=remaining_s))
    return request


def run_to_pb(run: Run) -> pb.Run:
    """Converts a run."""
    of_group = is_group(run.agent_id)
    out = pb.Run(
        id=run.id,
        agent_id="" if of_group else run.agent_id,
        conversation_id="" if of_group else run.conversation_id,
        group_id=run.agent_id if of_group else "",
        kind=pb.RunKind.Value(f"RUN_KIND_{run.kind}"),
        state=pb.RunState.Value(f"RUN_STATE_{run.state}"),
        stop_reason=run_event_pb2.StopReason.Value(f"STOP_REASON_{run.stop_reason}"),
        usage=usage_to_pb(run.usage),
        step_count=run.step_count,
        attempt=run.attempt,
        last_sequence=run.last_sequence,
        request_id=run.request_id,
        taint=[message_pb2.Provenance.Value(f"PROVENANCE_{label}") for label in run.taint],
        parent_run_id=run.parent_run_id,
    )
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


def usage_of(usage: usage_pb2.Usage) -> Usage:
    """Converts a usage from protobuf."""
    return Usage(
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.total_tokens,
        usage.cached_input_tokens,
        usage.cache_write_tokens,
        usage.reasoning_tokens,
        usage.estimated,
    )


def usage_to_pb(usage: Usage) -> usage_pb2.Usage:
    """Converts a usage to protobuf."""
    return usage_pb2.Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.total_tokens,
        cached_input_tokens=usage.cached_input_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        estimated=usage.estimated,
    )


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
    known = message_pb2.Provenance.values()
    names = (message_pb2.Provenance.Name(label) for label in labels if label in known)
    return tuple(name.removeprefix("PROVENANCE_") for name in names)


def stop_of(finished: run_event_pb2.RunFinished) -> tuple[StopReason, RunFailure | None]:
    """Returns the stop reason and the failure of a run.

    A missing stop reason, or one unknown to this release, counts as ERROR.
    """
    failure = None
    if finished.HasField("error"):
        error = finished.error
        failure = RunFailure(error.reason, error.message, error.retryable)
    try:
        name = run_event_pb2.StopReason.Name(finished.stop_reason)
        stop_reason = StopReason(name.removeprefix("STOP_REASON_"))
    except ValueError:
        stop_reason = StopReason.UNSPECIFIED
    if stop_reason is StopReason.UNSPECIFIED:
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
        stop_reason=run_event_pb2.StopReason.Value(f"STOP_REASON_{stop_reason}"),
        usage=usage_to_pb(usage),
        step_count=step_count,
        taint=[message_pb2.Provenance.Value(f"PROVENANCE_{label}") for label in taint],
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
