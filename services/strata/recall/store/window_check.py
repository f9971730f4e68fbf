"""Checks that agents and conversations exist: each has a window."""

from __future__ import annotations

from strata.protocol.errors import NotFoundError, Reason
from strata.shared.db import Database, sql

_OF_AGENT = sql(
    "SELECT 1 FROM recall.windows WHERE project_id = :project AND agent_id = :agent LIMIT 1"
)
_OF_CONVERSATION = sql(
    "SELECT agent_id FROM recall.windows"
    " WHERE project_id = :project AND conversation_id = :conversation"
)


async def check_windows(database: Database, agent_id: str, conversation_id: str) -> None:
    """Refuses an agent or a conversation that does not exist; one statement.

    Args:
        database: The database of recall.
        agent_id: The agent; empty for any.
        conversation_id: The conversation, of this agent if there is one; empty for any.

    Raises:
        NotFoundError: ``AGENT_NOT_FOUND``, ``CONVERSATION_NOT_FOUND``.
    """
    if conversation_id:
        rows = await database.query(_OF_CONVERSATION, conversation=conversation_id)
        if not rows or agent_id not in ("", rows[0].agent_id):
            raise NotFoundError(
                f"There is no conversation {conversation_id}"
                + (f" of agent {agent_id}." if agent_id else "."),
                reason=Reason.CONVERSATION_NOT_FOUND,
                metadata={"id": conversation_id},
            )
    elif agent_id and not await database.query(_OF_AGENT, agent=agent_id):
        raise missing_agent(agent_id)


def missing_agent(agent_id: str) -> NotFoundError:
    """Returns the error for an agent that the project does not have."""
    return NotFoundError(
        f"There is no agent {agent_id}.",
        reason=Reason.AGENT_NOT_FOUND,
        metadata={"id": agent_id},
    )
