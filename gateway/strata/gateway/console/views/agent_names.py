"""Agents by name: for pages that have only ids, and for forms in which a person writes a name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from strata.api.agent_loop.v1 import agent_service_pb2 as pb
from strata.gateway.console.visits import Visit
from strata.protocol.errors import PermissionDeniedError
from strata.shared.ids import is_id

_SUGGESTIONS = 200


async def names_of(visit: Visit, agent_ids: Iterable[str]) -> Mapping[str, str]:
    """Returns the names of at most a page of agents by id; one that cannot be read is missing."""
    valid_ids = sorted({agent_id for agent_id in agent_ids if is_id(agent_id, "agent")})
    if not valid_ids:
        return {}
    request = pb.ListAgentsRequest(agent_ids=valid_ids, page_size=len(valid_ids), names_only=True)
    try:
        listing = await visit.services.agents.ListAgents(request)
    except PermissionDeniedError:
        return {}
    return {agent.id: agent.name for agent in listing.agents}


async def suggested_names(visit: Visit) -> list[str]:
    """Returns names of agents that a form suggests."""
    request = pb.ListAgentsRequest(page_size=_SUGGESTIONS, names_only=True)
    return [agent.name for agent in (await visit.services.agents.ListAgents(request)).agents]


async def agent_id_of(visit: Visit, text: str) -> str:
    """Returns the id of an agent that a person wrote the name or the id of.

    Raises:
        NotFoundError: There is no such agent in the project of the key.
    """
    if not text or is_id(text, "agent"):
        return text
    response = await visit.services.agents.GetAgent(pb.GetAgentRequest(name=text))
    return str(response.agent.id)
