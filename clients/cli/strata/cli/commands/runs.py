"""``strata runs``: lists, follows, explains and cancels runs."""

from __future__ import annotations

from typing import Annotated

import typer

from strata.api.common.v1 import message_pb2, run_event_pb2, usage_pb2
from strata.api.gateway.v1 import run_service_pb2 as pb
from strata.cli.agent_names import complete_agent
from strata.cli.client import GatewayClient, first_of, new_request_id
from strata.cli.commands.runs_replay import record_run, replay_file
from strata.cli.options import (
    AgentArgument,
    ConversationOption,
    GatewayOptions,
    JsonOption,
    LimitOption,
    online,
)
from strata.cli.output import (
    labels_line,
    note,
    print_fields,
    print_json,
    print_listing,
    print_table,
    when,
)
from strata.cli.response_formats import ResponseFormatOption, response_format
from strata.cli.times import parse_end
from strata.client.images import user_message
from strata.shared.convert.enums import enum_name

app = typer.Typer(
    help="Start, list, show, explain, record, replay and cancel runs.",
    no_args_is_help=True,
    add_completion=False,
)

app.command("record")(record_run)
app.command("replay")(replay_file)

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="Id of the run.")]


@app.command("list")
@online
def list_runs(
    connection: GatewayOptions,
    agent: Annotated[
        str, typer.Option("--agent", autocompletion=complete_agent, help="Only runs of this agent.")
    ] = "",
    limit: LimitOption = 20,
    as_json: JsonOption = False,
) -> None:
    """List runs, newest first."""

    async def read(client: GatewayClient) -> pb.ListRunsResponse:
        agent_id = await client.agent_id(agent) if agent else ""
        request = pb.ListRunsRequest(agent_id=agent_id)
        return await first_of(client.runs.ListRuns, request, "runs", limit)

    listing = connection.run(read)
    print_listing(
        listing,
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
            for run in listing.runs
        ],
        empty="No runs.",
        as_json=as_json,
    )


