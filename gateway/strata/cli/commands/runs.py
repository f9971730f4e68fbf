"""``strata runs``."""

from __future__ import annotations

from typing import Annotated

import typer

from strata.api.common.v1 import run_event_pb2
from strata.api.gateway.v1 import run_service_pb2 as pb
from strata.cli.client import Client, first_of
from strata.cli.options import Connection, JsonOption, LimitOption, online
from strata.cli.output import enum_name, labels_line, print_fields, print_json, print_listing, when

app = typer.Typer(help="List, show and cancel runs.", no_args_is_help=True, add_completion=False)

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="Id of the run.")]


@app.command("list")
@online
def list_runs(
    connection: Connection,
    agent: Annotated[str, typer.Option("--agent", help="Only runs of this agent.")] = "",
    limit: LimitOption = 20,
    as_json: JsonOption = False,
) -> None:
    """List runs, newest first."""

    async def read(client: Client) -> pb.ListRunsResponse:
        agent_id = await client.agent_id(agent) if agent else ""
        request = pb.ListRunsRequest(agent_id=agent_id)
        return await first_of(client.runs.ListRuns, request, "runs", limit)

    found = connection.run(read)
    print_listing(
        found,
        ["id", "state", "ended", "steps", "tokens", "created", "agent"],
        [
            (
                run.id,
                _state(run),
                _stop(run),
                str(run.step_count),
                f"{run.usage.total_tokens:,}",
                when(run.create_time),
                run.agent_id,
            )
            for run in found.runs
        ],
        empty="No runs.",
        as_json=as_json,
    )


@app.command("show")
@online
def show_run(connection: Connection, run: RunArgument, as_json: JsonOption = False) -> None:
    """Show a run."""

    async def read(client: Client) -> pb.Run:
        return (await client.runs.GetRun(pb.GetRunRequest(run_id=run))).run

    _print_run(connection.run(read), as_json=as_json)


@app.command("cancel")
@online
def cancel_run(connection: Connection, run: RunArgument, as_json: JsonOption = False) -> None:
    """Cancel a run; what it has stored stays."""

    async def cancel(client: Client) -> pb.Run:
        return (await client.runs.CancelRun(pb.CancelRunRequest(run_id=run))).run

    _print_run(connection.run(cancel), as_json=as_json)


def _print_run(run: pb.Run, *, as_json: bool) -> None:

    if as_json:
        print_json(run)
        return
    usage = run.usage
    print_fields(
        [
            ("id", run.id),
            ("state", _state(run)),
            ("ended", _stop(run)),
            ("error", f"{run.error.message} [{run.error.reason}]" if run.error.message else ""),
            ("agent", run.agent_id),
            ("conversation", run.conversation_id),
            ("asked by run", run.parent_run_id),
            ("steps", str(run.step_count)),
            ("untrusted", labels_line(run.taint)),
            ("tokens", f"{usage.prompt_tokens:,} in, {usage.completion_tokens:,} out"),
            ("attempt", str(run.attempt)),
            ("created", when(run.create_time)),
            ("started", when(run.start_time)),
            ("finished", when(run.finish_time)),
        ]
    )


def _state(run: pb.Run) -> str:

    return enum_name(pb.RunState, run.state, "RUN_STATE_")


def _stop(run: pb.Run) -> str:

    return enum_name(run_event_pb2.StopReason, run.stop_reason, "STOP_REASON_")
