"""Turns of the loop over ports in memory."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from strata.agent_loop.domain.agent.agents import Agent
from strata.agent_loop.domain.conversation.messages import Message, MessageInput
from strata.agent_loop.domain.model.chat import ModelReply, ModelSettings, TextPart, ToolCall
from strata.agent_loop.domain.run.runs import RunRequest
from strata.agent_loop.loop.turn import Turn
from strata.agent_loop.loop.turn_ports import Ports
from strata.agent_loop.models.tokens import TokenEstimator
from strata.agent_loop.prompts.system_message import Metadata, assemble
from strata.shared.agent_types import AgentType
from strata.shared.clock import ManualClock
from strata.shared.ids import new_id
from strata.shared.messages import MessageRole
from unit.agent_loop.loop.in_memory_ports import (
    Agents,
    Archival,
    Memory,
    Model,
    Models,
    Recall,
    Sink,
    Tools,
)
from unit.agent_loop.loop.journals import Fate, Journal
from unit.agent_loop.loop.model_replies import reply


@dataclass
class LoopHarness:
    """An agent loop with in-memory ports."""

    window_tokens: int = 32_000
    fate: Fate = field(default_factory=Fate)
    clock: ManualClock = field(default_factory=ManualClock)

    def __post_init__(self) -> None:
        self.agent = Agent(
            id=new_id("agent"),
            name="a",
            type=AgentType.LETTA_V1,
            system="Base.",
            tools=("keyed", "reads", "acts", "edits", "files", "blocks"),
        )
        self.memory = Memory(self.fate)
        metadata = Metadata(self.clock.now(), "UTC", None, 0)
        system = assemble(self.agent.system, self.memory.text, metadata)
        self.recall = Recall(self.agent, system, self.fate)
        self.recall.now = self.clock.now
        self.journal = Journal(self.fate)
        self.model = Model(self.fate)
        self.tools = Tools(self.fate, self.clock)
        self.archival = Archival()
        settings = ModelSettings("test/model", "openai", "model", context_window=self.window_tokens)
        self.models = Models(self.model, settings)
        self.ports = Ports(
            agents=Agents(self.agent),
            memory=self.memory,
            recall=self.recall,
            tools=self.tools,
            archival=self.archival,
            journal=self.journal,
            models=self.models,
            tokens=TokenEstimator(),
            clock=self.clock,
        )
        self._numbers = itertools.count(1)

    def request(self, text: str = "Hi.", **fields: Any) -> RunRequest:
        """Returns a run with a user message."""
        fields.setdefault("run_id", new_id("run"))
        fields.setdefault("attempt", 1)
        inputs = [MessageInput(MessageRole.USER, (TextPart(text),))] if text else []
        return RunRequest(
            agent_id=self.agent.id,
            conversation_id=self.agent.default_conversation_id,
            inputs=inputs,
            **fields,
        )

    async def run(self, request: RunRequest | None = None, *replies: Any) -> Sink:
        """Runs a turn."""
        self.model.replies.extend(replies)
        sink = Sink()
        await Turn(self.ports, request or self.request(), sink).run()
        return sink

    def calls(self, *names: str, **fields: Any) -> ModelReply:
        """Returns a reply that calls tools, each with a unique id."""
        calls = tuple(ToolCall(f"call_{next(self._numbers)}", name, "{}") for name in names)
        return replace(reply("", **fields), tool_calls=calls)


def assert_pairs_are_whole(messages: Sequence[Message]) -> None:
    """Asserts that calls are directly followed by all their returns, in order."""
    for message, following in itertools.pairwise([*messages, None]):
        if message is not None and message.tool_calls:
            assert following is not None
            asked = [call.id for call in message.tool_calls]
            assert [tool_return.tool_call_id for tool_return in following.tool_returns] == asked
        if following is not None and following.tool_returns:
            assert message is not None and message.tool_calls  # noqa: PT018


def roles(harness: LoopHarness) -> list[str]:
    """Returns the roles of all stored messages."""
    return [message.role.value for message in harness.recall.messages]


def content(harness: LoopHarness, message: int, part: int = 0) -> str:
    """Returns what a stored tool return reports to the model."""
    packed = harness.recall.messages[message].tool_returns[part].content
    return str(json.loads(packed)["message"])


async def stop_turn(harness: LoopHarness, request: RunRequest, reached: asyncio.Event) -> None:
    """Begins a turn, and stops it as the end of its process does when it has reached a point."""
    turn = asyncio.create_task(Turn(harness.ports, request, Sink()).run())
    await reached.wait()
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
