"""Random histories, compacted through recall and read back from PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from histories import assert_answered, histories
from inner_services import InnerServices
from strata.agent_loop.clients.recall import RecallClient
from strata.agent_loop.compaction.compactor import Compactor
from strata.agent_loop.compaction.plan import Obstacle, plan
from strata.agent_loop.compaction.summarizer import Summarizer
from strata.agent_loop.context.requests import View
from strata.agent_loop.domain.agent.agents import Agent, CompactionSettings, ModelConfig
from strata.agent_loop.domain.conversation.messages import Message, SummaryPart, ToolReturn, Window
from strata.agent_loop.domain.model.chat import ToolCall
from strata.agent_loop.domain.ports import BoundModel
from strata.agent_loop.models.tokens import TokenEstimator
from strata.api.recall.v1 import message_service_pb2 as message_pb
from strata.shared.agent_types import AgentType
from strata.shared.clock import SystemClock
from strata.shared.ids import new_id
from strata.shared.messages import MessageRole

pytestmark = pytest.mark.asyncio(loop_scope="session")

VIEW = View(5000)
MODES = st.builds(
    CompactionSettings,
    mode=st.sampled_from(["", "sliding_window", "all"]),
    sliding_window_percentage=st.sampled_from([0.1, 0.5, 1.0]),
    clip_chars=st.sampled_from([0, 200, 5000]),
)
# From windows in which not even the newest message fits, to windows that hold most histories whole.
SPACES = st.floats(-500, 30_000)


class NoModels:
    """Has no model, so that an extract replaces the summary."""

    async def bind(
        self, config: ModelConfig, keys: Sequence[object] = (), *, as_fallback: bool = False
    ) -> BoundModel:
        raise AssertionError("no summarizer is named")


def stored_form(window: Sequence[Message], conversation: str, agent: str) -> list[Message]:
    """Converts a history into one that recall accepts: with unique ids and without summary."""
    return [
        replace(message, id=new_id("message"), conversation_id=conversation, agent_id=agent)
        for message in window
        if message.role is not MessageRole.SUMMARY
    ]


async def opened(
    running_services: InnerServices, recall: RecallClient, history: Sequence[Message]
) -> Window:
    """Stores a history, and pins its pinned messages, as a client does."""
    conversation, agent = new_id("conversation"), new_id("agent")
    messages = stored_form(history, conversation, agent)
    await recall.open_window(conversation, agent, messages)
    for message in messages:
        # Messages of approvals cannot be pinned.
        if message.pinned and message.role is not MessageRole.APPROVAL:
            request = message_pb.PinMessageRequest(message_id=message.id)
            await running_services.messages.PinMessage(request)
    return await recall.get_window(conversation)


async def expanded(running_services: InnerServices, window: Window) -> list[str]:
    """Returns the ids of the messages that the newest summary replaced, read page by page."""
    message_ids: list[str] = []
    start = 0
    while True:
        request = message_pb.ExpandSummaryRequest(
            conversation_id=window.conversation_id, from_sequence=start, page_size=3
        )
        page = await running_services.messages.ExpandSummary(request)
        message_ids += [message.id for message in page.messages]
        if not page.next_sequence:
            return message_ids
        assert page.next_sequence > start
        start = page.next_sequence


async def log_of(running_services: InnerServices, window: Window) -> list[str]:
    """Returns the ids of all messages of the conversation, without summaries."""
    request = message_pb.ListMessagesRequest(conversation_id=window.conversation_id, page_size=500)
    page = await running_services.messages.ListMessages(request)
    assert not page.next_page_token
    return [m.id for m in page.messages if not any(p.HasField("summary") for p in m.parts)]


def ids(messages: Sequence[Message]) -> list[str]:
    return [message.id for message in messages]


def body_of(window: Window) -> list[Message]:
    return [m for m in window.messages[1:] if m.role is not MessageRole.SUMMARY]


async def assert_sound(
    running_services: InnerServices, first: Window, now: Window, space: float
) -> None:
    """Asserts the invariants of a compacted window."""
    body = body_of(now)
    assert now.messages[0].id == first.messages[0].id, "the system message stays"
    assert [m.role for m in now.messages].count(MessageRole.SUMMARY) == 1
    assert now.messages[1].role is MessageRole.SUMMARY
    assert body == sorted(body, key=lambda m: m.sequence), "order is kept"
    assert_answered(VIEW.chats(body))
    calls = [p.id for m in body for p in m.parts if isinstance(p, ToolCall)]
    returned = [p.tool_call_id for m in body for p in m.parts if isinstance(p, ToolReturn)]
    assert sorted(calls) == sorted(returned), "pairs are whole"

    before = body_of(first)
    newest = [m.id for m in before if m.role is MessageRole.USER][-1]
    assert newest in ids(body), "the newest message of the user stays"
    assert {m.id for m in before if m.pinned} <= set(ids(body)), "pinned messages stay"

    evicted = [m.id for m in before if m.id not in ids(body)]
    assert set(ids(body)) <= set(ids(before)), "every message is either evicted or kept"
    assert sorted(await log_of(running_services, now)) == sorted(ids(first.messages)), (
        "nothing is deleted"
    )
    (part,) = now.messages[1].parts
    assert isinstance(part, SummaryPart)
    assert part.message_count == len(evicted)
    assert (part.first_message_id, part.last_message_id) == (evicted[0], evicted[-1])
    inputs = {m.id for m in before if m.role is MessageRole.SYSTEM}
    assert set(evicted) - inputs <= set(await expanded(running_services, now)), (
        "each message can be read again"
    )

    size = VIEW.size(now.messages[1:])
    left = plan(now.messages, VIEW, space, CompactionSettings())
    assert size <= space or isinstance(left, Obstacle), (
        "the window fits, or no more messages can be evicted"
    )


@settings(max_examples=25)
@given(
    history=histories(most=200, huge=4_000),
    chosen=MODES,
    space=SPACES,
    tighter=st.floats(0.1, 0.9),
)
async def test_stored_window_is_valid_for_any_history(
    running_services: InnerServices,
    history: list[Message],
    chosen: CompactionSettings,
    space: float,
    tighter: float,
) -> None:
    with running_services.signed_in():
        recall = RecallClient(running_services.channel("recall"))
        first = await opened(running_services, recall, history)
        agent = Agent(first.agent_id, "a", AgentType.LETTA_V1, "Base.", compaction=chosen)
        summarizer = Summarizer(NoModels(), TokenEstimator(), agent, None)
        compactor = Compactor(agent, summarizer, recall, SystemClock())
        now = first
        # The second time there is an earlier summary, which the new one includes.
        for limit in (space, space * tighter):
            done = await compactor.compact(now, VIEW, limit, None)
            if done is None:
                continue
            now = await recall.get_window(first.conversation_id)
            assert now == done.window
            await assert_sound(running_services, first, now, limit)
