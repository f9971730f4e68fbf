"""Approvals through the gateway, with a scripted agent loop."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import grpc
import pytest

from integration.gateway.approvals import asks, read_approval, respond
from integration.gateway.scripted_runs import event, finished, plays, reply, started
from integration.gateway.scripted_services import Gateway, ScriptedServices
from polling import eventually
from rpc_errors import reason
from run_events import collect, kinds
from strata.api.common.v1 import message_pb2, run_event_pb2
from strata.api.gateway.v1 import admin_service_pb2 as admin_pb
from strata.api.gateway.v1 import run_service_pb2 as pb
from strata.shared.ids import new_id


async def open_approval(
    services: ScriptedServices, gateway: Gateway, **fields: Any
) -> tuple[str, str]:
    """Creates an agent with a pending approval; returns both ids."""
    agent, approval_id = services.new_agent(), new_id("approval")
    services.turns.script = asks(approval_id, **fields)
    events = await collect(gateway.send(agent))
    assert kinds(events)[-2:] == ["approval_requested", "run_finished"]
    services.turns.script = reply("Done.")
    return agent, approval_id


async def refusal(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await collect(call)
    return raised.value.code(), reason(raised.value)


async def test_answer_continues_the_conversation(services: ScriptedServices) -> None:
    gateway = await services.gateway()
    services.tools.versions["pay"] = "v1"
    agent, approval_id = await open_approval(services, gateway)
    assert await refusal(gateway.send(agent)) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "APPROVAL_PENDING",
    )
    request = pb.ListApprovalsRequest(agent_id=agent)
    [listed] = (await gateway.runs.ListApprovals(request, metadata=gateway.metadata)).approvals
    assert listed.request.approval_id == approval_id
    assert (listed.agent_id, listed.decided) == (agent, False)
    assert listed.conversation_id == agent.replace("agent-", "conversation-")

    call = respond(gateway, approval_id, approve=True, arguments_hash="abc")
    events = await collect(call)
    assert kinds(events)[-1] == "run_finished"
    assert dict(await call.initial_metadata())["x-run-id"] == events[0].run_id
    turn = services.turns.requests[-1]
    assert turn.approval.approval_id == approval_id
    assert turn.approval.decisions[0].approve
    assert not turn.messages
    assert await refusal(respond(gateway, approval_id, approve=True)) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "APPROVAL_DECIDED",
    )
    assert kinds(await collect(gateway.send(agent)))[-1] == "run_finished"


async def test_requests_of_one_conversation_are_listed(services: ScriptedServices) -> None:
    gateway = await services.gateway()
    agent, approval_id = await open_approval(services, gateway)
    await open_approval(services, gateway)
    conversation_id = agent.replace("agent-", "conversation-")
    request = pb.ListApprovalsRequest(conversation_id=conversation_id)
    listed = await gateway.runs.ListApprovals(request, metadata=gateway.metadata)
    assert [approval.request.approval_id for approval in listed.approvals] == [approval_id]
    wrong = pb.ListApprovalsRequest(conversation_id="conversation-x")
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await gateway.runs.ListApprovals(wrong, metadata=gateway.metadata)
    assert reason(raised.value) == "INVALID_ID"


async def test_call_of_a_changed_tool_can_only_be_denied_and_refused_answers_keep_it_pending(
    services: ScriptedServices,
) -> None:
    gateway = await services.gateway()
    _, approval_id = await open_approval(services, gateway)
    asked = len(services.turns.requests)
    services.tools.versions["pay"] = "v2"
    outdated = (grpc.StatusCode.FAILED_PRECONDITION, "APPROVAL_OUTDATED")
    wrong = (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
    assert await refusal(respond(gateway, approval_id, approve=True)) == outdated
    del services.tools.versions["pay"]
    assert await refusal(respond(gateway, approval_id, approve=True)) == outdated
    other = respond(gateway, approval_id, approve=True, arguments_hash="other")
    assert await refusal(other) == wrong
    assert await refusal(respond(gateway, approval_id, tool_call_id="c2")) == wrong
    assert await refusal(respond(gateway, approval_id, client_status=2)) == wrong
    assert await refusal(respond(gateway, new_id("approval"), approve=True)) == (
        grpc.StatusCode.NOT_FOUND,
        "APPROVAL_NOT_FOUND",
    )
    assert len(services.turns.requests) == asked
    assert kinds(await collect(respond(gateway, approval_id, reason="No.")))[-1] == "run_finished"
    assert services.turns.requests[-1].approval.decisions[0].reason == "No."


async def test_a_message_can_replace_an_answer(services: ScriptedServices) -> None:
    gateway = await services.gateway()
    agent, approval_id = await open_approval(services, gateway)
    events = await collect(gateway.send(agent, "Forget it.", on_approval=pb.ON_APPROVAL_DENY))
    assert kinds(events)[-1] == "run_finished"
    assert await refusal(respond(gateway, approval_id, reason="No.")) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "APPROVAL_DECIDED",
    )


async def test_approval_by_default_continues_at_its_deadline(services: ScriptedServices) -> None:
    gateway = await services.gateway()
    other = await services.gateway()
    agent, approval_id = services.new_agent(), new_id("approval")
    services.turns.script = asks(approval_id, approved_in=1)
    await collect(gateway.send(agent))
    services.turns.script = reply("Done.")

    async def decided() -> bool:
        return bool((await read_approval(other, approval_id)).answer_run_id)

    await eventually(decided)
    run_id = (await read_approval(gateway, approval_id)).answer_run_id
    assert kinds(await collect(gateway.stream(run_id)))[-1] == "run_finished"
    answers = [request for request in services.turns.requests if request.HasField("approval")]
    [mine] = [answer for answer in answers if answer.approval.approval_id == approval_id]
    assert mine.approval.by_default
    assert [(d.tool_call_id, d.approve) for d in mine.approval.decisions] == [("c1", True)]
    assert kinds(await collect(gateway.send(agent)))[-1] == "run_finished"


async def test_the_deadline_of_a_request_does_not_depend_on_the_clock_of_the_agent_loop(
    services: ScriptedServices,
) -> None:
    gateway = await services.gateway()
    services.tools.versions["pay"] = "v1"
    agent, approval_id = services.new_agent(), new_id("approval")
    services.turns.script = asks(approval_id, behind_s=7_200)
    await collect(gateway.send(agent))
    assert not (await read_approval(gateway, approval_id)).decided
    services.turns.script = reply("Done.")
    answered = await collect(respond(gateway, approval_id, approve=True))
    assert kinds(answered)[-1] == "run_finished"


async def test_an_unused_answer_can_be_given_again(services: ScriptedServices) -> None:
    gateway = await services.gateway()
    services.tools.versions["pay"] = "v1"
    agent, approval_id = await open_approval(services, gateway)

    no_model = plays(started(), finished(run_event_pb2.STOP_REASON_LLM_API_ERROR, steps=0))

    services.turns.script = no_model
    await collect(respond(gateway, approval_id, approve=True))
    assert not (await read_approval(gateway, approval_id)).decided
    assert await refusal(gateway.send(agent)) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "APPROVAL_PENDING",
    )
    services.turns.script = plays(
        started(),
        event(tool_started=run_event_pb2.ToolStarted(tool_call_id="c1", name="pay")),
        finished(run_event_pb2.STOP_REASON_ERROR, steps=0),
    )
    await collect(respond(gateway, approval_id, approve=True))
    assert (await read_approval(gateway, approval_id)).decided
    assert await refusal(respond(gateway, approval_id, approve=True)) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "APPROVAL_DECIDED",
    )


@pytest.mark.parametrize("decision", [{"client_return": "shown"}, {"reason": "No."}])
async def test_answer_of_a_turn_that_never_began_can_be_given_again(
    services: ScriptedServices, decision: dict[str, Any]
) -> None:
    gateway = await services.gateway()
    _, approval_id = await open_approval(services, gateway, by_client=True)

    services.turns.script = plays(finished(run_event_pb2.STOP_REASON_ERROR, steps=0))
    await collect(respond(gateway, approval_id, **decision))
    assert not (await read_approval(gateway, approval_id)).decided

    # This turn stores the answer, and the next turn of the conversation sends it to the model.
    services.turns.script = plays(started(), finished(run_event_pb2.STOP_REASON_ERROR, steps=0))
    await collect(respond(gateway, approval_id, **decision))
    assert (await read_approval(gateway, approval_id)).decided


async def test_key_with_the_approve_scope_can_only_decide(services: ScriptedServices) -> None:
    gateway = await services.gateway()
    agent, approval_id = await open_approval(services, gateway)
    request = admin_pb.CreateApiKeyRequest(name="approver", scopes=["approve"])
    made = await gateway.admin.CreateApiKey(request, metadata=gateway.metadata)
    approver = replace(gateway, api_key=made.secret)
    assert (await read_approval(approver, approval_id)).agent_id == agent
    listing = pb.ListApprovalsRequest(agent_id=agent)
    listed = await approver.runs.ListApprovals(listing, metadata=approver.metadata)
    assert [approval.request.approval_id for approval in listed.approvals] == [approval_id]
    denied = (grpc.StatusCode.PERMISSION_DENIED, "SCOPE_MISSING")
    assert await refusal(approver.send(agent)) == denied
    assert await refusal(approver.stream(listed.approvals[0].run_id)) == denied
    events = await collect(respond(approver, approval_id, reason="No."))
    assert kinds(events)[-1] == "run_finished"
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await read_approval(approver, new_id("approval"))
    assert reason(raised.value) == "APPROVAL_NOT_FOUND"


async def key_with(gateway: Gateway, *scopes: str) -> tuple[Gateway, str]:
    """Creates a key of the project; returns the gateway with it, and its id."""
    request = admin_pb.CreateApiKeyRequest(name="k", scopes=scopes)
    made = await gateway.admin.CreateApiKey(request, metadata=gateway.metadata)
    return replace(gateway, api_key=made.secret), made.api_key.id


@pytest.mark.parametrize("scopes", [("approve",), ("run", "read"), ("approve", "run", "read")])
async def test_replacing_the_return_of_a_server_tool_needs_the_write_scope(
    services: ScriptedServices, scopes: tuple[str, ...]
) -> None:
    gateway = await services.gateway()
    services.tools.versions["pay"] = "v1"
    _, approval_id = await open_approval(services, gateway)
    asked = len(services.turns.requests)
    lesser, _ = await key_with(gateway, *scopes)
    for decision in ({"client_return": "paid"}, {"client_return": "paid", "approve": True}):
        assert await refusal(respond(lesser, approval_id, **decision)) == (
            grpc.StatusCode.PERMISSION_DENIED,
            "SCOPE_MISSING",
        )
    assert len(services.turns.requests) == asked
    assert not (await read_approval(gateway, approval_id)).decided
    writer, key_id = await key_with(gateway, *scopes, "write")
    events = await collect(respond(writer, approval_id, client_return="paid"))
    assert kinds(events)[-1] == "run_finished"
    answer = services.turns.requests[-1].approval
    assert (answer.decisions[0].client_return, answer.answered_by) == ("paid", key_id)


async def test_the_approve_scope_suffices_to_return_results_of_client_tools(
    services: ScriptedServices,
) -> None:
    gateway = await services.gateway()
    _, approval_id = await open_approval(services, gateway, by_client=True)
    approver, key_id = await key_with(gateway, "approve")
    events = await collect(respond(approver, approval_id, client_return="shown"))
    assert kinds(events)[-1] == "run_finished"
    assert services.turns.requests[-1].approval.answered_by == key_id


async def test_the_answering_key_is_recorded_by_the_gateway_and_not_by_the_client(
    services: ScriptedServices,
) -> None:
    gateway = await services.gateway()
    services.tools.versions["pay"] = "v1"
    _, approval_id = await open_approval(services, gateway)
    approver, key_id = await key_with(gateway, "approve", "run")
    request = pb.RespondToApprovalRequest(
        request_id="r-1",
        approval_id=approval_id,
        decisions=[message_pb2.ApprovalDecision(tool_call_id="c1", approve=True)],
    )
    first = await collect(approver.runs.RespondToApproval(request, metadata=approver.metadata))
    assert services.turns.requests[-1].approval.answered_by == key_id
    # The same request with another key of the project is a repetition.
    again = await collect(gateway.runs.RespondToApproval(request, metadata=gateway.metadata))
    assert again[0].run_id == first[0].run_id
