"""Keys of a project or of an organization: list, create, revoke."""

from __future__ import annotations

from starlette.responses import Response

from strata.api.gateway.v1 import admin_service_pb2 as pb
from strata.gateway.console.key_forms import (
    LIFETIMES,
    expiry_in,
    grantable_organization_scopes,
    grantable_scopes,
)
from strata.gateway.console.visits import ViewRoute, Visit

_PAGE = 100


async def list_keys(visit: Visit) -> Response:
    """Lists the keys of the project; a caller with an organization key gets organization keys."""
    if visit.identity.project.id:
        return await keys_of_project(visit, visit.identity.project)
    listing = await visit.services.admin.ListOrganizationKeys(
        pb.ListOrganizationKeysRequest(page_size=_PAGE, page_token=visit.query("page"))
    )
    return visit.page(
        "keys/organization.html",
        keys=listing.organization_keys,
        next_page=listing.next_page_token,
        scopes=grantable_organization_scopes(visit),
        lifetimes=LIFETIMES,
        create_path="/keys/organization",
        revoke_path="/keys/organization",
    )


async def keys_of_project(visit: Visit, project: pb.Project) -> Response:
    """Lists the keys of a project."""
    listing = await visit.services.admin.ListApiKeys(
        pb.ListApiKeysRequest(
            project_id=project.id, page_size=_PAGE, page_token=visit.query("page")
        )
    )
    return visit.page(
        "keys/list.html",
        project=project,
        keys=listing.api_keys,
        next_page=listing.next_page_token,
        scopes=grantable_scopes(visit),
        lifetimes=LIFETIMES,
        create_path=f"/projects/{project.id}/keys",
        revoke_path="/keys",
    )


async def create_key(visit: Visit) -> Response:
    """Creates a key of a project, and shows its secret this once."""
    form = visit.form
    created = await visit.services.admin.CreateApiKey(
        pb.CreateApiKeyRequest(
            project_id=visit.argument("project_id"),
            name=form.text("name").strip(),
            scopes=form.texts("scope"),
            expire_time=expiry_in(form),
        )
    )
    return _shown_once(visit, created.api_key, created.secret)


async def create_organization_key(visit: Visit) -> Response:
    """Creates an organization key, and shows its secret this once."""
    form = visit.form
    created = await visit.services.admin.CreateOrganizationKey(
        pb.CreateOrganizationKeyRequest(
            name=form.text("name").strip(),
            scopes=form.texts("scope"),
            expire_time=expiry_in(form),
        )
    )
    return _shown_once(visit, created.organization_key, created.secret)


def _shown_once(visit: Visit, key: pb.ApiKey, secret: str) -> Response:
    template = "keys/secret.html" if visit.by_htmx else "keys/created.html"
    return visit.page(template, key=key, secret=secret)


async def revoke_key(visit: Visit) -> Response:
    """Revokes a key of a project, and shows what continues to act with its scopes."""
    revoked = await visit.services.admin.RevokeApiKey(
        pb.RevokeApiKeyRequest(
            api_key_id=visit.argument("api_key_id"),
            pause_schedules=visit.form.checked("pause_schedules"),
        )
    )
    return visit.page(
        "keys/revoked_notice.html" if visit.by_htmx else "keys/revoked.html",
        key=revoked.api_key,
        schedules=revoked.schedule_count,
        delayed_runs=revoked.delayed_run_count,
        paused=visit.form.checked("pause_schedules"),
    )


async def revoke_organization_key(visit: Visit) -> Response:
    """Revokes an organization key."""
    revoked = await visit.services.admin.RevokeOrganizationKey(
        pb.RevokeOrganizationKeyRequest(api_key_id=visit.argument("api_key_id"))
    )
    return visit.page(
        "keys/revoked_notice.html" if visit.by_htmx else "keys/revoked.html",
        key=revoked.organization_key,
        schedules=0,
        delayed_runs=0,
        paused=False,
    )


VIEWS = (
    ViewRoute("/keys", list_keys),
    ViewRoute("/keys/organization", create_organization_key, "POST"),
    ViewRoute("/keys/organization/{api_key_id}/revoke", revoke_organization_key, "POST"),
    ViewRoute("/keys/{api_key_id}/revoke", revoke_key, "POST"),
    ViewRoute("/projects/{project_id}/keys", create_key, "POST"),
)
