"""Schedules: list, create, change, pause, resume, delete, and their past ticks."""

from __future__ import annotations

from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp
from starlette.responses import Response

from strata.api.common.v1 import message_pb2
from strata.api.gateway.v1 import run_service_pb2 as run_pb
from strata.api.gateway.v1 import schedule_service_pb2 as pb
from strata.gateway.console.form_pages import FormPage, check_unchanged, refusal
from strata.gateway.console.form_values import whole_number
from strata.gateway.console.forms import FormFields
from strata.gateway.console.views.agent_names import agent_id_of, names_of, suggested_names
from strata.gateway.console.visits import ViewRoute, Visit
from strata.protocol.errors import StrataError
from strata.shared.ids import new_id

_PAGE = 50
_NOT_SAVED = "The schedule was not saved."
_FIELDS = {
    name: name for name in ("name", "messages", "max_steps", "cron", "time_zone", "start_time")
}
_NEW = FormPage("schedules/list.html", {**_FIELDS, "agent_id": "agent", "messages": "message"})
_CHANGE = FormPage("schedules/edit.html", _FIELDS)


async def list_schedules(visit: Visit) -> Response:
    """Lists schedules, with a form for a new one."""
    form = FormFields({"request_id": [new_id("console")]})
    return _NEW.show(visit, form, **await _listing(visit))


async def create_schedule(visit: Visit) -> Response:
    """Creates a schedule from the form."""
    form = visit.form
    try:
        request = pb.CreateScheduleRequest(
            request_id=form.text("request_id"),
            name=form.text("name").strip(),
            agent_id=await agent_id_of(visit, form.text("agent").strip()),
            messages=[
                message_pb2.MessageInput(
                    parts=[message_pb2.Part(text=message_pb2.TextPart(text=form.text("message")))]
                )
            ],
            max_steps=whole_number(form.text("max_steps"), "max_steps", _NOT_SAVED),
            on_overlap=_on_overlap(form),
            on_approval=_on_approval(form),
            cron=form.text("cron").strip(),
            time_zone=form.text("time_zone").strip(),
            start_time=_start_time(form),
        )
        created = await visit.services.schedules.CreateSchedule(request)
    except StrataError as error:
        return _NEW.show_again(visit, error, **await _listing(visit))
    return visit.go_to(f"/schedules/{created.schedule.id}")


async def _listing(visit: Visit) -> dict[str, object]:
    """Returns the values of the page with the list of schedules, without its form."""
    listing = await visit.services.schedules.ListSchedules(
        pb.ListSchedulesRequest(page_size=_PAGE, page_token=visit.query("page"))
    )
    return {
        "schedules": listing.schedules,
        "next_page": listing.next_page_token,
        "names": await names_of(visit, (schedule.agent_id for schedule in listing.schedules)),
        "suggestions": await suggested_names(visit) if visit.may("read") else [],
    }


def _on_overlap(form: FormFields) -> pb.OnOverlap.ValueType:
    return pb.ON_OVERLAP_ENQUEUE if form.checked("enqueue") else pb.ON_OVERLAP_SKIP


def _on_approval(form: FormFields) -> run_pb.OnApproval.ValueType:
    return run_pb.ON_APPROVAL_DENY if form.checked("deny_approval") else run_pb.ON_APPROVAL_REJECT


def _start_time(form: FormFields) -> Timestamp | None:
    """Returns the time in a form, in UTC unless it names another zone; None if it is empty.

    Raises:
        InvalidArgumentError: The text is not a time.
    """
    text = form.text("start_time").strip()
    if not text:
        return None
    stamp = Timestamp()
    try:
        moment = datetime.fromisoformat(text)
        stamp.FromDatetime(moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC))
    except (ValueError, OverflowError) as error:
        problem = f"{text!r} is not a time such as 2026-07-30T14:00"
        raise refusal(_NOT_SAVED, "start_time", problem) from error
    return stamp


async def show_schedule(visit: Visit) -> Response:
    """Shows a schedule with its past ticks."""
    schedule = await _schedule_of(visit)
    ticks = await visit.services.schedules.ListScheduleTicks(
        pb.ListScheduleTicksRequest(
            schedule_id=schedule.id, page_size=_PAGE, page_token=visit.query("page")
        )
    )
    return visit.page(
        "schedules/schedule.html",
        schedule=schedule,
        ticks=ticks.ticks,
        next_page=ticks.next_page_token,
        names=await names_of(visit, [schedule.agent_id]),
    )


