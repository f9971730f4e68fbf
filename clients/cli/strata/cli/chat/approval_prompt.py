"""Asks the person to approve tool calls, and for the returns of client tools."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TypeAlias

from strata.api.common.v1 import message_pb2
from strata.cli.chat.prompt import interruptible
from strata.cli.output import safe
from strata.shared.turn_texts import whole_arguments

AskPerson: TypeAlias = Callable[
    [message_pb2.ApprovalRequestPart], Sequence[message_pb2.ApprovalDecision] | None
]

_REASON = "Reason (for the agent, may be empty): "


def ask_on_terminal(
    request: message_pb2.ApprovalRequestPart, read: Callable[[str], str] = input
) -> list[message_pb2.ApprovalDecision] | None:
    """Asks about each call, showing all of its arguments.

    It blocks the event loop, where nothing else runs while the person decides.

    Args:
        request: The request for approval.
        read: Prints a prompt and returns the line that was typed.

    Returns:
        A decision per call; None if the person does not decide now (Ctrl-C, Ctrl-D).
    """
    bindings = {bound.tool_call_id: bound for bound in request.bindings}
    nothing = message_pb2.ApprovalBinding()
    try:
        with interruptible():
            return [
                _decide(call, bindings.get(call.tool_call_id, nothing), read)
                for call in request.tool_calls
            ]
    except (EOFError, KeyboardInterrupt):
        sys.stdout.write("\n")
        return None


def _decide(
    call: message_pb2.ToolCallPart,
    bound: message_pb2.ApprovalBinding,
    read: Callable[[str], str],
) -> message_pb2.ApprovalDecision:
    decision = message_pb2.ApprovalDecision(
        tool_call_id=call.tool_call_id, arguments_hash=bound.arguments_hash
    )
    sys.stdout.write(f"{safe(call.name)}\n{safe(whole_arguments(call.arguments))}\n")
    if bound.by_client:
        sys.stdout.write(
            "A client program should make this call; you can enter its return here instead.\n"
        )
        client_return = read("What did it return? (empty: deny) ")
        if client_return:
            decision.client_return = client_return
        else:
            decision.reason = read(_REASON).strip()
        return decision
    while (answer := read("Approve? [y/n] ").strip().lower()) not in {"y", "yes", "n", "no"}:
        pass
    if answer.startswith("y"):
        decision.approve = True
    else:
        decision.reason = read(_REASON).strip()
    return decision
