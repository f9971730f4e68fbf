"""The protocol of the store of agents and conversations."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

from strata.agent_loop.domain.agent.agents import (
    Agent,
    AgentFilter,
    AgentPatch,
    Conversation,
    ListedAgent,
    StoredAgent,
)
from strata.shared.idempotency.keys import RequestKey


class AgentStore(Protocol):
    """Agents and conversations of the calling project.

    Lists return up to ``limit`` rows after the id ``after``, ordered by id.
    """

    async def insert(self, agent: Agent, request: RequestKey) -> StoredAgent:
        """Stores an agent in creation, with its default conversation.

        If there was an earlier request with this id, returns its agent instead, whose creation
        counts as continued.

        Raises:
            AlreadyExistsError: REQUEST_ID_REUSED; NAME_TAKEN by an agent that `by_name` finds.
        """
        ...

    async def activate(self, agent_id: str, memory_agent_id: str = "") -> Agent:
        """Activates an agent in creation, and its memory agent in the same transaction.

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
        """Gives an agent in creation the settings of a call that continues its creation.

        Its revision rises: only the call that renewed it last may abandon it.

        Returns:
            The agent; None if it is no longer in creation.
        """
        ...

    async def abandon_creation(self, agent_id: str, revision: int) -> bool:
        """Hides an agent in creation permanently, unless another call continues its creation.

        Args:
            agent_id: The agent.
            revision: The revision that the caller has read.

        Returns:
            Whether it was hidden.
        """
        ...

    async def load(self, agent_id: str, conversation_id: str) -> Agent:
        """Returns the active agent of a conversation and its model keys, in one statement.

        Raises:
            NotFoundError: AGENT_NOT_FOUND, CONVERSATION_NOT_FOUND.
        """
        ...

    async def page(self, agent_filter: AgentFilter, limit: int, after: str) -> Sequence[Agent]:
        """Lists active agents."""
        ...

    async def names(
        self, agent_filter: AgentFilter, limit: int, after: str
    ) -> Sequence[ListedAgent]:
        """Lists the names of the agents that `page` lists, for a fraction of the time."""
        ...

    async def known_agent(self, request: RequestKey) -> Agent | None:
        """Returns the agent after the change of an earlier request with this id; None if none.

        Raises:
            AlreadyExistsError: REQUEST_ID_REUSED.
        """
        ...

    async def update(self, patch: AgentPatch, request: RequestKey) -> Agent:
        """Changes an active agent; a repetition gets the answer to the first request.

        In the same transaction a new memory agent is activated, and a removed memory agent is
        hidden permanently.

        Raises:
            NotFoundError: AGENT_NOT_FOUND.
            AbortedError: REVISION_MISMATCH.
            AlreadyExistsError: NAME_TAKEN, REQUEST_ID_REUSED.
        """
        ...

    async def begin_deletion(self, agent_id: str) -> Sequence[str]:
        """Hides an agent and its memory agent permanently. Repeating it is harmless.

        If a memory agent is hidden, its agent no longer has a memory agent.

        Returns:
            The ids of the hidden agents.

        Raises:
            NotFoundError: AGENT_NOT_FOUND.
        """
        ...

    async def hide_unfinished(self, age: timedelta) -> Sequence[str]:
        """Hides agents in creation permanently, if no call has continued their creation for a time.

        Args:
            age: That time.

        Returns:
            The ids of all agents in deletion, these included.
        """
        ...

    async def remove(self, agent_ids: Sequence[str]) -> None:
        """Deletes the rows of agents; missing rows are ignored."""
        ...

    async def known_conversation(self, request: RequestKey) -> Conversation | None:
        """Returns the conversation of an earlier request with this id; None if none.

        Raises:
            AlreadyExistsError: REQUEST_ID_REUSED.
        """
        ...

    async def insert_conversation(
        self, conversation: Conversation, request: RequestKey
    ) -> Conversation:
        """Stores a conversation; a repetition gets the answer to the first request.

        Raises:
            NotFoundError: AGENT_NOT_FOUND.
            AlreadyExistsError: REQUEST_ID_REUSED; NAME_TAKEN: the agent has a conversation with
                the same external id.
        """
        ...

    async def conversation(self, conversation_id: str) -> Conversation:
        """Returns a conversation of an active agent.

        Raises:
            NotFoundError: CONVERSATION_NOT_FOUND.
        """
        ...

    async def external_conversation(self, agent_id: str, external_id: str) -> Conversation:
        """Returns a conversation of an active agent by its external id.

        Raises:
            NotFoundError: CONVERSATION_NOT_FOUND.
        """
        ...

    async def conversations(
        self, agent_id: str, limit: int, after: str, title: str = ""
    ) -> Sequence[Conversation]:
        """Lists the conversations of an agent, only those with a title if it is given.

        Raises:
            NotFoundError: AGENT_NOT_FOUND.
        """
        ...