async def edit_schedule(visit: Visit) -> Response:
    """Shows the form that changes a schedule."""
    schedule = await _schedule_of(visit)
    form = FormFields(
        {
            "state": [_state_of(schedule)],
            "name": [schedule.name],
            "cron": [schedule.cron],
            "time_zone": [schedule.time_zone],
            "start_time": [_shown_time(schedule.start_time)],
            "max_steps": [str(schedule.max_steps or "")],
            "enqueue": ["on" if schedule.on_overlap == pb.ON_OVERLAP_ENQUEUE else ""],
            "deny_approval": ["on" if schedule.on_approval == run_pb.ON_APPROVAL_DENY else ""],
            **{name: [part.text.text] for name, part in _texts_of(schedule).items()},
        }
    )
    return _CHANGE.show(visit, form, schedule=schedule, texts=_texts_of(schedule))


async def update_schedule(visit: Visit) -> Response:
    """Changes a schedule, unless it was changed elsewhere since the form was opened."""
    schedule = await _schedule_of(visit)
    try:
        check_unchanged(visit.form.text("state"), _state_of(schedule), "schedule")
        request = _changes(schedule, visit.form)
        await visit.services.schedules.UpdateSchedule(request)
    except StrataError as error:
        return _CHANGE.show_again(visit, error, schedule=schedule, texts=_texts_of(schedule))
    return visit.go_to(f"/schedules/{schedule.id}")


def _changes(schedule: pb.Schedule, form: FormFields) -> pb.UpdateScheduleRequest:
    """Returns the request for the changes in a form; unchanged fields are not sent.

    Times that are sent are counted from now on; unchanged times must not be.

    Raises:
        InvalidArgumentError: A field has a wrong value, or the form has both kinds of time.
    """
    cron, start_time = form.text("cron").strip(), _start_time(form)
    if bool(cron) == (start_time is not None):
        raise refusal(_NOT_SAVED, "cron", "fill in either this, or one time to run at")
    request = pb.UpdateScheduleRequest(
        schedule_id=schedule.id,
        name=form.text("name").strip(),
        max_steps=whole_number(form.text("max_steps"), "max_steps", _NOT_SAVED),
        on_overlap=_on_overlap(form),
        on_approval=_on_approval(form),
    )
    if cron and cron != schedule.cron:
        request.cron = cron
    if cron and form.text("time_zone").strip() != schedule.time_zone:
        request.time_zone = form.text("time_zone").strip()
    if start_time is not None and start_time.seconds != schedule.start_time.seconds:
        request.start_time.CopyFrom(start_time)
    written = pb.Schedule(messages=schedule.messages)
    for name, part in _texts_of(written).items():
        part.text.text = form.text(name)
    if written.messages != schedule.messages:
        request.messages.extend(written.messages)
    return request


def _texts_of(schedule: pb.Schedule) -> dict[str, message_pb2.Part]:
    """Returns the texts in the messages of a schedule, by the names of their fields."""
    return {
        f"text-{number}-{index}": part
        for number, message in enumerate(schedule.messages)
        for index, part in enumerate(message.parts)
        if part.HasField("text")
    }


def _state_of(schedule: pb.Schedule) -> str:
    return schedule.update_time.ToJsonString()


def _shown_time(stamp: Timestamp) -> str:
    return f"{stamp.ToDatetime():%Y-%m-%dT%H:%M:%S}" if stamp.seconds else ""


async def _schedule_of(visit: Visit) -> pb.Schedule:
    request = pb.GetScheduleRequest(schedule_id=visit.argument("schedule_id"))
    schedule: pb.Schedule = (await visit.services.schedules.GetSchedule(request)).schedule
    return schedule


async def pause_schedule(visit: Visit) -> Response:
    """Starts no more runs of a schedule until it is resumed."""
    schedule_id = visit.argument("schedule_id")
    request = pb.PauseScheduleRequest(schedule_id=schedule_id)
    await visit.services.schedules.PauseSchedule(request)
    return visit.go_to(f"/schedules/{schedule_id}")


async def resume_schedule(visit: Visit) -> Response:
    """Resumes a paused schedule."""
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
    ViewRoute("/schedules/{schedule_id}/edit", edit_schedule),
    ViewRoute("/schedules/{schedule_id}/edit", update_schedule, "POST"),
    ViewRoute("/schedules/{schedule_id}/pause", pause_schedule, "POST"),
    ViewRoute("/schedules/{schedule_id}/resume", resume_schedule, "POST"),
    ViewRoute("/schedules/{schedule_id}/delete", delete_schedule, "POST"),
)
