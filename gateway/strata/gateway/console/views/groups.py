"""Groups of agents: list, members, runs."""

from __future__ import annotations

from starlette.responses import Response

from strata.api.agent_loop.v1 import group_service_pb2 as pb
from strata.api.gateway.v1 import run_service_pb2 as run_pb
from strata.gateway.console.visits import ViewRoute, Visit

_PAGE = 50
_RUNS = 20


async def list_groups(visit: Visit) -> Response:
    """Lists groups."""
    listing = await visit.services.groups.ListGroups(
        pb.ListGroupsRequest(page_size=_PAGE, page_token=visit.query("page"))
    )
    return visit.page("groups/list.html", groups=listing.groups, next_page=listing.next_page_token)


async def show_group(visit: Visit) -> Response:
    """Shows the members of a group and its newest runs."""
    request = pb.GetGroupRequest(group_id=visit.argument("group_id"))
    group = (await visit.services.groups.GetGroup(request)).group
    listing = await visit.services.runs.ListRuns(
        run_pb.ListRunsRequest(group_id=group.id, page_size=_RUNS)
    )
    return visit.page("groups/group.html", group=group, runs=listing.runs)


VIEWS = (
    ViewRoute("/groups", list_groups),
    ViewRoute("/groups/{group_id}", show_group),
)
