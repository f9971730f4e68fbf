"""Validates and converts requests and responses for schedules."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp

from strata.api.agent_loop.v1 import turn_service_pb2 as turn_pb
from strata.api.common.v1.response_format_pb2 import ResponseFormat
from strata.api.gateway.v1 import run_service_pb2 as run_pb
from strata.api.gateway.v1 import schedule_service_pb2 as pb
from strata.gateway.runs.convert import runs
from strata.gateway.runs.domain.runs import NewRun, RunKind
from strata.gateway.schedules.domain import (
    NewSchedule,
    OnOverlap,
    RunPlan,
    Schedule,
    ScheduleState,
    Tick,
    TickOutcome,
)
from strata.gateway.schedules.timing import Timing, TimingError
from strata.protocol.errors import FieldViolation, InvalidArgumentError, invalid_field
from strata.shared.context import Caller
from strata.shared.convert.enums import EnumTable
from strata.shared.ids import new_id

_MAX_NAME = 128
_ON_OVERLAP = EnumTable(pb.OnOverlap, OnOverlap, default=OnOverlap.SKIP)
_STATES = EnumTable(pb.ScheduleState, ScheduleState)
_OUTCOMES = EnumTable(pb.TickOutcome, TickOutcome)


def new_schedule(request: pb.CreateScheduleRequest, caller: Caller) -> NewSchedule:
    """Returns the schedule to create for a request.

    Raises:
        InvalidArgumentError: Fields are wrong; the violations name all of them.
    """
    run = runs.new_run(
        run_pb.StartRunRequest(
            request_id=request.request_id,
            agent_id=request.agent_id,
            conversation_id=request.conversation_id,
            messages=request.messages,
            max_steps=request.max_steps,
            on_approval=request.on_approval,
            response_format=_response_format_of(request),
        ),
        caller,
        RunKind.BACKGROUND,
    )
    start = _time(request.start_time) if request.HasField("start_time") else None
    timing = Timing(request.cron, request.time_zone or "UTC", start)
    plan = _plan(run, request.on_overlap)
    return NewSchedule(
        new_id("schedule"), _name(request.name), plan, timing, request.request_id or None
    )


def changed_schedule(
    request: pb.UpdateScheduleRequest, schedule: Schedule, caller: Caller
) -> tuple[str, RunPlan, Timing]:
    """Returns name, plan and times of a schedule after a change.

    Raises:
        InvalidArgumentError: Fields are wrong; the violations name all of them.
    """
    before = schedule_to_pb(schedule)
    run = runs.new_run(
        run_pb.StartRunRequest(
            agent_id=before.agent_id,
            conversation_id=before.conversation_id,
            messages=request.messages or before.messages,
            max_steps=request.max_steps if request.HasField("max_steps") else before.max_steps,
            on_approval=(
                request.on_approval if request.HasField("on_approval") else before.on_approval
            ),
            response_format=_response_format_of(request) or _response_format_of(before),
        ),
        caller,
        RunKind.BACKGROUND,
    )
    overlap = request.on_overlap if request.HasField("on_overlap") else before.on_overlap
    name = _name(request.name) if request.HasField("name") else schedule.name
    return name, _plan(run, overlap), _changed_timing(request, schedule.timing)


def refusal(error: TimingError) -> InvalidArgumentError:
    """Returns the error for a request with invalid times."""
    return InvalidArgumentError(
        f"{error}.", violations=[FieldViolation(error.field, error.description)]
    )


def schedule_to_pb(schedule: Schedule) -> pb.Schedule:
    """Converts a schedule."""
    plan, timing = schedule.plan, schedule.timing
    execute = turn_pb.ExecuteRunRequest.FromString(plan.payload)
    out = pb.Schedule(
        id=schedule.id,
        name=schedule.name,
        agent_id=plan.agent_id,
        conversation_id=plan.conversation_id,
        messages=execute.messages,
        max_steps=plan.max_steps,
        on_approval=runs.ON_APPROVAL.to_proto[plan.on_approval],
        on_overlap=_ON_OVERLAP.to_proto[plan.on_overlap],
        cron=timing.cron,
        time_zone=timing.time_zone if timing.cron else "",
        state=_STATES.to_proto[schedule.state],
        state_reason=schedule.state_reason,
        last_run_id=schedule.last_run_id,
        principal=plan.principal.name,
        response_format=_response_format_of(execute),
    )
    out.create_time.FromDatetime(schedule.create_time)
    out.update_time.FromDatetime(schedule.update_time)
    if timing.start_time is not None:
        out.start_time.FromDatetime(timing.start_time)
    if schedule.next_time is not None:
        out.next_time.FromDatetime(schedule.next_time)
    if schedule.last_time is not None:
        out.last_time.FromDatetime(schedule.last_time)
    return out


def tick_to_pb(tick: Tick) -> pb.ScheduleTick:
    """Converts a tick."""
    out = pb.ScheduleTick(
        outcome=_OUTCOMES.to_proto[tick.outcome],
        run_id=tick.run_id,
        reason=tick.reason,
    )
    out.tick_time.FromDatetime(tick.tick_time)
    out.create_time.FromDatetime(tick.create_time)
    return out


def _plan(run: NewRun, on_overlap: pb.OnOverlap.ValueType) -> RunPlan:
    if on_overlap not in _ON_OVERLAP.from_proto:
        raise invalid_field("on_overlap", "is not a known policy")
    return RunPlan(
        run.principal,
        run.agent_id,
        run.conversation_id,
        run.payload,
        run.payload_hash,
        run.max_steps,
        run.on_approval,
        _ON_OVERLAP.from_proto[on_overlap],
    )


def _response_format_of(
    message: (
        pb.CreateScheduleRequest
        | pb.UpdateScheduleRequest
        | pb.Schedule
        | turn_pb.ExecuteRunRequest
    ),
) -> ResponseFormat | None:
    """Returns the response format of a message; None if it has none."""
    return message.response_format if message.HasField("response_format") else None


def _name(name: str) -> str:
    if not 0 < len(name) <= _MAX_NAME or not name.isprintable() or name != name.strip():
        raise invalid_field(
            "name", f"must be 1 to {_MAX_NAME} printable characters, without spaces at the ends"
        )
    return name


def _changed_timing(request: pb.UpdateScheduleRequest, timing: Timing) -> Timing:
    if request.HasField("start_time"):
        if request.cron:
            raise refusal(TimingError("cron", "and start_time must not both be set"))
        return Timing(start_time=_time(request.start_time))
    if request.HasField("cron"):
        zone = request.time_zone if request.HasField("time_zone") else timing.time_zone
        return Timing(request.cron, zone or "UTC")
    if request.HasField("time_zone"):
        if not timing.cron:
            raise refusal(TimingError("time_zone", "has no effect without cron"))
        return replace(timing, time_zone=request.time_zone or "UTC")
    return timing


def _time(stamp: Timestamp) -> datetime:
    """Converts a timestamp.

    Raises:
        InvalidArgumentError: It is out of range.
    """
    try:
        return stamp.ToDatetime(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise refusal(TimingError("start_time", "must be a valid time")) from None
