"""Turns of two replicas of the agent loop, each of which holds windows of earlier turns."""

from __future__ import annotations

from typing import Any

import pytest

from inner_services import InnerServices
from strata.agent_loop.clients.recall import RecallClient
from strata.agent_loop.domain.conversation.messages import Message, SummaryPart, Window
from strata.agent_loop.domain.model.chat import TextPart
from strata.agent_loop.domain.ports import StepCommit, WindowSwap
from strata.agent_loop.domain.run.journal import JournalKey
from strata.api.recall.v1 import message_service_pb2 as message_pb
from strata.shared.ids import new_id
from strata.shared.messages import MessageRole

pytestmark = pytest.mark.asyncio(loop_scope="session")


def message(role: MessageRole, text: str, **fields: Any) -> Message:
    return Message(new_id("message"), role, (TextPart(text),), **fields)


class Replica:
    """Runs turns in a conversation."""

    def __init__(self, services: InnerServices, conversation: str, agent: str) -> None:
        self._services = services
        self._place = (conversation, agent)
        self.recall = RecallClient(services.channel("recall"))

    async def turn(self, text: str, *, system_text: str | None = None) -> Window:
        """Runs a turn of one step; returns the window at its start."""
        key = JournalKey(*self._place, new_id("run"), 1)
        asked = message(MessageRole.USER, text, run_id=key.run_id)
        begun = await self.recall.begin_turn(key, [asked])
        assert begun.window == await self.recall.get_window(key.conversation_id)
        step_id = new_id("step")
        reply = message(MessageRole.ASSISTANT, f"on {text}", run_id=key.run_id, step_id=step_id)
        await self.recall.commit_step(StepCommit(key, 1, step_id, [reply], system_text))
        return begun.window

    async def compact(self, kept: int) -> None:
        """Replaces all messages but the last ones, and pinned ones, by a summary."""
        window = await self.recall.get_window(self._place[0])
        left = [m for m in window.messages[1:] if m.pinned or m in window.messages[-kept:]]
        gone = [m for m in window.messages[1:] if m not in left]
        part = SummaryPart(
            "summary", gone[0].sequence, gone[-1].sequence, len(gone), gone[0].id, gone[-1].id
        )
        summary = Message(new_id("message"), MessageRole.SUMMARY, (part,))
        kept_ids = tuple(message.id for message in left)
        await self.recall.swap_window(
            WindowSwap(window.conversation_id, None, window.revision, summary, kept_ids)
        )

    async def pin(self, message_id: str) -> None:
        await self._services.messages.PinMessage(
            message_pb.PinMessageRequest(message_id=message_id)
        )


async def test_each_replica_has_the_whole_window_after_turns_of_the_other(
    running_services: InnerServices,
) -> None:
    conversation, agent = new_id("conversation"), new_id("agent")
    with running_services.signed_in():
        one, two = (Replica(running_services, conversation, agent) for _ in range(2))
        system = message(MessageRole.SYSTEM, "Remember.")
        await one.recall.open_window(conversation, agent, [system])
        await one.turn("first")
        await two.turn("second", system_text="A new text.")
        third = await one.turn("third")
        assert [m.text for m in third.messages] == [
            *("A new text.", "first", "on first", "second", "on second", "third"),
        ]
        await two.pin(third.messages[1].id)
        assert (await one.turn("fourth")).messages[1].pinned
        await one.compact(kept=4)
        assert len((await two.turn("fifth")).messages) == 8  # system, summary, pinned, 4, asked
        await one.turn("sixth")
