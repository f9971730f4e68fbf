"""Requests for approval: records and errors. Pure.

A run that ends with a request for approval blocks its conversation: until the request is answered
once, or its deadline has passed, new messages are refused unless the sender has the request denied,
and queued messages wait unless their sender has it denied when their runs start.
If the deadline approves by default, a gateway answers like a person (`defaults`); until then the
conversation stays blocked. The agent loop stores the calls that wait for approval; this module
decides who may answer, and when.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from strata.gateway.runs.domain.principals import Principal
from strata.protocol.errors import FailedPreconditionError, Reason


class OnApproval(StrEnum):
    """The behaviour of a new run if its conversation waits for an approval, now or when it starts.

    ``ANSWER`` is for the run that has the answer, which is accepted only while its request is open.
    """

    REJECT = "REJECT"
    DENY = "DENY"
    ANSWER = "ANSWER"


@dataclass(frozen=True, slots=True)
class AskedApproval:
    """A request for approval at the end of a run.

    Attributes:
        id: Id of the request.
        request: The request, serialised.
        remaining_s: Seconds until the deadline, at which the default decision applies. The
            database adds them to its own time, since clocks of hosts differ.
        default_approve: Whether the default decision is to approve.
    """

    id: str
    request: bytes
    remaining_s: float
    default_approve: bool = False


@dataclass(frozen=True, slots=True)
class Approval:
    """A request for approval as stored.

    Attributes:
        request: The request, serialised.
        expire_time: Deadline, at which the default decision applies.
        decided: Whether it was answered, or its deadline has passed with a denial.
        answer_run_id: The run that continued with the answer, with the default decision, or with
            a message instead.
    """

    id: str
    agent_id: str
    conversation_id: str
    run_id: str
    request: bytes
    expire_time: datetime
    create_time: datetime
    decided: bool
    answer_run_id: str = ""


@dataclass(frozen=True, slots=True)
class ApprovalFilter:
    """Which approvals to list; an empty agent or conversation means all."""

    agent_id: str = ""
    include_decided: bool = False
    conversation_id: str = ""

    def scope(self) -> str:
        """Returns the filter as text, to bind page tokens to it."""
        return f"approvals|{self.agent_id}|{self.include_decided}|{self.conversation_id}"


@dataclass(frozen=True, slots=True)
class DueApproval:
    """An open request that its deadline approves."""

    project_id: str
    id: str
    expire_time: datetime


class ApprovalStore(Protocol):
    """Reads requests for approval; they are written with the runs that create and answer them."""

    async def approval(self, project_id: str, approval_id: str) -> Approval:
        """Returns a request for approval.

        Raises:
            NotFoundError: There is none (``APPROVAL_NOT_FOUND``).
        """
        ...

    async def approvals(
        self, project_id: str, which: ApprovalFilter, *, after: str | None, limit: int
    ) -> Sequence[Approval]:
        """Returns requests for approval, oldest first, those after the id `after` if given."""
        ...

    async def close_approvals(self, project_id: str, agent_id: str) -> None:
        """Closes the open requests of a deleted agent."""
        ...

    async def asked_by(self, project_id: str, run_id: str) -> tuple[Principal, int]:
        """Returns the principal and the `max_steps` of a run.

        Raises:
            NotFoundError: There is no such run.
        """
        ...

    async def due_approvals(self, after: DueApproval | None, limit: int) -> Sequence[DueApproval]:
        """Returns requests of all projects whose deadline approves them now, oldest first.

        They stay open until a run takes their answer, so each one is answered once even if several
        gateways see it.

        Args:
            after: The request after which the result begins; None for the first.
            limit: Maximum number.
        """
        ...


def approval_pending(approval_id: str, until: datetime) -> FailedPreconditionError:
    """Returns the error for a message to a conversation that waits for an approval."""
    return FailedPreconditionError(
        f"The conversation waits for an answer to {approval_id}: answer it, or send the message"
        " with on_approval DENY.",
        reason=Reason.APPROVAL_PENDING,
        metadata={"approval_id": approval_id, "expire_time": until.isoformat()},
    )


def not_open(approval: Approval) -> FailedPreconditionError:
    """Returns the error for an answer to a closed request."""
    if approval.answer_run_id:
        return FailedPreconditionError(
            "The approval was answered before.",
            reason=Reason.APPROVAL_DECIDED,
            metadata={"approval_id": approval.id, "answer_run_id": approval.answer_run_id},
        )
    return FailedPreconditionError(
        "The deadline of the approval has passed; its calls count as denied.",
        reason=Reason.APPROVAL_EXPIRED,
        metadata={"approval_id": approval.id},
    )


def outdated(approval_id: str, tool_call_id: str, name: str) -> FailedPreconditionError:
    """Returns the error for the approval of a call whose tool has changed since the request."""
    return FailedPreconditionError(
        f"The tool {name} was changed or deleted since its call was asked for. Deny the call; the"
        " agent can ask again.",
        reason=Reason.APPROVAL_OUTDATED,
        metadata={"approval_id": approval_id, "tool_call_id": tool_call_id, "name": name},
    )
