"""Archival memory: passages of an agent, and their search with explained scores."""

from __future__ import annotations

from starlette.responses import Response

from strata.api.archival.v1 import passage_service_pb2 as pb
from strata.gateway.console.views.agents import agent_of
from strata.gateway.console.visits import ViewRoute, Visit

_HITS = 20
_PAGE = 30


async def passages(visit: Visit) -> Response:
    """Searches the passages of an agent; without a query it lists them."""
    agent = await agent_of(visit)
    query, tag = visit.query("q").strip(), visit.query("tag").strip()
    tags = [tag] if tag else []
    results, listing = pb.SearchPassagesResponse(), pb.ListPassagesResponse()
    if query:
        results = await visit.services.passages.SearchPassages(
            pb.SearchPassagesRequest(
                agent_id=agent.id,
                query=query,
                tags=tags,
                top_k=_HITS,
                explain=True,
                timezone=agent.timezone,
            )
        )
    else:
        listing = await visit.services.passages.ListPassages(
            pb.ListPassagesRequest(
                agent_id=agent.id, tags=tags, page_size=_PAGE, page_token=visit.query("page")
            )
        )
    return visit.page(
        "memory/passages.html" if visit.by_htmx else "memory/archival.html",
        agent=agent,
        query=query,
        tag=tag,
        results=results,
        listing=listing,
    )


async def insert(visit: Visit) -> Response:
    """Stores a passage in the archive of an agent."""
    agent_id, form = visit.argument("agent_id"), visit.form
    await visit.services.passages.InsertPassage(
        pb.InsertPassageRequest(
            agent_id=agent_id,
            passage=pb.NewPassage(
                text=form.text("text"), tags=form.text("tags").replace(",", " ").split()
            ),
        )
    )
    return visit.go_to(f"/agents/{agent_id}/archival")


async def delete(visit: Visit) -> Response:
    """Deletes a passage; RestorePassage brings it back."""
    request = pb.DeletePassageRequest(passage_id=visit.argument("passage_id"))
    await visit.services.passages.DeletePassage(request)
    return visit.go_to(f"/agents/{visit.argument('agent_id')}/archival")


VIEWS = (
    ViewRoute("/agents/{agent_id}/archival", passages),
    ViewRoute("/agents/{agent_id}/archival", insert, "POST"),
    ViewRoute("/agents/{agent_id}/archival/{passage_id}/delete", delete, "POST"),
)
