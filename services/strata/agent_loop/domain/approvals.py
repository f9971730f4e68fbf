"""Requests for the approval of tool calls, and answers to them.

A call of a tool that the client runs is asked for in the same way (decision 0092): its answer is
what the tool returned.

A request is stored as one message that holds all of the reply: its text, the calls that wait for a
person and those that wait with them. The calls become calls of an assistant message only together
with their returns, so that no window ever holds a call without a return.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from strata.agent_loop.models.domain import ToolCall

if TYPE_CHECKING:
    # They know messages, and those know requests.
    from strata.agent_loop.domain.messages import Provenance
    from strata.agent_loop.domain.taint import TaintSource
    from strata.agent_loop.domain.tools import ToolSet


@dataclass(frozen=True, slots=True)
class ApprovalBinding:
    """What exactly a decision about a call is about.

    Attributes:
        tool_call_id: The call.
        tool_version: Names the definition of the tool that was asked for; empty if not known.
        arguments_hash: See `arguments_hash`.
        by_client: The client runs the tool: the decision brings what it returned, or denies.
    """

    tool_call_id: str
    tool_version: str
    arguments_hash: str
    by_client: bool = False


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """A reply that waits for a person.

    Attributes:
        approval_id: Its id.
        tool_calls: Calls that need a decision, or that the client makes, with the arguments that
            they would run with.
        waiting_calls: Calls of the reply that need none; they run after the answer.
        bindings: One per call, in the order of the reply.
        expire_time: When the default decision is taken.
        taint: Where the model had read text of strangers when it made the calls.
        default_approve: The default decision is to approve, not to deny.
    """

    approval_id: str
    tool_calls: tuple[ToolCall, ...]
    waiting_calls: tuple[ToolCall, ...] = ()
    bindings: tuple[ApprovalBinding, ...] = ()
    expire_time: datetime | None = None
    taint: tuple[TaintSource, ...] = ()
    default_approve: bool = False

    @property
    def by_client(self) -> frozenset[str]:
        """Ids of the calls that the client makes."""
        return frozenset(bound.tool_call_id for bound in self.bindings if bound.by_client)

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """All calls, in the order of the reply."""
        order = {bound.tool_call_id: place for place, bound in enumerate(self.bindings)}
        calls = (*self.tool_calls, *self.waiting_calls)
        return tuple(sorted(calls, key=lambda call: order.get(call.id, len(order))))


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision about one call.

    Attributes:
        approve: Run it.
        reason: Why not, for the model.
        client_return: What the client's own tool returned in its place; None if it ran none.
        client_failed: That tool failed.
        arguments_hash: What the decision says that the arguments were; empty for nothing.
        client_taint: Untrusted labels of what the client's tool returned.
    """

    tool_call_id: str
    approve: bool = False
    reason: str = ""
    client_return: str | None = None
    client_failed: bool = False
    arguments_hash: str = ""
    client_taint: tuple[Provenance, ...] = ()


@dataclass(frozen=True, slots=True)
class ApprovalResponse:
    """The answer to a request.

    Attributes:
        approval_id: The request.
        decisions: One per call.
        by_default: Nobody had answered; this is the default decision.
        answered_by: Id of the API key that answered; empty for the default decision.
    """

    approval_id: str
    decisions: tuple[Decision, ...]
    by_default: bool = False
    answered_by: str = ""

    def of(self, tool_call_id: str) -> Decision:
        """Returns the decision about a call; what nobody decided about is denied."""
        matches = (decision for decision in self.decisions if decision.tool_call_id == tool_call_id)
        return next(matches, Decision(tool_call_id))


def arguments_hash(arguments: str) -> str:
    """Returns the SHA-256 of arguments as they are written, in hexadecimal digits."""
    return hashlib.sha256(arguments.encode("utf-8", "replace")).hexdigest()


def bindings_of(calls: Iterable[ToolCall], toolset: ToolSet) -> tuple[ApprovalBinding, ...]:
    """Returns what decisions about calls are bound to.

    Args:
        calls: The calls of a reply, in its order.
        toolset: What is known of the tools.
    """
    pairs = ((call, toolset.find(call.name)) for call in calls)
    return tuple(
        ApprovalBinding(
            call.id,
            tool.version if tool is not None else "",
            arguments_hash(call.arguments),
            tool is not None and tool.by_client,
        )
        for call, tool in pairs
    )
