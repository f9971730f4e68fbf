"""Previews of compactions through the real services, compared with the compactions."""

from __future__ import annotations

from typing import Any

import pytest

from doubles.script import say
from inner_services import InnerServices
from strata.api.agent_loop.v1 import agent_service_pb2 as pb
from strata.api.common.v1 import message_pb2
from strata.api.recall.v1 import message_service_pb2 as message_pb
from strata.protocol.errors import InvalidArgumentError, NotFoundError, Reason
from strata.shared.ids import new_id

pytestmark = pytest.mark.asyncio(loop_scope="session")

ALL = pb.CompactionSettings(mode="all")
HALF = pb.CompactionSettings(mode="sliding_window", sliding_window_percentage=0.5, clip_chars=200)


async def talked(services: InnerServices, turns: int, **fields: Any) -> pb.Agent:
    agent = await services.make_agent(**fields)
    for number in range(turns):
        services.model.script(say(f"Answer {number}. " + "x" * 400))
        await services.run(agent, f"Question {number}. " + "y" * 400)
    return agent


async def preview(
    services: InnerServices, agent: pb.Agent, **fields: Any
) -> pb.PreviewCompactionResponse:
    request = pb.PreviewCompactionRequest(agent_id=agent.id, **fields)
    return await services.agents.PreviewCompaction(request)


def ids_of(response: pb.PreviewCompactionResponse, *outcomes: Any) -> list[str]:
    return [m.message_id for m in response.messages if m.outcome in outcomes]


async def compared(services: InnerServices, agent: pb.Agent, settings: Any) -> None:
    """Compacts a window, and compares the result with the preview."""
    before = (await services.window(agent)).messages
    requests = len(services.model.requests)
    shown = await preview(services, agent, compaction=settings)
    assert len(services.model.requests) == requests, "no request is sent to a model"
    assert (await services.window(agent)).messages == before, "nothing is changed"

    services.model.script(say("- What was said."))
    done = await services.agents.CompactConversation(
        pb.CompactConversationRequest(agent_id=agent.id, compaction=settings)
    )

    after = {message.id for message in (await services.window(agent)).messages}
    gone = [message for message in before if message.id not in after]
    summaries = [m.id for m in gone if m.role == message_pb2.ROLE_SUMMARY]
    others = [m.id for m in gone if m.role != message_pb2.ROLE_SUMMARY]
    assert others
    assert shown.obstacle == pb.COMPACTION_OBSTACLE_UNSPECIFIED
    assert ids_of(shown, pb.COMPACTION_OUTCOME_SUMMARIZED) == others
    assert ids_of(shown, pb.COMPACTION_OUTCOME_REPLACED) == summaries
    kept = [message.id for message in before[1:] if message.id in after]
    assert ids_of(shown, pb.COMPACTION_OUTCOME_KEPT) == kept
    assert shown.summarized.message_count == len(others)
    assert shown.tokens_before == done.tokens_before
    assert shown.tokens_kept < done.tokens_after < shown.tokens_before


async def test_the_preview_equals_the_compaction_on_request(services: InnerServices) -> None:
    agent = await talked(services, 8)
    pinned = (await services.window(agent)).messages[4]
    await services.messages.PinMessage(message_pb.PinMessageRequest(message_id=pinned.id))
    await compared(services, agent, HALF)
    # Now there is an earlier summary.
    shown = await preview(services, agent, compaction=ALL)
    assert shown.mode == "all"
    assert shown.replaced.message_count == 1
    assert pinned.id in ids_of(shown, pb.COMPACTION_OUTCOME_KEPT)
    assert [m.excerpt for m in shown.messages if m.message_id == pinned.id] == [
        "Answer 1. " + "x" * 109 + "…"
    ]
    await compared(services, agent, ALL)
    nothing = await preview(services, agent)
    assert nothing.obstacle == pb.COMPACTION_OBSTACLE_OLDER_MESSAGES_PINNED
    assert nothing.mode == "sliding_window"
    later = await preview(services, agent, trigger=pb.COMPACTION_TRIGGER_NEXT_TURN)
    assert later.obstacle == pb.COMPACTION_OBSTACLE_WINDOW_NOT_FULL


async def test_the_preview_equals_the_compaction_of_the_next_turn(services: InnerServices) -> None:
    agent = await talked(services, 16)
    small = pb.ModelConfig(handle="test/test-model", context_window=4096)
    await services.agents.UpdateAgent(
        pb.UpdateAgentRequest(agent_id=agent.id, model=small, compaction=ALL)
    )
    window = await services.agents.GetContextWindow(pb.GetContextWindowRequest(agent_id=agent.id))
    assert window.compaction_due
    before = (await services.window(agent)).messages
    for settings in (pb.CompactionSettings(mode="sliding_window"), ALL):
        shown = await preview(
            services,
            agent,
            compaction=settings,
            trigger=pb.COMPACTION_TRIGGER_NEXT_TURN,
        )
        assert shown.summarized.message_count > 0
    assert shown.kept.message_count == 0, "the input begins another exchange"

    services.model.respond(lambda call: say("Fine." if "tools" in call.body else "- Talk."))
    await services.run(agent, "On.")

    after = {message.id for message in (await services.window(agent)).messages}
    gone = [m.id for m in before[1:] if m.id not in after]
    leaving = (pb.COMPACTION_OUTCOME_SUMMARIZED, pb.COMPACTION_OUTCOME_REPLACED)
    assert ids_of(shown, *leaving) == gone


async def test_a_preview_without_compaction_has_the_obstacle(services: InnerServices) -> None:
    agent = await talked(services, 1)
    shown = await preview(services, agent)
    assert shown.obstacle == pb.COMPACTION_OBSTACLE_NO_OLDER_EXCHANGE
    assert shown.kept.message_count == len(shown.messages) == 2
    assert shown.tokens_before == shown.tokens_kept
    clearing = await talked(services, 1, message_buffer_autoclear=True)
    shown = await preview(services, clearing, trigger=pb.COMPACTION_TRIGGER_NEXT_TURN)
    assert shown.obstacle == pb.COMPACTION_OBSTACLE_WINDOW_IS_CLEARED


async def test_wrong_requests_for_a_preview_are_refused(services: InnerServices) -> None:
    agent = await services.make_agent()
    with pytest.raises(NotFoundError) as missing:
        await preview(services, agent, conversation_id=new_id("conversation"))
    assert missing.value.reason is Reason.CONVERSATION_NOT_FOUND
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"compaction": pb.CompactionSettings(mode="half")}, "compaction.mode"),
        ({"trigger": 99}, "trigger"),
        ({"conversation_id": "conversation-1"}, "conversation_id"),
    ]
    for fields, field in wrong:
        with pytest.raises(InvalidArgumentError) as refused:
            await preview(services, agent, **fields)
        assert [violation.field for violation in refused.value.violations] == [field]
