"""``strata organizations``: organizations of a server."""

from __future__ import annotations

import typer

from strata.api.gateway.v1 import admin_service_pb2 as pb
from strata.cli.administration import (
    ExpiresOption,
    KeyArgument,
    NameArgument,
    OrganizationOption,
    ScopeOption,
    expiry,
    organization_id,
    show_keys,
    show_new_key,
)
from strata.cli.client import GatewayClient, first_of, new_request_id
from strata.cli.options import (
    GatewayOptions,
    JsonOption,
    LimitOption,
    OrganizationKeyOption,
    online,
)
from strata.cli.output import note, print_json, print_listing, when

app = typer.Typer(
    help="List and create organizations, and manage their keys.",
    no_args_is_help=True,
    add_completion=False,
)
keys = typer.Typer(help="Create, list and revoke organization keys.", no_args_is_help=True)
app.add_typer(keys, name="keys")


@app.command("list")
@online
def list_organizations(
    connection: GatewayOptions,
    organization_key: OrganizationKeyOption = "",
    limit: LimitOption = 100,
    as_json: JsonOption = False,
) -> None:
    """List all organizations, with a key that administers the installation."""

    async def read(client: GatewayClient) -> pb.ListOrganizationsResponse:
        request = pb.ListOrganizationsRequest()
        return await first_of(client.admin.ListOrganizations, request, "organizations", limit)

    listed = connection.run_as_organization(read, organization_key)
    print_listing(
        listed,
        ["name", "id", "created"],
        [
            (organization.name, organization.id, when(organization.create_time))
            for organization in listed.organizations
        ],
        empty="No organizations.",
        as_json=as_json,
    )


@app.command("create")
@online
def create_organization(
    connection: GatewayOptions,
    name: NameArgument,
    organization_key: OrganizationKeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Create an organization and print its id, with a key that administers the installation.

    It has no key yet: see strata organizations keys create --organization NAME.
    """
    request = pb.CreateOrganizationRequest(request_id=new_request_id(), name=name)

    async def create(client: GatewayClient) -> pb.CreateOrganizationResponse:
        return await client.admin.CreateOrganization(request)

    made = connection.run_as_organization(create, organization_key)
    if as_json:
        print_json(made)
    else:
        typer.echo(made.organization.id)


@keys.command("create")
@online
def create_key(
    connection: GatewayOptions,
    name: NameArgument,
    organization: OrganizationOption = "",
    scope: ScopeOption = None,
    expires: ExpiresOption = "",
    organization_key: OrganizationKeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Create an organization key and print its secret, which is shown only once.

    Scopes: organization.read, organization.admin, installation.admin; without --scope
    organization.read. A key can create keys only with its own scopes.
    """
    request = pb.CreateOrganizationKeyRequest(
        name=name, scopes=scope or [], expire_time=expiry(expires)
    )

    async def create(client: GatewayClient) -> pb.CreateOrganizationKeyResponse:
        request.organization_id = await organization_id(client, organization)
        return await client.admin.CreateOrganizationKey(request)

    show_new_key(connection.run_as_organization(create, organization_key), as_json=as_json)


@keys.command("list")
@online
def list_keys(
    connection: GatewayOptions,
    organization: OrganizationOption = "",
    organization_key: OrganizationKeyOption = "",
    limit: LimitOption = 100,
    as_json: JsonOption = False,
) -> None:
    """List organization keys, without their secrets."""

    async def read(client: GatewayClient) -> pb.ListOrganizationKeysResponse:
        request = pb.ListOrganizationKeysRequest(
            organization_id=await organization_id(client, organization)
        )
        call = client.admin.ListOrganizationKeys
        return await first_of(call, request, "organization_keys", limit)

    listed = connection.run_as_organization(read, organization_key)
    show_keys(listed, listed.organization_keys, as_json=as_json)


@keys.command("revoke")
@online
def revoke_key(
    connection: GatewayOptions,
    key: KeyArgument,
    organization: OrganizationOption = "",
    organization_key: OrganizationKeyOption = "",
) -> None:
    """Revoke an organization key; within seconds every gateway rejects it."""

    async def revoke(client: GatewayClient) -> pb.RevokeOrganizationKeyResponse:
        request = pb.RevokeOrganizationKeyRequest(
            organization_id=await organization_id(client, organization), api_key_id=key
        )
        return await client.admin.RevokeOrganizationKey(request)

    response = connection.run_as_organization(revoke, organization_key)
    note(f"{response.organization_key.id} ({response.organization_key.name}) is revoked.")