@app.command("start")
@online
def start_run(
    connection: GatewayOptions,
    agent: AgentArgument,
    message: Annotated[str, typer.Argument(metavar="MESSAGE", help="The message to the agent.")],
    at: Annotated[
        str,
        typer.Option(
            "--at",
            metavar="TIME",
            help='Earliest start: "2h" from now, or a time. Default: immediately.',
        ),
    ] = "",
    conversation: ConversationOption = "",
    reply_format: ResponseFormatOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start a run without waiting for it, now or later."""
    chosen_format = response_format(reply_format)

    async def start(client: GatewayClient) -> pb.Run:
        request = pb.StartRunRequest(
            request_id=new_request_id(),
            agent_id=await client.agent_id(agent),
            conversation_id=conversation,
            messages=[user_message(message)],
            response_format=chosen_format,
        )
        if at:
            request.start_time.FromDatetime(parse_end(at))
        return (await client.runs.StartRun(request)).run

    _print_run(connection.run(start), as_json=as_json)


@app.command("show")
@online
def show_run(connection: GatewayOptions, run: RunArgument, as_json: JsonOption = False) -> None:
    """Show a run."""

    async def read(client: GatewayClient) -> pb.Run:
        return (await client.runs.GetRun(pb.GetRunRequest(run_id=run))).run

    _print_run(connection.run(read), as_json=as_json)


@app.command("cancel")
@online
def cancel_run(connection: GatewayOptions, run: RunArgument, as_json: JsonOption = False) -> None:
    """Cancel a run; its stored messages are kept."""

    async def cancel(client: GatewayClient) -> pb.Run:
        return (await client.runs.CancelRun(pb.CancelRunRequest(run_id=run))).run

    _print_run(connection.run(cancel), as_json=as_json)


@app.command("explain")
@online
def explain_run(connection: GatewayOptions, run: RunArgument, as_json: JsonOption = False) -> None:
    """Show how a run used time, tokens and money."""

    async def read(client: GatewayClient) -> pb.ExplainRunResponse:
        return await client.runs.ExplainRun(pb.ExplainRunRequest(run_id=run))

    explained = connection.run(read)
    if as_json:
        print_json(explained)
        return
    print_table(
        ["step", "what", "time", "share", "tokens", "cost", "notes"],
        [
            (
                str(span.step or ""),
                f"{span.kind} {span.name}".strip(),
                _seconds(span.duration_ms),
                _share(span.share_ms, explained.total_ms),
                _tokens(span.usage),
                _cost(span),
                _notes(span),
            )
            for span in explained.spans
        ],
        empty="Nothing is stored about this run yet.",
    )
    parts = ", ".join(f"{part.kind} {_seconds(part.share_ms)}" for part in explained.parts)
    total = [f"{_seconds(explained.total_ms)} in all: {parts}", _tokens(explained.run.usage)]
    if explained.HasField("cost_micros"):
        total.append(f"cost {_cost(explained)}")
    total.extend(f"{used.model}: {_usage_by_model(used)}" for used in explained.models)
    if explained.truncated:
        total.append("the last spans are omitted")
    note("; ".join(part for part in total if part))


@app.command("steps")
@online
def list_steps(
    connection: GatewayOptions,
    run: RunArgument,
    limit: LimitOption = 50,
    as_json: JsonOption = False,
) -> None:
    """List the steps of a run: the model, the tools, tokens and times of each."""

    async def read(client: GatewayClient) -> pb.ListStepsResponse:
        request = pb.ListStepsRequest(run_id=run)
        return await first_of(client.runs.ListSteps, request, "steps", limit)

    listing = connection.run(read)
    print_listing(
        listing,
        ["step", "time", "parts", "first token", "tokens", "cost", "model", "tools"],
        [
            (
                str(step.step),
                _seconds(step.share_ms),
                ", ".join(f"{part.kind} {_seconds(part.share_ms)}" for part in step.parts),
                _seconds(step.first_token_ms) if step.HasField("first_token_ms") else "",
                _tokens(step.usage),
                _cost(step),
                step.model,
                ", ".join(step.tools),
            )
            for step in listing.steps
        ],
        empty="No steps.",
        as_json=as_json,
    )


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1000:,.3f} s"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else ""


def _tokens(usage: usage_pb2.Usage) -> str:
    if not usage.total_tokens:
        return ""
    about = "about " if usage.estimated else ""
    return f"{about}{usage.prompt_tokens:,} in, {usage.completion_tokens:,} out"


def _usage_by_model(used: pb.ModelUsage) -> str:
    calls = "1 call" if used.calls == 1 else f"{used.calls} calls"
    parts = [calls, _tokens(used.usage)]
    if used.usage.cached_input_tokens:
        hits = _share(used.usage.cached_input_tokens, used.usage.prompt_tokens)
        parts.append(f"{hits} of the input from the prompt cache")
    return ", ".join(part for part in parts if part)


def _cost(priced: pb.RunSpan | pb.RunStep | pb.ExplainRunResponse) -> str:
    return f"{priced.cost_micros / 1_000_000:,.6f}" if priced.HasField("cost_micros") else ""


def _notes(span: pb.RunSpan) -> str:
    notes = [enum_name(message_pb2.ToolStatus, span.status)]
    if span.HasField("first_token_ms"):
        notes.append(f"first token after {_seconds(span.first_token_ms)}")
    if span.attempt > 1:
        notes.append(f"attempt {span.attempt}")
    return "; ".join(text for text in (*notes, span.note) if text)


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
            ("not before", when(run.not_before_time)),
            ("started", when(run.start_time)),
            ("finished", when(run.finish_time)),
        ]
    )


def _state(run: pb.Run) -> str:

    return enum_name(pb.RunState, run.state)


def _stop(run: pb.Run) -> str:

    return enum_name(run_event_pb2.StopReason, run.stop_reason)
