"""Schedules: list, create, pause, resume, delete, and their past ticks."""

from __future__ import annotations

from datetime import UTC, datetime

from starlette.responses import Response

from strata.api.common.v1 import message_pb2
from strata.api.gateway.v1 import run_service_pb2 as run_pb
from strata.api.gateway.v1 import schedule_service_pb2 as pb
from strata.gateway.console.form_values import whole_number
from strata.gateway.console.views.agent_names import agent_id_of, names_of, suggested_names
from strata.gateway.console.visits import ViewRoute, Visit
from strata.protocol.errors import FieldViolation, InvalidArgumentError
from strata.shared.ids import new_id

_PAGE = 50
_NOT_CREATED = "The schedule cannot be created."


async def list_schedules(visit: Visit) -> Response:
    """Lists schedules, with a form for a new one."""
    listing = await visit.services.schedules.ListSchedules(
        pb.ListSchedulesRequest(page_size=_PAGE, page_token=visit.query("page"))
    )
    return visit.page(
        "schedules/list.html",
        schedules=listing.schedules,
        next_page=listing.next_page_token,
        names=await names_of(visit, (schedule.agent_id for schedule in listing.schedules)),
        suggestions=await suggested_names(visit) if visit.may("read") else [],
        request_id=new_id("console"),
    )


async def create_schedule(visit: Visit) -> Response:
    """Creates a schedule from the form."""
    form = visit.form
    request = pb.CreateScheduleRequest(
        request_id=form.text("request_id"),
        name=form.text("name").strip(),
        agent_id=await agent_id_of(visit, form.text("agent").strip()),
        messages=[
            message_pb2.MessageInput(
                parts=[message_pb2.Part(text=message_pb2.TextPart(text=form.text("message")))]
            )
        ],
        max_steps=whole_number(form.text("max_steps"), "max_steps", _NOT_CREATED),
        on_overlap=(pb.ON_OVERLAP_ENQUEUE if form.checked("enqueue") else pb.ON_OVERLAP_SKIP),
        on_approval=(
            run_pb.ON_APPROVAL_DENY if form.checked("deny_approval") else run_pb.ON_APPROVAL_REJECT
        ),
        cron=form.text("cron").strip(),
        time_zone=form.text("time_zone").strip(),
    )
    if start := form.text("start_time").strip():
        request.start_time.FromDatetime(_utc(start))
    created = await visit.services.schedules.CreateSchedule(request)
    return visit.go_to(f"/schedules/{created.schedule.id}")


def _utc(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        problem = f"{text!r} is not a time such as 2026-07-30T14:00"
        raise InvalidArgumentError(
            _NOT_CREATED, violations=[FieldViolation("start_time", problem)]
        ) from error
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


async def show_schedule(visit: Visit) -> Response:
    """Shows a schedule with its past ticks."""
    schedule_id = visit.argument("schedule_id")
    schedule = (
        await visit.services.schedules.GetSchedule(pb.GetScheduleRequest(schedule_id=schedule_id))
    ).schedule
    ticks = await visit.services.schedules.ListScheduleTicks(
        pb.ListScheduleTicksRequest(
            schedule_id=schedule_id, page_size=_PAGE, page_token=visit.query("page")
        )
    )
    return visit.page(
        "schedules/schedule.html",
        schedule=schedule,
        ticks=ticks.ticks,
        next_page=ticks.next_page_token,
        names=await names_of(visit, [schedule.agent_id]),
    )


async def pause_schedule(visit: Visit) -> Response:
    """Starts no more runs of a schedule until it is resumed."""
    schedule_id = visit.argument("schedule_id")
    request = pb.PauseScheduleRequest(schedule_id=schedule_id)
    await visit.services.schedules.PauseSchedule(request)
    return visit.go_to(f"/schedules/{schedule_id}")


async def resume_schedule(visit: Visit) -> Response:
    """Goes on with a paused schedule."""
    schedule_id = visit.argument("schedule_id")
    request = pb.ResumeScheduleRequest(schedule_id=schedule_id)
    await visit.services.schedules.ResumeSchedule(request)
    return visit.go_to(f"/schedules/{schedule_id}")


async def delete_schedule(visit: Visit) -> Response:
    """Deletes a schedule; its runs stay."""
    request = pb.DeleteScheduleRequest(schedule_id=visit.argument("schedule_id"))
    await visit.services.schedules.DeleteSchedule(request)
    return visit.go_to("/schedules")


VIEWS = (
    ViewRoute("/schedules", list_schedules),
    ViewRoute("/schedules", create_schedule, "POST"),
    ViewRoute("/schedules/{schedule_id}", show_schedule),
    ViewRoute("/schedules/{schedule_id}/pause", pause_schedule, "POST"),
    ViewRoute("/schedules/{schedule_id}/resume", resume_schedule, "POST"),
    ViewRoute("/schedules/{schedule_id}/delete", delete_schedule, "POST"),
)
