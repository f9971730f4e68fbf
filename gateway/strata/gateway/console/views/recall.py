"""Recall memory: search of the messages of an agent, with explained scores."""

from __future__ import annotations

from starlette.responses import Response

from strata.api.recall.v1 import message_service_pb2 as pb
from strata.gateway.console.transcript import Transcript
from strata.gateway.console.views.agents import agent_of
from strata.gateway.console.visits import ViewRoute, Visit

_HITS = 20
_NEIGHBOURS = 1
_MODES = {
    "": pb.SEARCH_MODE_UNSPECIFIED,
    "words": pb.SEARCH_MODE_FULL_TEXT,
    "meaning": pb.SEARCH_MODE_SEMANTIC,
}


async def search(visit: Visit) -> Response:
    """Searches the messages of an agent."""
    agent = await agent_of(visit)
    query, mode = visit.query("q").strip(), visit.query("mode")
    results = pb.SearchMessagesResponse()
    if query:
        results = await visit.services.messages.SearchMessages(
            pb.SearchMessagesRequest(
                agent_id=agent.id,
                query=query,
                mode=_MODES.get(mode, pb.SEARCH_MODE_UNSPECIFIED),
                limit=_HITS,
                neighbours=_NEIGHBOURS,
                explain=True,
                timezone=agent.timezone,
            )
        )
    return visit.page(
        "memory/recall_hits.html" if visit.by_htmx else "memory/recall.html",
        agent=agent,
        query=query,
        mode=mode,
        results=results,
        transcript=Transcript(),
    )


VIEWS = (ViewRoute("/agents/{agent_id}/recall", search),)
