"""Items of lists are found by name or id."""

from __future__ import annotations

import pytest

from strata.api.gateway.v1 import admin_service_pb2 as pb
from strata.cli.client import item_named
from strata.protocol.errors import NotFoundError, Reason

PAGES = {
    "": pb.ListProjectsResponse(
        projects=[pb.Project(id="project-1", name="one")], next_page_token="second"
    ),
    "second": pb.ListProjectsResponse(projects=[pb.Project(id="project-2", name="two")]),
}


async def project_named(name_or_id: str) -> pb.Project:
    async def list_projects(request: pb.ListProjectsRequest) -> pb.ListProjectsResponse:
        return PAGES[request.page_token]

    project: pb.Project = await item_named(
        list_projects,
        pb.ListProjectsRequest(),
        "projects",
        name_or_id,
        kind="project",
        command="strata projects list",
        reason=Reason.PROJECT_NOT_FOUND,
    )
    return project


@pytest.mark.parametrize("name_or_id", ["two", "project-2"])
async def test_an_item_of_a_later_page_is_found(name_or_id: str) -> None:
    assert (await project_named(name_or_id)).id == "project-2"


async def test_an_unknown_name_is_an_error_that_names_the_command() -> None:
    with pytest.raises(NotFoundError, match=r'no project "three".*strata projects list') as error:
        await project_named("three")
    assert error.value.reason is Reason.PROJECT_NOT_FOUND
