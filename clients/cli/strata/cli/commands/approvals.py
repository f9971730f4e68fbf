"""``strata approvals``: lists tool calls that wait for a person, and decides about them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from strata.api.common.v1 import message_pb2, tool_pb2
from strata.api.gateway.v1 import run_service_pb2 as pb
from strata.cli.agent_names import complete_agent
from strata.cli.chat.screens import screen_for
from strata.cli.chat.session import ChatOptions, ChatSession
from strata.cli.chat.turn_view import compact_arguments, untrusted_sources_line
from strata.cli.client import GatewayClient, first_of
from strata.cli.failures import EXIT_FAILURE, UsageError
from strata.cli.options import GatewayOptions, JsonOption, LimitOption, online
from strata.cli.output import console, print_fields, print_json, print_listing, print_text, when
from strata.client.client_tools import calls_by_client
from strata.shared.one_line import clipped
from strata.shared.turn_texts import whole_arguments

app = typer.Typer(
    help="List, show and answer requests for approval.", no_args_is_help=True, add_completion=False
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
    connection: GatewayOptions,
    agent: Annotated[
        str, typer.Option("--agent", autocompletion=complete_agent, help="Only of this agent.")
    ] = "",
    everything: Annotated[bool, typer.Option("--all", help="Include decided requests.")] = False,
    limit: LimitOption = 20,
    as_json: JsonOption = False,
) -> None:
    """List requests of all agents, oldest first."""

    async def read(client: GatewayClient) -> pb.ListApprovalsResponse:
        agent_id = await client.agent_id(agent) if agent else ""
        request = pb.ListApprovalsRequest(agent_id=agent_id, include_decided=everything)
        return await first_of(client.runs.ListApprovals, request, "approvals", limit)

    listing = connection.run(read)
    print_listing(
        listing,
        ["id", "state", "calls", "deadline", "otherwise", "agent"],
        [
            (
                approval.request.approval_id,
                _state(approval),
                clipped(_calls(approval.request), _CALLS_CHARS),
                when(approval.request.expire_time),
                _default_decision(approval.request),
                approval.agent_id,
            )
            for approval in listing.approvals
        ],
        empty="Nothing waits for approval.",
        as_json=as_json,
    )


@app.command("show")
@online
def show_approval(
    connection: GatewayOptions, approval: ApprovalArgument, as_json: JsonOption = False
) -> None:
    """Show a request with all arguments of its calls."""

    async def read(client: GatewayClient) -> pb.Approval:
        return await _read_approval(client, approval)

    read_approval = connection.run(read)
    if as_json:
        print_json(read_approval)
        return
    request = read_approval.request
    print_fields(
        [
            ("id", request.approval_id),
            ("state", _state(read_approval)),
            ("agent", read_approval.agent_id),
            ("conversation", read_approval.conversation_id),
            ("run", read_approval.run_id),
            ("answered by", read_approval.answer_run_id),
            ("asked", when(read_approval.create_time)),
            ("deadline", when(request.expire_time)),
            ("otherwise", _default_decision(request)),
            ("untrusted", untrusted_sources_line(request)),
            ("also waiting", ", ".join(call.name for call in request.waiting_calls)),
        ]
    )
    by_client = calls_by_client(request)
    for call in request.tool_calls:
        runs = "  (run by the client)" if call.tool_call_id in by_client else ""
        print_text(f"\n{call.name}  {call.tool_call_id}{runs}\n{whole_arguments(call.arguments)}")


@app.command("approve")
@online
def approve(
    connection: GatewayOptions,
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
            help="Return value for a call that your own program made; the server does not make it."
            " May be repeated. Required for client tools.",
        ),
    ] = None,
    reason: Annotated[str, typer.Option("--reason", help="Why the others are denied.")] = "",
    as_json: EventsOption = False,
) -> None:
    """Approve a request, and show the run that continues."""
    chosen, returns = frozenset(call or ()), dict(_return(option) for option in returned or ())

    def decide(asked_call: message_pb2.ToolCallPart) -> message_pb2.ApprovalDecision:
        if asked_call.tool_call_id in returns:
            client_return = returns[asked_call.tool_call_id]
            return message_pb2.ApprovalDecision(client_return=client_return)
        if not chosen or asked_call.tool_call_id in chosen:
            return message_pb2.ApprovalDecision(approve=True)
        return message_pb2.ApprovalDecision(reason=reason)

    _answer(connection, approval, decide, chosen | returns.keys(), as_json=as_json)


@app.command("deny")
@online
def deny(
    connection: GatewayOptions,
    approval: ApprovalArgument,
    reason: Annotated[
        str, typer.Option("--reason", help="The reason; the agent receives it.")
    ] = "",
    as_json: EventsOption = False,
) -> None:
    """Deny all calls of a request, and show the run that continues."""

    def decide(_: message_pb2.ToolCallPart) -> message_pb2.ApprovalDecision:
        return message_pb2.ApprovalDecision(reason=reason)

    _answer(connection, approval, decide, frozenset(), as_json=as_json)


def _answer(
    connection: GatewayOptions,
    approval: str,
    decide: Callable[[message_pb2.ToolCallPart], message_pb2.ApprovalDecision],
    chosen: frozenset[str],
    *,
    as_json: bool,
) -> None:
    """Answers a request, shows the run that continues, and exits with 1 if the run fails.

    Args:
        connection: The gateway.
        approval: Id of the request.
        decide: Returns the decision about a call; its id and the hash are added here.
        chosen: Ids of calls that options name; each must be a call of the request.
        as_json: Print events as lines of JSON.

    Raises:
        UsageError: The request does not contain a chosen call.
    """

    async def respond(client: GatewayClient) -> bool:
        open_approval = await _read_approval(client, approval)
        request = open_approval.request
        unknown = chosen - {call.tool_call_id for call in request.tool_calls}
        if unknown:
            raise UsageError(f"{approval} does not contain the call {', '.join(sorted(unknown))}.")
        hashes = {bound.tool_call_id: bound.arguments_hash for bound in request.bindings}
        decisions = []
        for call in request.tool_calls:
            decision = decide(call)
            decision.tool_call_id = call.tool_call_id
            decision.arguments_hash = hashes.get(call.tool_call_id, "")
            decisions.append(decision)
        session = ChatSession(client, screen_for(console()), ChatOptions(open_approval.agent_id))
        if as_json:
            return await session.answer_json(approval, decisions)
        return await session.answer(approval, decisions)

    if not connection.run(respond):
        raise typer.Exit(EXIT_FAILURE)


async def _read_approval(client: GatewayClient, approval: str) -> pb.Approval:
    request = pb.GetApprovalRequest(approval_id=approval)
    return (await client.runs.GetApproval(request)).approval


def _state(approval: pb.Approval) -> str:
    if not approval.decided:
        return "open"
    return "answered" if approval.answer_run_id else "expired"


def _default_decision(request: message_pb2.ApprovalRequestPart) -> str:
    approves = request.default_decision == tool_pb2.DEFAULT_DECISION_APPROVE
    return "approved" if approves else "denied"


def _calls(request: message_pb2.ApprovalRequestPart) -> str:
    by_client = calls_by_client(request)
    return "; ".join(
        f"{call.name}({compact_arguments(call.arguments)})"
        + (" by the client" if call.tool_call_id in by_client else "")
        for call in request.tool_calls
    )


def _return(option: str) -> tuple[str, str]:
    call, equals, text = option.partition("=")
    if not equals:
        raise UsageError("--return is CALL=TEXT: the id of the call and its return.")
    return call, text
