"""Where agents and conversations are kept, as a protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from strata.agent_loop.domain.agents import (
    Agent,
    AgentPatch,
    Conversation,
    StoredAgent,
)


@dataclass(frozen=True, slots=True)
class RequestKey:
    """What makes a mutation recognisable when it comes again.

    Attributes:
        id: The caller's request id; empty if it gave none.
        payload_hash: Digest of the method and everything else that was asked.
    """

    id: str = ""
    payload_hash: str = ""


class AgentStore(Protocol):
    """Agents and conversations of the calling project.

    Lists give up to ``limit`` rows after the id ``after``, in order of ids.
    """

    async def insert(self, agent: Agent, request: RequestKey) -> StoredAgent:
        """Notes that an agent is being created, with its default conversation.

        Returns the agent of an earlier request with this id instead, if there is one.

        Raises:
            AlreadyExistsError: REQUEST_ID_REUSED; NAME_TAKEN by an agent that `by_name` finds.
        """
        ...

    async def activate(self, agent_id: str, memory_agent_id: str = "") -> Agent:
        """Ends the creation of an agent, and of its memory agent in the same transaction.

        Raises:
            NotFoundError: AGENT_NOT_FOUND.
        """
        ...

    async def get(self, agent_id: str) -> StoredAgent:
        """Returns an agent in any state.

        Raises:
            NotFoundError: AGENT_NOT_FOUND.
        """
        ...

    async def by_name(self, name: str) -> StoredAgent:
        """Returns the agent of that name, in any state.

        Raises:
            NotFoundError: AGENT_NOT_FOUND.
        """
        ...

    async def memory_agent_of(self, agent_id: str) -> StoredAgent | None:
        """Returns the memory agent of an agent, in any state; None if there is none."""
        ...

    async def renew_creation(self, agent: Agent) -> Agent | None:
        """Gives an agent in creation the settings of another call that goes on with it.

        Its revision rises: the call that renewed it last is the one that may abandon it.

        Returns:
            The agent; None if it is not in creation any more.
        """
        ...

    async def abandon_creation(self, agent_id: str, revision: int) -> bool:
        """Hides an agent in creation for good, unless another call goes on with it.

        Args:
            agent_id: The agent.
            revision: Its revision as the calling one knows it.

        Returns:
            Whether it was hidden.
        """
        ...

    async def load(self, agent_id: str, conversation_id: str) -> Agent:
        """Returns the active agent of a conversation and its model keys, with one statement.

        Raises:
            NotFoundError: AGENT_NOT_FOUND, CONVERSATION_NOT_FOUND.
        """
        ...

    async def page(
        self, tags: Sequence[str], name_contains: str, limit: int, after: str
    ) -> Sequence[Agent]:
        """Lists active agents that have all the tags and the text in their names."""
        ...

    async def known_agent(self, request: RequestKey) -> Agent | None:
        """Returns the agent as an earlier request with this id changed it.

        Raises:
            AlreadyExistsError: REQUEST_ID_REUSED.
        """
        ...

    async def update(self, patch: AgentPatch, request: RequestKey) -> Agent:
        """Changes an active agent; a repeated request gets the first one's answer.

        In the same transaction the creation of a new memory agent ends, and a memory agent that
        is taken away is hidden for good.

        Raises:
            NotFoundError: AGENT_NOT_FOUND.
            AbortedError: REVISION_MISMATCH.
            AlreadyExistsError: NAME_TAKEN, REQUEST_ID_REUSED.
        """
        ...

    async def begin_deletion(self, agent_id: str) -> Sequence[str]:
        """Hides an agent and its memory agent for good. Repeating it is harmless.

        An agent whose memory agent is hidden has none any more.

        Returns:
            The ids of what was hidden.

        Raises:
            NotFoundError: AGENT_NOT_FOUND.
        """
        ...

    async def remove(self, agent_ids: Sequence[str]) -> None:
        """Deletes the rows of agents. Nothing to delete is success."""
        ...

    async def known_conversation(self, request: RequestKey) -> Conversation | None:
        """Returns the conversation that an earlier request with this id made.

        Raises:
            AlreadyExistsError: REQUEST_ID_REUSED.
        """
        ...

    async def insert_conversation(
        self, conversation: Conversation, request: RequestKey
    ) -> Conversation:
        """Stores a conversation; a repeated request gets the first one's answer.

        Raises:
            NotFoundError: AGENT_NOT_FOUND.
            AlreadyExistsError: REQUEST_ID_REUSED.
        """
        ...

    async def conversation(self, conversation_id: str) -> Conversation:
        """Returns a conversation of an active agent.

        Raises:
            NotFoundError: CONVERSATION_NOT_FOUND.
        """
        ...

    async def conversations(self, agent_id: str, limit: int, after: str) -> Sequence[Conversation]:
        """Lists the conversations of an agent.

        Raises:
            NotFoundError: AGENT_NOT_FOUND.
        """
        ...
