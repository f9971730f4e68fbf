"""Approval requests for tool calls, and the responses to them.

Calls of tools that the client runs use the same request (decision 0092): the response then carries
the tool's return.

A request is stored as one message with the whole reply: its text, the calls that need a decision
and the other calls, which wait for it. The calls are stored in an assistant message only together
with their returns, so that no window ever holds a call without a return.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime

from strata.agent_loop.domain.conversation.taint_sources import TaintSource
from strata.agent_loop.domain.model.chat import ToolCall
from strata.shared.provenance import Provenance


@dataclass(frozen=True, slots=True)
class ApprovalBinding:
    """Binds a decision to one version of a tool and to the arguments of a call.

    Attributes:
        tool_call_id: The call.
        tool_version: The tool's version when approval was requested; empty if unknown.
        arguments_hash: See `arguments_hash`.
        by_client: The client runs the tool: the decision carries the tool's return, or denies.
    """

    tool_call_id: str
    tool_version: str
    arguments_hash: str
    by_client: bool = False


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """A reply whose calls wait for a person's decision.

    Attributes:
        approval_id: Id of the request.
        tool_calls: Calls that need a decision, or that the client runs, with the arguments that
            they would run with.
        waiting_calls: The other calls of the reply; they run after the response.
        bindings: One per call, in the order of the reply.
        expire_time: When the default decision is taken.
        taint: Untrusted content in the context when the model made the calls.
        default_approve: The default decision is to approve; otherwise it is to deny.
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
        """Ids of the calls that the client runs."""
        return frozenset(bound.tool_call_id for bound in self.bindings if bound.by_client)

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """All calls, in the order of the reply."""
        order = {bound.tool_call_id: index for index, bound in enumerate(self.bindings)}
        calls = (*self.tool_calls, *self.waiting_calls)
        return tuple(sorted(calls, key=lambda call: order.get(call.id, len(order))))


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision about one call.

    Attributes:
        approve: Run the call.
        reason: Why it is denied; shown to the model.
        client_return: The return of a tool that the client ran instead; None if it ran none.
        client_failed: The client's tool failed.
        arguments_hash: Hash of the arguments that the person saw; empty if not checked.
        client_taint: Untrusted labels of the client's return.
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
        by_default: The default decision, because no person answered in time.
        answered_by: Id of the API key that answered; empty for the default decision.
    """

    approval_id: str
    decisions: tuple[Decision, ...]
    by_default: bool = False
    answered_by: str = ""

    def of(self, tool_call_id: str) -> Decision:
        """Returns the decision about a call; a call without a decision is denied."""
        matches = (decision for decision in self.decisions if decision.tool_call_id == tool_call_id)
        return next(matches, Decision(tool_call_id))


def arguments_hash(arguments: str) -> str:
    """Returns the SHA-256 of the text of arguments, in hexadecimal digits."""
    return hashlib.sha256(arguments.encode("utf-8", "replace")).hexdigest()
