"""Commands on agents and conversations: validated requests with defaults filled in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from strata.agent_loop.domain.agent.agents import Agent, AgentPatch
from strata.agent_loop.domain.conversation.messages import MessageInput
from strata.shared.idempotency.keys import RequestKey


@dataclass(frozen=True, slots=True)
class CreateAgent:
    """Create an agent.

    Attributes:
        agent: The agent to create. Its id is used unless the request is a repetition.
        blocks: Memory blocks to create, as protos; core memory validates them.
        block_ids: Ids of existing blocks to attach.
        initial_messages: Messages of the window after the system message; None for the first
            messages of the type.
        request: Identifies repetitions of the request.
        enable_sleeptime: Whether to create a memory agent for it.
    """

    agent: Agent
    blocks: Sequence[Any]
    block_ids: Sequence[str]
    initial_messages: Sequence[MessageInput] | None
    request: RequestKey
    enable_sleeptime: bool = False


@dataclass(frozen=True, slots=True)
class UpdateAgent:
    """Change an agent."""

    patch: AgentPatch
    request: RequestKey


@dataclass(frozen=True, slots=True)
class CreateConversation:
    """Start a conversation."""

    agent_id: str
    title: str
    external_id: str
    request: RequestKey


@dataclass(frozen=True, slots=True)
class ForkConversation:
    """Start a conversation with a copy of another one's window up to a message.

    Attributes:
        conversation_id: The conversation to copy.
        until_message_id: The last message to copy; empty for the newest.
    """

    conversation_id: str
    until_message_id: str
    title: str
    request: RequestKey
