"""``strata schedules``: runs that start at a set time, once or repeatedly."""

from __future__ import annotations

from typing import Annotated

import typer

from strata.api.gateway.v1 import run_service_pb2 as run_pb
from strata.api.gateway.v1 import schedule_service_pb2 as pb
from strata.cli.agent_names import complete_agent
from strata.cli.client import GatewayClient, first_of, new_request_id
from strata.cli.failures import UsageError
from strata.cli.options import (
    AgentArgument,
    ConversationOption,
    GatewayOptions,
    JsonOption,
    LimitOption,
    online,
)
from strata.cli.output import note, print_fields, print_json, print_listing, print_text, when
from strata.cli.times import parse_end
from strata.client.images import user_message
from strata.protocol.errors import NotFoundError, Reason
from strata.shared.convert.enums import enum_name
from strata.shared.ids import is_id

app = typer.Typer(
    help="Start runs at a set time, once or repeatedly.",
    no_args_is_help=True,
    add_completion=False,
)

ScheduleArgument = Annotated[
    str, typer.Argument(metavar="SCHEDULE", help="Name or id of the schedule.")
]


@app.command("create")
@online
def create_schedule(
    connection: GatewayOptions,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name, unique in the project.")],
    agent: AgentArgument,
    message: Annotated[str, typer.Argument(metavar="MESSAGE", help="The message to the agent.")],
    cron: Annotated[
        str,
        typer.Option("--cron", help='Minute, hour, day, month, day of week: "30 9 * * MON-FRI".'),
    ] = "",
    time_zone: Annotated[
        str, typer.Option("--time-zone", help="Zone of --cron, such as Europe/Berlin; else UTC.")
    ] = "",
    at: Annotated[
        str,
        typer.Option(
            "--at", metavar="TIME", help='The one time to run at: "2h" from now, or a time.'
        ),
    ] = "",
    conversation: ConversationOption = "",
    max_steps: Annotated[
        int, typer.Option("--max-steps", min=0, help="Maximum number of model calls of a run.")
    ] = 0,
    enqueue: Annotated[
        bool,
        typer.Option(
            "--enqueue",
            help="Queue the run if the previous tick's run has not ended. Default: skip the tick.",
        ),
    ] = False,
    deny_approval: Annotated[
        bool,
        typer.Option(
            "--deny-approval",
            help="Deny an open approval request and run. Default: skip the tick.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Create a schedule: --cron for repeated runs, --at for one."""
    if bool(cron) == bool(at):
        raise UsageError("Give --cron for repeated runs, or --at for one.")

    async def create(client: GatewayClient) -> pb.Schedule:
        request = pb.CreateScheduleRequest(
            request_id=new_request_id(),
            name=name,
            agent_id=await client.agent_id(agent),
            conversation_id=conversation,
            messages=[user_message(message)],
            max_steps=max_steps,
            cron=cron,
            time_zone=time_zone,
            on_overlap=pb.ON_OVERLAP_ENQUEUE if enqueue else pb.ON_OVERLAP_SKIP,
            on_approval=run_pb.ON_APPROVAL_DENY if deny_approval else run_pb.ON_APPROVAL_REJECT,
        )
        if at:
            request.start_time.FromDatetime(parse_end(at))
        return (await client.schedules.CreateSchedule(request)).schedule

    _print_schedule(connection.run(create), as_json=as_json)


@app.command("list")
@online
def list_schedules(
    connection: GatewayOptions,
    agent: Annotated[
        str, typer.Option("--agent", autocompletion=complete_agent, help="Only of this agent.")
    ] = "",
    limit: LimitOption = 20,
    as_json: JsonOption = False,
) -> None:
    """List schedules, newest first."""

    async def read(client: GatewayClient) -> pb.ListSchedulesResponse:
        agent_id = await client.agent_id(agent) if agent else ""
        request = pb.ListSchedulesRequest(agent_id=agent_id)
        return await first_of(client.schedules.ListSchedules, request, "schedules", limit)

    listing = connection.run(read)
    print_listing(
        listing,
        ["name", "state", "when", "next", "last run", "agent", "id"],
        [
            (
                schedule.name,
                _state(schedule),
                _times(schedule),
                when(schedule.next_time),
                schedule.last_run_id,
                schedule.agent_id,
                schedule.id,
            )
            for schedule in listing.schedules
        ],
        empty="No schedules.",
        as_json=as_json,
    )


@app.command("show")
@online
def show_schedule(
    connection: GatewayOptions, schedule: ScheduleArgument, as_json: JsonOption = False
) -> None:
    """Show a schedule with its messages."""

    async def read(client: GatewayClient) -> pb.Schedule:
        return await _schedule_named(client, schedule)

    _print_schedule(connection.run(read), as_json=as_json)


@app.command("update")
@online
def update_schedule(
    connection: GatewayOptions,
    schedule: ScheduleArgument,
    name: Annotated[str | None, typer.Option("--name", help="A new name.")] = None,
    message: Annotated[str | None, typer.Option("--message", help="A new message.")] = None,
    cron: Annotated[str | None, typer.Option("--cron", help="A new cron expression.")] = None,
    time_zone: Annotated[
        str | None, typer.Option("--time-zone", help="A new zone of the cron expression.")
    ] = None,
    at: Annotated[
        str, typer.Option("--at", metavar="TIME", help="Run once, at this time, instead.")
    ] = "",
    max_steps: Annotated[
        int | None,
        typer.Option("--max-steps", min=0, help="Maximum number of model calls of a run."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Change a schedule. Settings without an option do not change."""

    async def update(client: GatewayClient) -> pb.Schedule:
        request = pb.UpdateScheduleRequest(
            schedule_id=(await _schedule_named(client, schedule)).id,
            name=name,
            messages=[] if message is None else [user_message(message)],
            max_steps=max_steps,
            cron=cron,
            time_zone=time_zone,
        )
        if at:
            request.start_time.FromDatetime(parse_end(at))
        return (await client.schedules.UpdateSchedule(request)).schedule

    _print_schedule(connection.run(update), as_json=as_json)


@app.command("pause")
@online
def pause_schedule(
    connection: GatewayOptions, schedule: ScheduleArgument, as_json: JsonOption = False
) -> None:
    """Start no more runs until the schedule is resumed."""

    async def pause(client: GatewayClient) -> pb.Schedule:
        request = pb.PauseScheduleRequest(schedule_id=(await _schedule_named(client, schedule)).id)
        return (await client.schedules.PauseSchedule(request)).schedule

    _print_schedule(connection.run(pause), as_json=as_json)


@app.command("resume")
@online
def resume_schedule(
    connection: GatewayOptions, schedule: ScheduleArgument, as_json: JsonOption = False
) -> None:
    """Resume a paused or disabled schedule."""

    async def resume(client: GatewayClient) -> pb.Schedule:
        request = pb.ResumeScheduleRequest(schedule_id=(await _schedule_named(client, schedule)).id)
        return (await client.schedules.ResumeSchedule(request)).schedule

    _print_schedule(connection.run(resume), as_json=as_json)


@app.command("delete")
@online
def delete_schedule(connection: GatewayOptions, schedule: ScheduleArgument) -> None:
    """Delete a schedule and the record of its ticks; its runs are kept."""

    async def delete(client: GatewayClient) -> pb.Schedule:
        target = await _schedule_named(client, schedule)
        await client.schedules.DeleteSchedule(pb.DeleteScheduleRequest(schedule_id=target.id))
        return target

    note(f'Deleted the schedule "{connection.run(delete).name}".')


@app.command("ticks")
@online
def list_ticks(
    connection: GatewayOptions,
    schedule: ScheduleArgument,
    limit: LimitOption = 20,
    as_json: JsonOption = False,
) -> None:
    """List past ticks with their runs, newest first."""

    async def read(client: GatewayClient) -> pb.ListScheduleTicksResponse:
        request = pb.ListScheduleTicksRequest(
            schedule_id=(await _schedule_named(client, schedule)).id
        )
        return await first_of(client.schedules.ListScheduleTicks, request, "ticks", limit)

    listing = connection.run(read)
    print_listing(
        listing,
        ["tick", "outcome", "run", "reason"],
        [
            (
                when(tick.tick_time),
                enum_name(pb.TickOutcome, tick.outcome),
                tick.run_id,
                tick.reason,
            )
            for tick in listing.ticks
        ],
        empty="The schedule has not been due yet.",
        as_json=as_json,
    )


async def _schedule_named(client: GatewayClient, name_or_id: str) -> pb.Schedule:
    if is_id(name_or_id, "schedule"):
        by_id = pb.GetScheduleRequest(schedule_id=name_or_id)
        return (await client.schedules.GetSchedule(by_id)).schedule
    request = pb.ListSchedulesRequest(name=name_or_id, page_size=1)
    listing = await client.schedules.ListSchedules(request)
    if not name_or_id or not listing.schedules:
        raise NotFoundError(
            f'There is no schedule "{name_or_id}". List them with: strata schedules list',
            reason=Reason.SCHEDULE_NOT_FOUND,
        )
    return listing.schedules[0]


def _print_schedule(schedule: pb.Schedule, *, as_json: bool) -> None:
    if as_json:
        print_json(schedule)
        return
    print_fields(
        [
            ("id", schedule.id),
            ("name", schedule.name),
            ("state", _state(schedule)),
            ("when", _times(schedule)),
            ("next", when(schedule.next_time)),
            ("last", when(schedule.last_time)),
            ("last run", schedule.last_run_id),
            ("agent", schedule.agent_id),
            ("conversation", schedule.conversation_id),
            ("overlap", enum_name(pb.OnOverlap, schedule.on_overlap)),
            ("approval", enum_name(run_pb.OnApproval, schedule.on_approval)),
            ("acts as", schedule.principal),
            ("created", when(schedule.create_time)),
        ]
    )
    for message in schedule.messages:
        print_text("\n" + "\n".join(part.text.text for part in message.parts))


def _state(schedule: pb.Schedule) -> str:
    state = enum_name(pb.ScheduleState, schedule.state)
    return f"{state} ({schedule.state_reason})" if schedule.state_reason else state


def _times(schedule: pb.Schedule) -> str:
    if schedule.cron:
        return f"{schedule.cron} {schedule.time_zone}"
    return when(schedule.start_time)
