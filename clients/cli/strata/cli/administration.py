"""What the commands for organizations, projects and keys share: arguments, lookup, output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from google.protobuf.timestamp_pb2 import Timestamp

from strata.api.gateway.v1 import admin_service_pb2 as pb
from strata.cli.client import GatewayClient, item_named
from strata.cli.output import note, print_json, print_listing, when
from strata.cli.times import parse_end
from strata.protocol.errors import Reason
from strata.shared.ids import is_id

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name, for people.")]
KeyArgument = Annotated[str, typer.Argument(metavar="KEY-ID", help="Id of the key: key-…")]
ProjectOption = Annotated[
    str,
    typer.Option(
        "--project",
        metavar="PROJECT",
        help="Name or id of a project; needs an organization key. Default: the API key's project.",
        show_default=False,
    ),
]
OrganizationOption = Annotated[
    str,
    typer.Option(
        "--organization",
        metavar="ORGANIZATION",
        help="Name or id of an organization. Default: the organization of the key.",
        show_default=False,
    ),
]
ScopeOption = Annotated[
    list[str] | None,
    typer.Option("--scope", metavar="SCOPE", help="Scope of the key; may be repeated."),
]
ExpiresOption = Annotated[
    str,
    typer.Option(
        "--expires",
        metavar="WHEN",
        help='When the key expires: "90d", "12h", "4w", or "2027-01-31". Default: never.',
        show_default=False,
    ),
]


async def project_id(client: GatewayClient, name_or_id: str) -> str:
    """Returns the id of a project of the organization.

    Raises:
        NotFoundError: There is no project of that name (``PROJECT_NOT_FOUND``).
    """
    if is_id(name_or_id, "project"):
        return name_or_id
    project: pb.Project = await item_named(
        client.admin.ListProjects,
        pb.ListProjectsRequest(),
        "projects",
        name_or_id,
        kind="project",
        command="strata projects list",
        reason=Reason.PROJECT_NOT_FOUND,
    )
    return project.id


async def organization_id(client: GatewayClient, name_or_id: str) -> str:
    """Returns the id of an organization; empty for an empty name, which means the key's own.

    Raises:
        NotFoundError: There is no organization of that name (``ORGANIZATION_NOT_FOUND``).
    """
    if not name_or_id or is_id(name_or_id, "organization"):
        return name_or_id
    organization: pb.Organization = await item_named(
        client.admin.ListOrganizations,
        pb.ListOrganizationsRequest(),
        "organizations",
        name_or_id,
        kind="organization",
        command="strata organizations list",
        reason=Reason.ORGANIZATION_NOT_FOUND,
    )
    return organization.id


def expiry(text: str) -> Timestamp | None:
    """Returns when a key expires; None for an empty text, which means never.

    Raises:
        UsageError: See `parse_end`.
    """
    if not text:
        return None
    stamp = Timestamp()
    stamp.FromDatetime(parse_end(text))
    return stamp


def show_new_key(
    response: pb.CreateApiKeyResponse | pb.CreateOrganizationKeyResponse, *, as_json: bool
) -> None:
    """Prints the secret of a new key to standard output, its id and scopes to standard error."""
    if as_json:
        print_json(response)
        return
    key = (
        response.api_key
        if isinstance(response, pb.CreateApiKeyResponse)
        else response.organization_key
    )
    until = f", until {when(key.expire_time)}" if key.HasField("expire_time") else ""
    note(f"{key.id} with {', '.join(key.scopes)}{until}. The secret is shown this once:")
    typer.echo(response.secret)


def show_keys(
    listing: pb.ListApiKeysResponse | pb.ListOrganizationKeysResponse,
    keys: Sequence[pb.ApiKey],
    *,
    as_json: bool,
) -> None:
    """Prints keys, without their secrets."""
    print_listing(
        listing,
        ["id", "name", "scopes", "created", "expires", "revoked"],
        [
            (
                key.id,
                key.name,
                ", ".join(key.scopes),
                when(key.create_time),
                when(key.expire_time),
                when(key.revoke_time),
            )
            for key in keys
        ],
        empty="No keys.",
        as_json=as_json,
    )
