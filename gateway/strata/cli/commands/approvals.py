"""``strata approvals``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from strata.api.common.v1 import message_pb2, tool_pb2
from strata.api.gateway.v1 import run_service_pb2 as pb
from strata.cli.chat.approving import whole_arguments
from strata.cli.chat.screens import screen_for
from strata.cli.chat.session import ChatOptions, ChatSession
from strata.cli.chat.turn_view import compact_arguments, taint_line
from strata.cli.client import Client, first_of
from strata.cli.failures import EXIT_FAILURE, UsageError
from strata.cli.options import Connection, JsonOption, LimitOption, online
from strata.cli.output import (
    clipped,
    console,
    print_fields,
    print_json,
    print_listing,
    print_text,
    when,
)
from strata.client.client_tools import calls_by_client

app = typer.Typer(
    help="List, show and answer what agents wait for.", no_args_is_help=True, add_completion=False
)

_CALLS_CHARS = 120

ApprovalArgument = Annotated[
    str, typer.Argument(metavar="APPROVAL", help="Id of the request for approval.")
]
EventsOption = Annotated[
    bool, typer.Option("--json", help="Print each event of the run as one line of JSON.")
]


@app.command("list")
@online
def list_approvals(
    connection: Connection,
    agent: Annotated[str, typer.Option("--agent", help="Only of this agent.")] = "",
    everything: Annotated[
        bool, typer.Option("--all", help="Also those that were decided about.")
    ] = False,
    limit: LimitOption = 20,
    as_json: JsonOption = False,
) -> None:
    """List requests of all agents, oldest first."""

    async def read(client: Client) -> pb.ListApprovalsResponse:
        agent_id = await client.agent_id(agent) if agent else ""
        request = pb.ListApprovalsRequest(agent_id=agent_id, include_decided=everything)
        return await first_of(client.runs.ListApprovals, request, "approvals", limit)

    found = connection.run(read)
    print_listing(
        found,
        ["id", "state", "calls", "deadline", "otherwise", "agent"],
        [
            (
                approval.request.approval_id,
                _state(approval),
                clipped(_calls(approval.request), _CALLS_CHARS),
                when(approval.request.expire_time),
                _otherwise(approval.request),
                approval.agent_id,
            )
            for approval in found.approvals
        ],
        empty="Nothing waits for approval.",
        as_json=as_json,
    )


@app.command("show")
@online
def show_approval(
    connection: Connection, approval: ApprovalArgument, as_json: JsonOption = False
) -> None:
    """Show a request with all arguments of its calls."""

    async def read(client: Client) -> pb.Approval:
        return await _found(client, approval)

    found = connection.run(read)
    if as_json:
        print_json(found)
        return
    asked = found.request
    print_fields(
        [
            ("id", asked.approval_id),
            ("state", _state(found)),
            ("agent", found.agent_id),
            ("conversation", found.conversation_id),
            ("run", found.run_id),
            ("answered by", found.answer_run_id),
            ("asked", when(found.create_time)),
            ("deadline", when(asked.expire_time)),
            ("otherwise", _otherwise(asked)),
            ("untrusted", taint_line(asked)),
            ("waits too", ", ".join(call.name for call in asked.waiting_calls)),
        ]
    )
    by_client = calls_by_client(asked)
    for call in asked.tool_calls:
        runs = "  (run by the client)" if call.tool_call_id in by_client else ""
        print_text(f"\n{call.name}  {call.tool_call_id}{runs}\n{whole_arguments(call.arguments)}")


@app.command("approve")
@online
def approve(
    connection: Connection,
    approval: ApprovalArgument,
    call: Annotated[
        list[str] | None,
        typer.Option("--call", metavar="CALL", help="Only this call; the others are denied."),
    ] = None,
    returned: Annotated[
        list[str] | None,
        typer.Option(
            "--return",
            metavar="CALL=TEXT",
            help="What your own program returned for a call, which is not made here then;"
            " repeatable. Calls of tools that the client runs need it.",
        ),
    ] = None,
    reason: Annotated[str, typer.Option("--reason", help="Why the others are denied.")] = "",
    as_json: EventsOption = False,
) -> None:
    """Approve what is asked for, and show the run that goes on."""
    chosen, returns = frozenset(call or ()), dict(_return(each) for each in returned or ())

    def decide(asked: message_pb2.ToolCallPart) -> message_pb2.ApprovalDecision:
        if asked.tool_call_id in returns:
            told = returns[asked.tool_call_id]
            return message_pb2.ApprovalDecision(client_return=told)
        if not chosen or asked.tool_call_id in chosen:
            return message_pb2.ApprovalDecision(approve=True)
        return message_pb2.ApprovalDecision(reason=reason)

    _answer(connection, approval, decide, chosen | returns.keys(), as_json=as_json)


@app.command("deny")
@online
def deny(
    connection: Connection,
    approval: ApprovalArgument,
    reason: Annotated[str, typer.Option("--reason", help="Why; the agent is told.")] = "",
    as_json: EventsOption = False,
) -> None:
    """Deny all that is asked for, and show the run that goes on."""

    def decide(_: message_pb2.ToolCallPart) -> message_pb2.ApprovalDecision:
        return message_pb2.ApprovalDecision(reason=reason)

    _answer(connection, approval, decide, frozenset(), as_json=as_json)


def _answer(
    connection: Connection,
    approval: str,
    decide: Callable[[message_pb2.ToolCallPart], message_pb2.ApprovalDecision],
    chosen: frozenset[str],
    *,
    as_json: bool,
) -> None:
    async def respond(client: Client) -> bool:
        found = await _found(client, approval)
        asked = found.request
        unknown = chosen - {call.tool_call_id for call in asked.tool_calls}
        if unknown:
            raise UsageError(f"{approval} does not ask about {', '.join(sorted(unknown))}.")
        hashes = {bound.tool_call_id: bound.arguments_hash for bound in asked.bindings}
        decisions = []
        for call in asked.tool_calls:
            decision = decide(call)
            decision.tool_call_id = call.tool_call_id
            decision.arguments_hash = hashes.get(call.tool_call_id, "")
            decisions.append(decision)
        session = ChatSession(client, screen_for(console()), ChatOptions(found.agent_id))
        if as_json:
            return await session.answer_json(approval, decisions)
        return await session.answer(approval, decisions)

    if not connection.run(respond):
        raise typer.Exit(EXIT_FAILURE)


async def _found(client: Client, approval: str) -> pb.Approval:
    request = pb.GetApprovalRequest(approval_id=approval)
    return (await client.runs.GetApproval(request)).approval


def _state(approval: pb.Approval) -> str:
    if not approval.decided:
        return "open"
    return "answered" if approval.answer_run_id else "expired"


def _otherwise(asked: message_pb2.ApprovalRequestPart) -> str:
    approves = asked.default_decision == tool_pb2.DEFAULT_DECISION_APPROVE
    return "approved" if approves else "denied"


def _calls(asked: message_pb2.ApprovalRequestPart) -> str:
    by_client = calls_by_client(asked)
    return "; ".join(
        f"{call.name}({compact_arguments(call.arguments)})"
        + (" by the client" if call.tool_call_id in by_client else "")
        for call in asked.tool_calls
    )


def _return(option: str) -> tuple[str, str]:
    call, found, text = option.partition("=")
    if not found:
        raise UsageError("--return is CALL=TEXT: the id of the call, and what it returned.")
    return call, text
