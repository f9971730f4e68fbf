"""Agents by id, by name, or as a call returned them."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import TypeAlias

import grpc.aio

from strata.api.agent_loop.v1.agent_service_pb2 import Agent, GetAgentRequest
from strata.api.agent_loop.v1.agent_service_pb2_grpc import AgentServiceStub
from strata.client.calls.arguments import refuse_text

AgentReference: TypeAlias = str | Agent
"""An agent: its id, its name, or the agent as a call returned it."""


class AgentLookup(AgentServiceStub):
    """Look-up of agents."""

    async def get(self, agent_id: AgentReference) -> Agent:
        """Returns an agent.

        Args:
            agent_id: Its id, its name, or the agent as a call returned it, which is read again.

        Raises:
            NotFoundError: There is none (``AGENT_NOT_FOUND``).
        """
        if isinstance(agent_id, Agent):
            agent_id = agent_id.id
        by_id = is_agent_id(agent_id)
        request = GetAgentRequest(
            agent_id=agent_id if by_id else "", name="" if by_id else agent_id
        )
        response = await self.GetAgent(request)
        return response.agent


async def agent_id_of(channel: grpc.aio.Channel, agent: AgentReference) -> str:
    """Returns the id of an agent; only a name is looked up, by a separate call.

    Args:
        channel: Channel to the gateway.
        agent: The agent; empty for none.

    Raises:
        NotFoundError: There is no agent of that name (``AGENT_NOT_FOUND``).
    """
    if isinstance(agent, Agent):
        return agent.id
    if not agent or is_agent_id(agent):
        return agent
    return (await AgentLookup(channel).get(agent)).id


async def agent_ids_of(
    channel: grpc.aio.Channel, agents: Iterable[AgentReference], field: str
) -> list[str]:
    """Returns the ids of agents, see `agent_id_of`.

    Raises:
        InvalidArgumentError: It is one text and not a list.
        NotFoundError: There is no agent of a name (``AGENT_NOT_FOUND``).
    """
    refuse_text(agents, field)
    return [await agent_id_of(channel, agent) for agent in agents]


def is_agent_id(text: str) -> bool:
    """Whether the text has the form of an agent's id; a name may also begin with ``agent-``."""
    try:
        return text == f"agent-{uuid.UUID(text.removeprefix('agent-'))}"
    except ValueError:
        return False
