"""Approvals through the whole system: requests, answers, and pending requests."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from chat_messages import roles, user_message
from doubles.script import Call, Reply, call, say
from gated_inserts import GATE, INSERT
from run_events import RunEvents, RunStream
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.common.v1 import message_pb2
from strata.api.gateway.v1 import run_service_pb2 as run_pb
from strata.api.tool_execution.v1 import tool_service_pb2 as tool_pb
from strata.protocol.errors import FailedPreconditionError, NotFoundError, Reason
from strata.shared.ids import new_id
from whole_system import System

pytestmark = pytest.mark.asyncio(loop_scope="session")


def asks(text: str = "May I?") -> Reply:
    """A reply with a call that needs approval and one that does not."""
    calls = (Call("conversation_search", {"query": "row"}), Call("memory_insert", INSERT))
    return Reply(text=text, reasoning="hm", calls=calls)


async def respond(
    system: System, asked: message_pb2.ApprovalRequestPart, **fields: Any
) -> RunEvents:
    [gated] = asked.tool_calls
    decision = message_pb2.ApprovalDecision(tool_call_id=gated.tool_call_id, **fields)
    request = run_pb.RespondToApprovalRequest(approval_id=asked.approval_id, decisions=[decision])
    return await RunStream(system.runs.RespondToApproval(request)).rest()


@pytest.mark.parametrize("model", ["openai/test-model", "anthropic/test-model"])
async def test_an_approved_call_runs_and_a_denied_one_does_not(system: System, model: str) -> None:
    agent = await system.make_agent(model, tool_rules=[GATE])
    system.model.script(asks(), say("Noted."), asks("Again?"), say("As you like."))
    ran = await system.send(agent, "I like rowing.")
    asked = ran.approval
    assert [tool_call.name for tool_call in asked.tool_calls] == ["memory_insert"]
    assert [waiting_call.name for waiting_call in asked.waiting_calls] == ["conversation_search"]
    assert all(bound.tool_version and bound.arguments_hash for bound in asked.bindings)
    assert ran.finished.usage.total_tokens == (await system.run(ran.run_id)).usage.total_tokens > 0
    assert roles(await system.log(agent)) == ["system", "user", "approval"]

    with pytest.raises(FailedPreconditionError) as raised:
        await system.send(agent, "Well?")
    assert raised.value.reason is Reason.APPROVAL_PENDING
    assert raised.value.metadata["approval_id"] == asked.approval_id

    assert (await respond(system, asked, approve=True)).text == "Noted."
    assert "Likes rowing." in (await system.block(agent, "human")).value
    listing = run_pb.ListApprovalsRequest(agent_id=agent.id)
    assert not (await system.runs.ListApprovals(listing)).approvals
    asked = (await system.send(agent, "I still do.")).approval
    [listed] = (await system.runs.ListApprovals(listing)).approvals
    assert listed.request == asked
    denied = await respond(system, asked, reason="You know it.")
    assert denied.text == "As you like."

    log = await system.log(agent)
    turn = ["user", "approval", "approval", "assistant", "tool", "assistant"]
    assert roles(log) == ["system", *turn, *turn]
    tool_returns = [part.tool_return for part in log[-2].parts]
    assert [tool_return.name for tool_return in tool_returns] == [
        "conversation_search",
        "memory_insert",
    ]
    assert "User reason: You know it." in tool_returns[1].content
    assert (await system.block(agent, "human")).value.count("Likes rowing.") == 1


async def test_an_approval_is_for_the_tool_as_it_was(system: System) -> None:
    name = f"pay_{new_id('x')[-8:].replace('-', '')}"

    async def put(text: str) -> None:
        source = f'def {name}() -> str:\n    """Pays."""\n    return "{text}"\n'
        request = tool_pb.UpsertToolRequest(source_code=source, default_requires_approval=True)
        await system.tools.UpsertTool(request)

    await put("paid")
    agent = await system.make_agent(tools=[name])
    system.model.script(call(name), say("Done."))
    asked = (await system.send(agent, "Pay.")).approval
    await put("paid twice")
    with pytest.raises(FailedPreconditionError) as raised:
        await respond(system, asked, approve=True)
    assert raised.value.reason is Reason.APPROVAL_OUTDATED
    assert raised.value.metadata["name"] == name
    await put("paid")
    ran = await respond(system, asked, approve=True)
    assert ran.text == "Done."
    tool_message = next(m for m in ran.messages if m.role == message_pb2.ROLE_TOOL)
    assert '"paid"' in tool_message.parts[0].tool_return.content


async def test_a_pending_approval_does_not_block_forks_and_compactions(system: System) -> None:
    agent = await system.make_agent(tool_rules=[GATE])
    replies = iter([asks()])
    system.model.respond(lambda _: next(replies, say("Hello.")))
    asked = (await system.send(agent, "I like rowing.")).approval

    fork = await system.agents.ForkConversation(
        agent_pb.ForkConversationRequest(conversation_id=agent.default_conversation_id)
    )
    ran = await system.send(agent, "Here?", conversation_id=fork.conversation.id)
    assert ran.text == "Hello."
    compacting = agent_pb.CompactConversationRequest(agent_id=agent.id)
    await system.agents.CompactConversation(compacting)
    await system.agents.UpdateAgent(
        agent_pb.UpdateAgentRequest(
            agent_id=agent.id,
            tools=agent_pb.NameList(names=["conversation_search"]),
            set_tool_rules=True,
        )
    )
    ran = await respond(system, asked, approve=True)
    assert ran.text == "Hello."
    assert (await system.block(agent, "human")).value == ""
    assert (await system.send(agent, "And here?")).text == "Hello."


async def test_messages_are_queued_behind_a_request_or_replace_the_answer(system: System) -> None:
    agent = await system.make_agent(tool_rules=[GATE])
    go_on = asyncio.Event()
    system.model.script(
        Reply(text="May I? " * 20, calls=asks().calls, held=go_on),
        say("Fine."),
        say("Third."),
    )
    first = system.begin(agent, "I like rowing.")
    await first.until("text_delta")
    queued = await system.runs.StartRun(
        run_pb.StartRunRequest(agent_id=agent.id, messages=[user_message("Third?")])
    )
    go_on.set()
    assert (await first.rest()).approval.tool_calls
    assert (await system.run(queued.run.id)).state == run_pb.RUN_STATE_QUEUED
    second = system.begin(agent, "Never mind.", on_approval=run_pb.ON_APPROVAL_DENY)
    texts = {(await second.rest()).text, (await system.follow(queued.run.id)).text}
    assert texts == {"Fine.", "Third."}
    assert (await system.block(agent, "human")).value == ""


async def test_a_queued_message_may_deny_the_request_that_comes_before_its_run_starts(
    system: System,
) -> None:
    agent = await system.make_agent(tool_rules=[GATE])
    go_on = asyncio.Event()
    system.model.script(
        Reply(text="May I? " * 20, calls=asks().calls, held=go_on), say("As you like.")
    )
    first = system.begin(agent, "I like rowing.")
    await first.until("text_delta")
    queued = await system.runs.StartRun(
        run_pb.StartRunRequest(
            agent_id=agent.id,
            messages=[user_message("Never mind.")],
            on_approval=run_pb.ON_APPROVAL_DENY,
        )
    )

    go_on.set()

    asked = (await first.rest()).approval
    assert (await system.follow(queued.run.id)).text == "As you like."
    stored = await system.runs.GetApproval(run_pb.GetApprovalRequest(approval_id=asked.approval_id))
    assert stored.approval.answer_run_id == queued.run.id
    assert (await system.block(agent, "human")).value == ""
    with pytest.raises(FailedPreconditionError) as raised:
        await respond(system, asked, approve=True)
    assert raised.value.reason is Reason.APPROVAL_DECIDED


async def test_an_answer_for_a_deleted_agent_is_an_error(system: System) -> None:
    agent = await system.make_agent(tool_rules=[GATE])
    system.model.script(call("memory_insert", INSERT))
    asked = (await system.send(agent, "I like rowing.")).approval
    pending = run_pb.ListApprovalsRequest(agent_id=agent.id)
    assert len((await system.runs.ListApprovals(pending)).approvals) == 1
    await system.agents.DeleteAgent(agent_pb.DeleteAgentRequest(agent_id=agent.id))
    assert (await system.runs.ListApprovals(pending)).approvals == []
    with pytest.raises(NotFoundError) as raised:
        await respond(system, asked, approve=True)
    # The gateway erases the approval some seconds after the end of its run.
    assert raised.value.reason in (Reason.AGENT_NOT_FOUND, Reason.APPROVAL_NOT_FOUND)
    asked.approval_id = new_id("approval")
    with pytest.raises(NotFoundError) as raised:
        await respond(system, asked)
    assert raised.value.reason is Reason.APPROVAL_NOT_FOUND
