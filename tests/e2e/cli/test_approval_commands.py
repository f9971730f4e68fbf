"""Commands of ``strata approvals``: what they print and send."""

from __future__ import annotations

import json

from command_line import Run
from e2e.cli.scripted import ScriptedGateway
from strata.api.common.v1 import message_pb2, tool_pb2
from strata.api.gateway.v1 import run_service_pb2 as pb

CALLS = [
    message_pb2.ToolCallPart(tool_call_id="c1", name="pay", arguments='{"amount": 3}'),
    message_pb2.ToolCallPart(tool_call_id="c2", name="mail", arguments='{"to": "bob"}'),
]


def waiting(approval_id: str = "approval-1", **fields: object) -> pb.Approval:
    request = message_pb2.ApprovalRequestPart(
        approval_id=approval_id,
        tool_calls=CALLS,
        bindings=[
            message_pb2.ApprovalBinding(tool_call_id=call.tool_call_id, arguments_hash=f"h-{index}")
            for index, call in enumerate(CALLS)
        ],
        default_decision=tool_pb2.DEFAULT_DECISION_APPROVE,
    )
    return pb.Approval(request=request, agent_id="agent-1", **fields)  # type: ignore[arg-type]


async def test_pending_approvals_are_listed_and_shown(
    strata: Run, gateway: ScriptedGateway
) -> None:
    assert len((await strata("approvals", "list")).out.splitlines()) == 1
    gateway.runs.approvals = [
        waiting(),
        waiting("approval-2", decided=True, answer_run_id="run-1"),
        waiting("approval-3", decided=True),
    ]
    rows = [row.split("\t") for row in (await strata("approvals", "list")).out.splitlines()[1:]]
    assert [(row[0], row[1], row[4]) for row in rows] == [("approval-1", "open", "approved")]
    assert rows[0][2] == 'pay(amount=3); mail(to="bob")'
    rows = [
        r.split("\t") for r in (await strata("approvals", "list", "--all")).out.splitlines()[1:]
    ]
    assert [row[1] for row in rows] == ["open", "answered", "expired"]
    listed = json.loads((await strata("approvals", "list", "--json")).out)
    assert [approval["request"]["approvalId"] for approval in listed["approvals"]] == ["approval-1"]
    shown = (await strata("approvals", "show", "approval-1")).out
    assert "pay  c1" in shown
    assert '"amount": 3' in shown
    document = json.loads((await strata("approvals", "show", "approval-1", "--json")).out)
    assert document["agentId"] == "agent-1"
    gone = await strata("approvals", "show", "approval-9")
    assert (gone.code, "APPROVAL_NOT_FOUND" in gone.err) == (1, True)


async def test_client_calls_are_marked_and_answered_with_their_return_values(
    strata: Run, gateway: ScriptedGateway
) -> None:
    asked = waiting()
    asked.request.bindings[1].by_client = True
    gateway.runs.approvals = [asked]
    rows = [row.split("\t") for row in (await strata("approvals", "list")).out.splitlines()[1:]]
    assert rows[0][2] == 'pay(amount=3); mail(to="bob") by the client'
    shown = (await strata("approvals", "show", "approval-1")).out
    assert "mail  c2  (run by the client)" in shown
    assert "pay  c1\n" in shown
    for option in ("c2", "c3=x"):
        assert (await strata("approvals", "approve", "approval-1", "--return", option)).code == 2
    assert gateway.runs.answered == []
    await strata("approvals", "approve", "approval-1", "--return", "c2=sent=yes")
    pay, mail = gateway.runs.answered[0].decisions
    assert pay.approve
    assert not pay.HasField("client_return")
    assert (mail.client_return, mail.approve, mail.arguments_hash) == ("sent=yes", False, "h-1")


async def test_all_some_or_none_of_the_calls_can_be_approved(
    strata: Run, gateway: ScriptedGateway
) -> None:
    gateway.runs.approvals = [waiting()]
    done = await strata("approvals", "approve", "approval-1")
    assert done.code == 0, done
    assert "Thank you." in done.out
    await strata("approvals", "approve", "approval-1", "--call", "c2", "--reason", "Too dear.")
    await strata("approvals", "deny", "approval-1", "--reason", "No.")
    assert [
        [(d.tool_call_id, d.approve, d.reason, d.arguments_hash) for d in answer.decisions]
        for answer in gateway.runs.answered
    ] == [
        [("c1", True, "", "h-0"), ("c2", True, "", "h-1")],
        [("c1", False, "Too dear.", "h-0"), ("c2", True, "", "h-1")],
        [("c1", False, "No.", "h-0"), ("c2", False, "No.", "h-1")],
    ]
    done = await strata("approvals", "deny", "approval-1", "--json")
    events = [json.loads(line) for line in done.out.splitlines()]
    assert "runFinished" in events[-1]
    wrong = await strata("approvals", "approve", "approval-1", "--call", "c9")
    assert (wrong.code, "c9" in wrong.err) == (2, True)
    assert len(gateway.runs.answered) == 4
