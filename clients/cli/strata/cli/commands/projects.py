"""``strata projects``: projects of an organization."""

from __future__ import annotations

from typing import Annotated

import typer

from strata.api.gateway.v1 import admin_service_pb2 as pb
from strata.cli.administration import NameArgument
from strata.cli.client import GatewayClient, first_of, new_request_id
from strata.cli.options import (
    GatewayOptions,
    JsonOption,
    LimitOption,
    OrganizationKeyOption,
    online,
)
from strata.cli.output import print_json, print_listing, when

app = typer.Typer(
    help="List and create projects, with an organization key.",
    no_args_is_help=True,
    add_completion=False,
)


@app.command("list")
@online
def list_projects(
    connection: GatewayOptions,
    organization_key: OrganizationKeyOption = "",
    limit: LimitOption = 100,
    as_json: JsonOption = False,
) -> None:
    """List the projects of the organization."""

    async def read(client: GatewayClient) -> pb.ListProjectsResponse:
        return await first_of(
            client.admin.ListProjects, pb.ListProjectsRequest(), "projects", limit
        )

    listed = connection.run_as_organization(read, organization_key)
    several = len({project.partition for project in listed.projects}) > 1
    print_listing(
        listed,
        ["name", "id", "created", *(["partition"] if several else [])],
        [
            (
                project.name,
                project.id,
                when(project.create_time),
                *([project.partition] if several else []),
            )
            for project in listed.projects
        ],
        empty="No projects. Create one with: strata projects create NAME",
        as_json=as_json,
    )


@app.command("create")
@online
def create_project(
    connection: GatewayOptions,
    name: NameArgument,
    partition: Annotated[
        str,
        typer.Option(
            "--partition",
            metavar="NAME",
            help="Where to place its data, permanently; by default the partition with the fewest "
            "projects.",
            show_default=False,
        ),
    ] = "",
    organization_key: OrganizationKeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Create a project and print its id. It has no key yet: see strata keys create."""
    request = pb.CreateProjectRequest(request_id=new_request_id(), name=name, partition=partition)

    async def create(client: GatewayClient) -> pb.CreateProjectResponse:
        return await client.admin.CreateProject(request)

    made = connection.run_as_organization(create, organization_key)
    if as_json:
        print_json(made)
    else:
        typer.echo(made.project.id)
