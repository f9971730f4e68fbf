"""Validates and converts requests for approval and their answers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace

from strata.api.agent_loop.v1 import turn_service_pb2 as turn_pb
from strata.api.common.v1 import message_pb2, run_event_pb2, tool_pb2
from strata.api.gateway.v1 import run_service_pb2 as pb
from strata.gateway.runs.convert.runs import (
    MAX_CHARACTERS,
    UNTRUSTED,
    check_run,
    principal_of,
)
from strata.gateway.runs.domain.approvals import Approval, ApprovalFilter, AskedApproval, OnApproval
from strata.gateway.runs.domain.principals import Principal
from strata.gateway.runs.domain.runs import NewRun, RunEnding, RunKind
from strata.gateway.runs.domain.states import RunState
from strata.protocol.errors import PermissionDeniedError, Reason
from strata.shared.checks import Checks
from strata.shared.context import Caller
from strata.shared.ids import check_id, new_id
from strata.shared.scopes import Scope

MAX_REASON = 10_000

_STATUSES = (
    message_pb2.TOOL_STATUS_UNSPECIFIED,
    message_pb2.TOOL_STATUS_OK,
    message_pb2.TOOL_STATUS_FAILED,
)


def asked_approval(event: run_event_pb2.RunEvent) -> AskedApproval:
    """Converts the approval request in an event.

    The remaining time is exact, because the event and the deadline have times of the same clock.
    """
    request = event.approval_requested.approval
    remaining = request.expire_time.ToDatetime() - event.create_time.ToDatetime()
    return AskedApproval(
        request.approval_id,
        request.SerializeToString(deterministic=True),
        remaining.total_seconds(),
        request.default_decision == tool_pb2.DEFAULT_DECISION_APPROVE,
    )


def with_response_format(asked: AskedApproval, payload: bytes) -> AskedApproval:
    """Returns a request for approval with the response format of the run's message.

    The run that continues with the answer reads the format from there, because the message is not
    stored after its run has ended.


    Args:
        asked: The request for approval.
        payload: The payload of the run.
    """
    dispatched = turn_pb.ExecuteRunRequest.FromString(payload)
    if not dispatched.HasField("response_format"):
        return asked
    request = message_pb2.ApprovalRequestPart.FromString(asked.request)
    request.response_format.CopyFrom(dispatched.response_format)
    return replace(asked, request=request.SerializeToString(deterministic=True))


def request_of(approval: Approval) -> message_pb2.ApprovalRequestPart:
    """Returns the stored request as a message."""
    return message_pb2.ApprovalRequestPart.FromString(approval.request)


def check_answer(request: pb.RespondToApprovalRequest) -> None:
    """Validates an answer without the request that it answers.

    Raises:
        InvalidArgumentError: Fields are wrong; the violations name all of them.
    """
    checks = Checks()
    checks.id(request.approval_id, "approval", "approval_id")
    check_run(checks, request)
    _check_decisions(checks, request)
    checks.done()


def answer_run(request: pb.RespondToApprovalRequest, approval: Approval, caller: Caller) -> NewRun:
    """Returns the run that continues with an answer.

    Raises:
        InvalidArgumentError: The decisions do not match the request.
        PermissionDeniedError: The key may not supply a return (``SCOPE_MISSING``).
    """
    approval_request = request_of(approval)
    checks = Checks()
    _check_match(checks, request, approval_request)
    checks.done()
    _check_returns(request, approval_request, caller)
    answer = message_pb2.ApprovalResponsePart(
        approval_id=approval.id, decisions=request.decisions, answered_by=caller.principal
    )
    new = _answer_run(answer, approval, principal_of(caller), request.max_steps)
    return replace(new, kind=RunKind.FOREGROUND, request_id=request.request_id or None)


def default_run(approval: Approval, principal: Principal, max_steps: int) -> NewRun:
    """Returns the run that approves all calls of a request after its deadline.

    Args:
        approval: The request.
        principal: The principal of the run that asked.
        max_steps: Maximum number of model calls of that run; 0 for the default.
    """
    approval_request = request_of(approval)
    hashes = {bound.tool_call_id: bound.arguments_hash for bound in approval_request.bindings}
    answer = message_pb2.ApprovalResponsePart(
        approval_id=approval.id,
        decisions=[
            message_pb2.ApprovalDecision(
                tool_call_id=call.tool_call_id,
                approve=True,
                arguments_hash=hashes.get(call.tool_call_id, ""),
            )
            for call in approval_request.tool_calls
        ],
        by_default=True,
    )
    return _answer_run(answer, approval, principal, max_steps)


def reopened_if_no_call_ran(
    payload: bytes, ending: RunEnding, *, answer_is_stored: bool
) -> RunEnding:
    """Returns the end of a run; if no approved call was run, it reopens the approval request.

    Denied calls and returns of the client need no separate run: if they are in the conversation,
    the next run sends them to the model.

    Args:
        payload: The payload of the run.
        ending: Its end.
        answer_is_stored: Whether the conversation holds the answer.
    """
    if ending.state not in (RunState.FAILED, RunState.CANCELLED):
        return ending
    if ending.failure is not None and ending.failure.reason == Reason.APPROVAL_NOT_FOUND.value:
        # The conversation has no such request, so it must not be reopened.
        return ending
    answer = turn_pb.ExecuteRunRequest.FromString(payload).approval
    approves_a_call = any(
        decision.approve and not decision.HasField("client_return") for decision in answer.decisions
    )
    if approves_a_call or not answer_is_stored:
        return replace(ending, reopens=answer.approval_id)
    return ending


def _answer_run(
    answer: message_pb2.ApprovalResponsePart,
    approval: Approval,
    principal: Principal,
    max_steps: int,
) -> NewRun:
    request = turn_pb.ExecuteRunRequest(
        agent_id=approval.agent_id,
        conversation_id=approval.conversation_id,
        approval=answer,
        max_steps=max_steps,
    )
    approval_request = request_of(approval)
    if approval_request.HasField("response_format"):
        request.response_format.CopyFrom(approval_request.response_format)
    payload = request.SerializeToString(deterministic=True)
    # Hash only the client's request, which may be repeated with another key of the project.
    request.approval.ClearField("answered_by")
    asked_for = request.SerializeToString(deterministic=True)
    return NewRun(
        id=new_id("run"),
        principal=principal,
        agent_id=approval.agent_id,
        conversation_id=approval.conversation_id,
        kind=RunKind.BACKGROUND,
        payload=payload,
        payload_hash=hashlib.sha256(asked_for).digest(),
        max_steps=max_steps,
        on_approval=OnApproval.ANSWER,
        approval_id=approval.id,
    )


def _check_returns(
    request: pb.RespondToApprovalRequest,
    approval_request: message_pb2.ApprovalRequestPart,
    caller: Caller,
) -> None:
    """Refuses a return for a call that Strata would run, unless the key has the scope write.

    A key that may only approve calls must not supply their returns.
    """
    if Scope.WRITE in caller.scopes:
        return
    by_client = {bound.tool_call_id for bound in approval_request.bindings if bound.by_client}
    for index, decision in enumerate(request.decisions):
        if decision.HasField("client_return") and decision.tool_call_id not in by_client:
            raise PermissionDeniedError(
                f"decisions[{index}].client_return answers {decision.tool_call_id}, a call of a"
                f" tool that Strata runs: for that the key needs the scope {Scope.WRITE}. Approve"
                " or deny the call instead.",
                metadata={"scope": Scope.WRITE},
            )


def approved_tools(
    request: pb.RespondToApprovalRequest, approval: Approval
) -> Mapping[str, tuple[str, str]]:
    """Returns name and version of the tools of approved calls, by id of the call."""
    approval_request = request_of(approval)
    names = {call.tool_call_id: call.name for call in approval_request.tool_calls}
    versions = {bound.tool_call_id: bound.tool_version for bound in approval_request.bindings}
    return {
        decision.tool_call_id: (
            names[decision.tool_call_id],
            versions.get(decision.tool_call_id, ""),
        )
        for decision in request.decisions
        if decision.approve and not decision.HasField("client_return")
    }


def approval_filter(request: pb.ListApprovalsRequest) -> ApprovalFilter:
    """Returns the filter of a list request.

    Raises:
        InvalidArgumentError: A malformed id.
    """
    if request.agent_id:
        check_id(request.agent_id, "agent", field="agent_id")
    if request.conversation_id:
        check_id(request.conversation_id, "conversation", field="conversation_id")
    return ApprovalFilter(request.agent_id, request.include_decided, request.conversation_id)


def approval_to_pb(approval: Approval) -> pb.Approval:
    """Converts a stored request for approval."""
    out = pb.Approval(
        request=request_of(approval),
        agent_id=approval.agent_id,
        conversation_id=approval.conversation_id,
        run_id=approval.run_id,
        decided=approval.decided,
        answer_run_id=approval.answer_run_id,
    )
    out.create_time.FromDatetime(approval.create_time)
    return out


def _check_decisions(checks: Checks, request: pb.RespondToApprovalRequest) -> None:
    for index, decision in enumerate(request.decisions):
        field = f"decisions[{index}]"
        for name, limit in (("reason", MAX_REASON), ("client_return", MAX_CHARACTERS)):
            text = getattr(decision, name)
            checks.unless(
                "\0" not in text and len(text) <= limit,
                f"{field}.{name}",
                f"must have at most {limit} characters and no NUL",
            )
        has_return = decision.HasField("client_return")
        if decision.client_status not in _STATUSES:
            checks.fail(f"{field}.client_status", "must be OK or FAILED")
        elif decision.client_status and not has_return:
            checks.fail(f"{field}.client_status", "belongs to a client_return")
        if not set(decision.client_taint) <= UNTRUSTED:
            checks.fail(f"{field}.client_taint", "must be WEB or MCP")
        elif decision.client_taint and not has_return:
            checks.fail(f"{field}.client_taint", "belongs to a client_return")


def _check_match(
    checks: Checks,
    request: pb.RespondToApprovalRequest,
    approval_request: message_pb2.ApprovalRequestPart,
) -> None:
    expected = [call.tool_call_id for call in approval_request.tool_calls]
    decided = [decision.tool_call_id for decision in request.decisions]
    if sorted(decided) != sorted(expected):
        checks.fail(
            "decisions", f"must contain exactly one decision for each of {', '.join(expected)}"
        )
        return
    hashes = {bound.tool_call_id: bound.arguments_hash for bound in approval_request.bindings}
    by_client = {bound.tool_call_id for bound in approval_request.bindings if bound.by_client}
    for index, decision in enumerate(request.decisions):
        if (
            decision.tool_call_id in by_client
            and decision.approve
            and not decision.HasField("client_return")
        ):
            checks.fail(
                f"decisions[{index}].client_return",
                "must be set: the client runs this tool, so the call cannot be approved without its"
                " return; to deny the call, leave approve unset",
            )
        if decision.arguments_hash and decision.arguments_hash != hashes.get(decision.tool_call_id):
            checks.fail(
                f"decisions[{index}].arguments_hash", "does not match the arguments of the call"
            )
