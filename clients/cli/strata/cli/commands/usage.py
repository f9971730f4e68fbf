"""``strata usage``: runs and tokens of a project, as a sum or over time."""

from __future__ import annotations

from typing import Annotated

import typer
from google.protobuf.timestamp_pb2 import Timestamp

from strata.api.gateway.v1 import admin_service_pb2 as pb
from strata.cli.administration import ProjectOption, project_id
from strata.cli.agent_names import complete_agent
from strata.cli.client import GatewayClient, first_of
from strata.cli.failures import UsageError
from strata.cli.options import (
    GatewayOptions,
    JsonOption,
    LimitOption,
    OrganizationKeyOption,
    online,
)
from strata.cli.output import print_fields, print_json, print_listing, when
from strata.cli.times import timestamp_of

app = typer.Typer(add_completion=False)

_LENGTHS = {"hour": 3_600, "day": 86_400, "week": 7 * 86_400}


@app.command()
@online
def usage(
    connection: GatewayOptions,
    project: ProjectOption = "",
    every: Annotated[
        bool, typer.Option("--all", help="All projects, with the organization key.")
    ] = False,
    agent: Annotated[
        str, typer.Option("--agent", autocompletion=complete_agent, help="Name or id of an agent.")
    ] = "",
    since: Annotated[
        str, typer.Option("--since", metavar="TIME", help='"2026-07-01", or "7d" for days ago.')
    ] = "30d",
    until: Annotated[
        str, typer.Option("--until", metavar="TIME", help="Before this time. Default: now.")
    ] = "",
    by: Annotated[
        str, typer.Option("--by", metavar="hour|day|week", help="One row for each, in UTC.")
    ] = "",
    organization_key: OrganizationKeyOption = "",
    limit: LimitOption = 100,
    as_json: JsonOption = False,
) -> None:
    """Show runs, model calls and tokens of a project, or of each project of the organization."""
    if sum((bool(project), bool(agent), every)) > 1:
        raise UsageError("Give one of --project, --agent and --all.")
    if by and by not in _LENGTHS:
        raise UsageError("Give hour, day or week to --by.")
    if by and every:
        raise UsageError("Give one of --by and --all.")
    start, end = timestamp_of(since), timestamp_of(until)
    if every:
        _print_projects(connection, start, end, organization_key, limit, as_json=as_json)
        return

    async def read(client: GatewayClient) -> pb.GetUsageResponse | pb.GetUsageSeriesResponse:
        scope = {
            "project_id": await project_id(client, project) if project else "",
            "agent_id": await client.agent_id(agent) if agent else "",
        }
        if by:
            return await client.admin.GetUsageSeries(
                pb.GetUsageSeriesRequest(
                    **scope, start_time=start, end_time=end, bucket_seconds=_LENGTHS[by]
                )
            )
        return await client.admin.GetUsage(
            pb.GetUsageRequest(**scope, start_time=start, end_time=end)
        )

    if project or organization_key:
        total = connection.run_as_organization(read, organization_key)
    else:
        total = connection.run(read)
    if isinstance(total, pb.GetUsageSeriesResponse):
        _print_series(total, as_json=as_json)
    elif as_json:
        print_json(total)
    else:
        print_fields(_counts(total))


def _print_projects(
    connection: GatewayOptions,
    start: Timestamp | None,
    end: Timestamp | None,
    organization_key: str,
    limit: int,
    *,
    as_json: bool,
) -> None:
    """Prints the usage of each project of the organization."""
    request = pb.ListProjectUsageRequest(start_time=start, end_time=end)

    async def read(client: GatewayClient) -> pb.ListProjectUsageResponse:
        return await first_of(client.admin.ListProjectUsage, request, "projects", limit)

    listing = connection.run_as_organization(read, organization_key)
    print_listing(
        listing,
        ["project", *(name for name, _ in _counts(pb.GetUsageResponse()))],
        [
            (project.project.name, *(count for _, count in _counts(project.usage)))
            for project in listing.projects
        ],
        empty="No projects.",
        as_json=as_json,
    )


def _print_series(series: pb.GetUsageSeriesResponse, *, as_json: bool) -> None:
    """Prints the usage of each hour, day or week."""
    print_listing(
        series,
        ["from", *(name for name, _ in _counts(series.total))],
        [
            (when(bucket.start_time), *(count for _, count in _counts(bucket.usage)))
            for bucket in series.buckets
        ],
        empty="The time range is empty.",
        as_json=as_json,
    )


def _cached_tokens(usage_: pb.GetUsageResponse) -> str:
    """Returns the tokens that providers read from their prompt caches, with their share."""
    cached = f"{usage_.cached_input_tokens:,}"
    if not usage_.prompt_tokens:
        return cached
    return f"{cached} ({usage_.cached_input_tokens / usage_.prompt_tokens:.0%} of those sent)"


def _counts(usage_: pb.GetUsageResponse) -> list[tuple[str, str]]:
    return [
        ("runs", f"{usage_.run_count:,}"),
        ("model calls", f"{usage_.step_count:,}"),
        ("tokens sent", f"{usage_.prompt_tokens:,}"),
        ("from cache", _cached_tokens(usage_)),
        ("tokens written", f"{usage_.completion_tokens:,}"),
    ]
