"""Approvals of the scripted gateway."""

from __future__ import annotations

from typing import Any

from strata.api.gateway.v1 import run_service_pb2 as pb
from strata.protocol.errors import NotFoundError, Reason


class Approvals:
    """The methods of `RunService` about approvals; records their requests."""

    on_answer: Any

    def __init__(self) -> None:
        self.answered: list[pb.RespondToApprovalRequest] = []
        self.approvals: list[pb.Approval] = []

    async def RespondToApproval(self, request: Any, context: Any) -> Any:
        self.answered.append(request)
        async for event in self.on_answer(request):
            yield pb.RespondToApprovalResponse(event=event)

    async def ListApprovals(self, request: Any, context: Any) -> Any:
        matches = [
            approval
            for approval in self.approvals
            if request.include_decided or not approval.decided
        ]
        return pb.ListApprovalsResponse(approvals=matches)

    async def GetApproval(self, request: Any, context: Any) -> Any:
        for approval in self.approvals:
            if approval.request.approval_id == request.approval_id:
                return pb.GetApprovalResponse(approval=approval)
        raise NotFoundError("There is no such approval.", reason=Reason.APPROVAL_NOT_FOUND)
