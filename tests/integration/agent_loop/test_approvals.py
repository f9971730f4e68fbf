"""Approved calls on real services with the real journal and ledger, where processes die."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chat_messages import roles
from doubles.script import Reply, say
from inner_services import InnerServices
from mortal_loop import Died, Mortal, human, remember
from strata.agent_loop.domain.conversation.approvals import ApprovalResponse, Decision
from strata.agent_loop.domain.run.events import ApprovalRequested
from strata.agent_loop.domain.run.runs import RunRequest
from strata.agent_loop.domain.tools import CallFinished, ToolEvent
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.common.v1 import message_pb2, tool_pb2
from strata.api.recall.v1.message_service_pb2 import PinMessageRequest, UnpinMessageRequest
from strata.protocol.errors import InvalidArgumentError
from strata.shared.ids import new_id
from strata.shared.stop_reasons import StopReason

pytestmark = pytest.mark.asyncio(loop_scope="session")

GATE = tool_pb2.ToolRule(type=tool_pb2.TOOL_RULE_TYPE_REQUIRES_APPROVAL, tool_name="memory_insert")


async def asked(services: InnerServices, mortal: Mortal, agent: agent_pb.Agent) -> RunRequest:
    """Runs a turn that requests approval of two calls; returns a run that approves one of them."""
    services.model.script(Reply(calls=(remember("one"), remember("two"))), say("Noted."))
    mortal.tools.at = lambda _event: None
    request = mortal.request(agent, "Remember both.")
    first, again = [await mortal.run(replace(request, attempt=n)) for n in (1, 2)]
    requests = [e.request for e in first.events if isinstance(e, ApprovalRequested)]
    # A late dispatch reports the same, and sends no request to a model.
    assert requests == [e.request for e in again.events if isinstance(e, ApprovalRequested)]
    assert len(services.model.requests) == 1
    assert again.stop_reason is StopReason.REQUIRES_APPROVAL
    assert roles((await services.window(agent)).messages) == ["system", "user", "approval"]
    yes, no = requests[0].tool_calls
    decisions = (Decision(yes.id, approve=True), Decision(no.id, reason="No."))
    answer = ApprovalResponse(requests[0].approval_id, decisions)
    return replace(request, run_id=new_id("run"), inputs=(), approval=answer)


async def test_the_answer_to_an_approval_does_not_clear_the_window(
    services: InnerServices, mortal: Mortal
) -> None:
    agent = await services.make_agent(tool_rules=[GATE], message_buffer_autoclear=True)
    sink = await mortal.run(await asked(services, mortal, agent))
    assert sink.stop_reason is StopReason.END_TURN
    assert await human(services, agent) == "one"
    turn = ["user", "approval", "approval", "assistant", "tool", "assistant"]
    assert roles((await services.window(agent)).messages) == ["system", *turn]


async def test_messages_of_an_answered_request_are_pinned_as_a_step(
    services: InnerServices, mortal: Mortal
) -> None:
    agent = await services.make_agent(tool_rules=[GATE])
    await mortal.run(await asked(services, mortal, agent))
    messages = (await services.window(agent)).messages
    for approval in (message for message in messages if message.role == message_pb2.ROLE_APPROVAL):
        with pytest.raises(InvalidArgumentError, match="pin the reply that is stored"):
            await services.messages.PinMessage(PinMessageRequest(message_id=approval.id))
        await services.messages.UnpinMessage(UnpinMessageRequest(message_id=approval.id))
    [reply] = (m for m in messages if any(part.HasField("tool_call") for part in m.parts))
    await services.messages.PinMessage(PinMessageRequest(message_id=reply.id))
    assert (await services.window(agent)).messages[4].pinned


@pytest.mark.parametrize("at", ["start", "end", "both"])
async def test_an_approved_call_takes_effect_once_after_a_crash_at_any_point(
    services: InnerServices, mortal: Mortal, at: str
) -> None:
    agent = await services.make_agent(tool_rules=[GATE])
    request = await asked(services, mortal, agent)
    deaths = {"start": [False], "end": [True], "both": [False, True]}[at]
    for attempt, ended in enumerate(deaths, 1):

        def die(event: ToolEvent, ended: bool = ended) -> None:
            if isinstance(event, CallFinished) is ended:
                raise Died

        mortal.tools.at = die
        with pytest.raises(Died):
            await mortal.run(replace(request, attempt=attempt))
    mortal.tools.at = lambda _event: None
    sink = await mortal.run(replace(request, attempt=len(deaths) + 1))

    assert sink.stop_reason is StopReason.END_TURN
    assert await human(services, agent) == "one"
    messages = (await services.window(agent)).messages
    turn = ["user", "approval", "approval", "assistant", "tool", "assistant"]
    assert roles(messages) == ["system", *turn]
    contents = [part.tool_return.content for part in messages[5].parts]
    assert "User reason: No." in contents[1]
    assert len(services.model.requests) == 2
