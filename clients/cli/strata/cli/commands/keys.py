"""``strata keys``: keys of projects."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

import typer

from strata.api.gateway.v1 import admin_service_pb2 as pb
from strata.cli.administration import (
    ExpiresOption,
    KeyArgument,
    NameArgument,
    ProjectOption,
    ScopeOption,
    expiry,
    project_id,
    show_keys,
    show_new_key,
)
from strata.cli.client import GatewayClient, first_of
from strata.cli.options import (
    GatewayOptions,
    JsonOption,
    LimitOption,
    OrganizationKeyOption,
    online,
)
from strata.cli.output import note

ResultT = TypeVar("ResultT")

app = typer.Typer(
    help="Create, list and revoke keys of a project: with its own key, or with --project and an"
    " organization key.",
    no_args_is_help=True,
    add_completion=False,
)


@app.command("create")
@online
def create_key(
    connection: GatewayOptions,
    name: NameArgument,
    project: ProjectOption = "",
    scope: ScopeOption = None,
    expires: ExpiresOption = "",
    organization_key: OrganizationKeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Create a key of a project and print its secret, which is shown only once.

    Scopes: read, write, run, approve, secrets, admin; without --scope read, write and run. A key
    with admin creates keys of its own project, only with scopes that it has.
    """
    request = pb.CreateApiKeyRequest(name=name, scopes=scope or [], expire_time=expiry(expires))

    async def create(client: GatewayClient, of_project: str) -> pb.CreateApiKeyResponse:
        request.project_id = of_project
        return await client.admin.CreateApiKey(request)

    made = _run_for_project(connection, create, project, organization_key)
    show_new_key(made, as_json=as_json)


@app.command("list")
@online
def list_keys(
    connection: GatewayOptions,
    project: ProjectOption = "",
    organization_key: OrganizationKeyOption = "",
    limit: LimitOption = 100,
    as_json: JsonOption = False,
) -> None:
    """List the keys of a project, without their secrets."""

    async def read(client: GatewayClient, of_project: str) -> pb.ListApiKeysResponse:
        request = pb.ListApiKeysRequest(project_id=of_project)
        return await first_of(client.admin.ListApiKeys, request, "api_keys", limit)

    listed = _run_for_project(connection, read, project, organization_key)
    show_keys(listed, listed.api_keys, as_json=as_json)


@app.command("revoke")
@online
def revoke_key(
    connection: GatewayOptions,
    key: KeyArgument,
    project: ProjectOption = "",
    organization_key: OrganizationKeyOption = "",
    pause_schedules: Annotated[
        bool,
        typer.Option(
            "--pause-schedules",
            help="Pause the schedules that act with this key, and cancel its delayed runs.",
        ),
    ] = False,
) -> None:
    """Revoke a key; within seconds every gateway rejects it.

    Schedules and delayed runs with its scopes continue, unless --pause-schedules is set.
    """

    async def revoke(client: GatewayClient, _: str) -> pb.RevokeApiKeyResponse:
        request = pb.RevokeApiKeyRequest(api_key_id=key, pause_schedules=pause_schedules)
        return await client.admin.RevokeApiKey(request)

    done = _run_for_project(connection, revoke, project, organization_key)
    note(f"{done.api_key.id} ({done.api_key.name}) is revoked.")
    if done.schedule_count and pause_schedules:
        note(f"Paused schedules that act with this key: {done.schedule_count}.")
    elif done.schedule_count:
        note(
            f"Schedules that act with this key and continue: {done.schedule_count}. Revoke the key"
            " again with --pause-schedules to pause them."
        )
    if done.delayed_run_count and pause_schedules:
        note(f"Cancelled delayed runs that act with this key: {done.delayed_run_count}.")
    elif done.delayed_run_count:
        note(
            f"Delayed runs that act with this key and will start: {done.delayed_run_count}. Revoke"
            " the key again with --pause-schedules to cancel them."
        )


def _run_for_project(
    connection: GatewayOptions,
    work: Callable[[GatewayClient, str], Awaitable[ResultT]],
    project: str,
    organization_key: str,
) -> ResultT:
    """Runs `work` with the id of the project and the right kind of key.

    Without a project and without an organization key, the API key acts in its own project, and
    `work` gets an empty id.
    """

    async def with_project(client: GatewayClient) -> ResultT:
        return await work(client, await project_id(client, project) if project else "")

    if project or organization_key:
        return connection.run_as_organization(with_project, organization_key)
    return connection.run(with_project)
