"""Requests for approval as the gateway keeps them. Pure.

A run that ends with one leaves its conversation waiting: no message is taken, unless its sender has
the request denied, until it is answered once or its deadline has passed. A deadline that approves
is an answer like others: a gateway gives it (`defaults`), and until then the conversation waits.
What it asks for is known to the agent loop; here is who may go on, and when.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from strata.shared.errors import FailedPreconditionError, Reason

if TYPE_CHECKING:
    # It knows requests for approval.
    from strata.gateway.runs.domain import Principal


class OnApproval(StrEnum):
    """What to do when the conversation waits for an approval.

    ``ANSWER`` is the run that has the answer: it is accepted only while its request is open.
    """

    REJECT = "REJECT"
    DENY = "DENY"
    ANSWER = "ANSWER"


@dataclass(frozen=True, slots=True)
class AskedApproval:
    """What a run asked a person for at its end.

    Attributes:
        id: Id of the request.
        request: The request, serialised.
        expire_time: When the default decision is taken.
        default_approve: That decision is to approve.
    """

    id: str
    request: bytes
    expire_time: datetime
    default_approve: bool = False


@dataclass(frozen=True, slots=True)
class Approval:
    """A request for approval as stored.

    Attributes:
        request: The request, serialised.
        expire_time: When the default decision is taken.
        decided: It was answered, or the deadline has passed and denies.
        answer_run_id: The run that went on with the answer, with the default decision, or with a
            message in its place.
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
    """Which approvals to list; an empty agent means all."""

    agent_id: str = ""
    include_decided: bool = False

    def scope(self) -> str:
        """Returns the filter as text, to bind page tokens to it."""
        return f"approvals|{self.agent_id}|{self.include_decided}"


@dataclass(frozen=True, slots=True)
class DueApproval:
    """A request that nobody has answered, and that the deadline approves."""

    project_id: str
    id: str
    expire_time: datetime


class ApprovalStore(Protocol):
    """Where requests for approval are. They are written with the runs that make and answer them."""

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
        """Closes the requests of a deleted agent: they are not pending any more."""
        ...

    async def asked_by(self, project_id: str, run_id: str) -> tuple[Principal, int]:
        """Returns on whose behalf a run acted, and its `max_steps`.

        Raises:
            NotFoundError: There is no such run.
        """
        ...

    async def due_approvals(self, after: DueApproval | None, limit: int) -> Sequence[DueApproval]:
        """Returns requests of all projects that their deadline approves now, oldest deadline first.

        They stay open until a run takes their answer, so each is answered once however many
        gateways look.
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


def not_open(found: Approval) -> FailedPreconditionError:
    """Returns the error for an answer to a request that is not open any more."""
    if found.answer_run_id:
        return FailedPreconditionError(
            "The approval was answered before.",
            reason=Reason.APPROVAL_DECIDED,
            metadata={"approval_id": found.id, "answer_run_id": found.answer_run_id},
        )
    return FailedPreconditionError(
        "The deadline of the approval has passed; its calls count as denied.",
        reason=Reason.APPROVAL_EXPIRED,
        metadata={"approval_id": found.id},
    )


def outdated(approval_id: str, tool_call_id: str, name: str) -> FailedPreconditionError:
    """Returns the error for the approval of a call whose tool is not the one asked about."""
    return FailedPreconditionError(
        f"The tool {name} was changed or deleted since its call was asked for. Deny the call; the"
        " agent can ask again.",
        reason=Reason.APPROVAL_OUTDATED,
        metadata={"approval_id": approval_id, "tool_call_id": tool_call_id, "name": name},
    )
