"""Turns that ask for an approval, and answers to it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from integration.gateway.scripted_runs import event, finished, plays, started, step
from integration.gateway.scripted_services import Gateway
from strata.api.common.v1 import message_pb2, run_event_pb2, tool_pb2
from strata.api.gateway.v1 import run_service_pb2 as pb


def asks(
    approval_id: str,
    version: str = "v1",
    *,
    approved_in: float = 0,
    by_client: bool = False,
    behind_s: float = 0,
) -> Any:
    """Returns a turn that ends with an approval request, of an agent loop whose clock is behind."""
    now = datetime.now(UTC) - timedelta(seconds=behind_s)
    request = message_pb2.ApprovalRequestPart(
        approval_id=approval_id,
        tool_calls=[message_pb2.ToolCallPart(tool_call_id="c1", name="pay", arguments="{}")],
        bindings=[
            message_pb2.ApprovalBinding(
                tool_call_id="c1", tool_version=version, arguments_hash="abc", by_client=by_client
            )
        ],
    )
    request.expire_time.FromDatetime(now + timedelta(hours=1))
    if approved_in:
        request.expire_time.FromDatetime(now + timedelta(seconds=approved_in))
        request.default_decision = tool_pb2.DEFAULT_DECISION_APPROVE
    asked = event(approval_requested=run_event_pb2.ApprovalRequested(approval=request))
    asked.create_time.FromDatetime(now)

    return plays(
        started(),
        step(),
        asked,
        finished(run_event_pb2.STOP_REASON_REQUIRES_APPROVAL),
    )


def respond(gateway: Gateway, approval_id: str, **decision: Any) -> Any:
    decision.setdefault("tool_call_id", "c1")
    return gateway.runs.RespondToApproval(
        pb.RespondToApprovalRequest(
            approval_id=approval_id, decisions=[message_pb2.ApprovalDecision(**decision)]
        ),
        metadata=gateway.metadata,
        timeout=60,
    )


async def read_approval(gateway: Gateway, approval_id: str) -> pb.Approval:
    request = pb.GetApprovalRequest(approval_id=approval_id)
    approval: pb.Approval = (
        await gateway.runs.GetApproval(request, metadata=gateway.metadata)
    ).approval
    return approval
