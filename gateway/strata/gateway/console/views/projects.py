"""Projects of an organization: list, create, and their keys."""

from __future__ import annotations

from starlette.responses import Response

from strata.api.gateway.v1 import admin_service_pb2 as pb
from strata.gateway.console.views.keys import keys_of_project
from strata.gateway.console.visits import ViewRoute, Visit
from strata.shared.ids import new_id

_PAGE = 100
_MAX_PAGE = 500


async def list_projects(visit: Visit) -> Response:
    """Lists the projects of an organization; with a project key only its own project."""
    if visit.identity.project.id:
        return visit.page("projects/own.html")
    listing = await visit.services.admin.ListProjects(
        pb.ListProjectsRequest(page_size=_PAGE, page_token=visit.query("page"))
    )
    return visit.page(
        "projects/list.html",
        projects=listing.projects,
        next_page=listing.next_page_token,
        request_id=new_id("console"),
    )


async def create_project(visit: Visit) -> Response:
    """Creates a project."""
    request = pb.CreateProjectRequest(
        request_id=visit.form.text("request_id"), name=visit.form.text("name").strip()
    )
    created = await visit.services.admin.CreateProject(request)
    return visit.go_to(f"/projects/{created.project.id}")


async def show_project(visit: Visit) -> Response:
    """Shows the keys of a project."""
    return await keys_of_project(visit, await project_of(visit))


async def project_of(visit: Visit) -> pb.Project:
    """Returns the project in the path of a request.

    Only its id is set if the key may not list projects, or if there are very many.
    """
    project_id = visit.argument("project_id")
    key_project = visit.identity.project
    if key_project.id:
        return key_project if key_project.id == project_id else pb.Project(id=project_id)
    listing = await visit.services.admin.ListProjects(pb.ListProjectsRequest(page_size=_MAX_PAGE))
    matching = (project for project in listing.projects if project.id == project_id)
    return next(matching, pb.Project(id=project_id))


VIEWS = (
    ViewRoute("/projects", list_projects),
    ViewRoute("/projects", create_project, "POST"),
    ViewRoute("/projects/{project_id}", show_project),
)
