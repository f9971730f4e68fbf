"""What callers ask of agents, checked and complete."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from strata.agent_loop.domain.agents import Agent, AgentPatch
from strata.agent_loop.domain.messages import MessageInput
from strata.agent_loop.domain.store import RequestKey


@dataclass(frozen=True, slots=True)
class CreateAgent:
    """Create an agent.

    Attributes:
        agent: As it shall be; with the id that it gets if the request is a new one.
        blocks: Blocks to make, in the contract's form: core memory checks them.
        block_ids: Blocks to share.
        initial_messages: What stands in the window after the system message; None for the
            first messages of the type.
        request: Recognises a repetition.
        enable_sleeptime: It gets a memory agent.
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
    request: RequestKey


@dataclass(frozen=True, slots=True)
class ForkConversation:
    """Start a conversation with the window of another as it was at a message.

    Attributes:
        conversation_id: The other one.
        until_message_id: The message; empty for the newest.
    """

    conversation_id: str
    until_message_id: str
    title: str
    request: RequestKey
