"""Memory agents: how far each has read, what failed, and starting one now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from starlette.responses import Response

from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.gateway.v1 import run_service_pb2 as pb
from strata.gateway.console.visits import ViewRoute, Visit

_PAGE = 50


async def list_memory_agents(visit: Visit) -> Response:
    """Lists the agents that have a memory agent, with the state of it."""
    listing = await visit.services.agents.ListAgents(
        agent_pb.ListAgentsRequest(page_size=_PAGE, page_token=visit.query("page"))
    )
    tended = [agent for agent in listing.agents if agent.memory_agent_id]
    states, is_truncated = await _states(visit, [agent.id for agent in tended])
    return visit.page(
        "memory_agents/list.html",
        tended=[(agent, states.get(agent.id, [])) for agent in tended],
        cut=is_truncated,
        next_page=listing.next_page_token,
    )


async def _states(
    visit: Visit, agent_ids: list[str]
) -> tuple[Mapping[str, Sequence[pb.MemoryStatus]], bool]:
    """Returns by agent what its memory agent has read, by conversation and by file.

    Returns:
        The states, and whether there are more of them than one response contains.
    """
    if not agent_ids:
        return {}, False
    status = await visit.services.runs.GetMemoryStatus(
        pb.GetMemoryStatusRequest(agent_ids=agent_ids)
    )
    states: dict[str, list[pb.MemoryStatus]] = {}
    for state in status.conversations:
        states.setdefault(state.agent_id, []).append(state)
    return states, bool(status.next_page_token)


async def start_memory_run(visit: Visit) -> Response:
    """Queues a run of a memory agent now."""
    request = pb.StartMemoryRunRequest(
        agent_id=visit.argument("agent_id"), conversation_id=visit.form.text("conversation_id")
    )
    started = await visit.services.runs.StartMemoryRun(request)
    return visit.go_to(f"/runs/{started.run.id}" if started.run.id else "/memory-agents")


VIEWS = (
    ViewRoute("/memory-agents", list_memory_agents),
    ViewRoute("/agents/{agent_id}/memory-run", start_memory_run, "POST"),
)
