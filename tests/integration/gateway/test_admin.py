"""Organizations, projects, keys and usage."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import asyncpg
import grpc
import grpc.aio
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from command_line import run_command
from integration.gateway.projects import project, project_key
from integration.gateway.scripted_services import Gateway, ScriptedServices
from rpc_errors import reason
from run_events import collect
from strata.api.gateway.v1 import admin_service_pb2 as pb
from strata.gateway.auth.bootstrap import ensure_local_project, ensure_organization_key
from strata.shared.ids import new_id
from strata.shared.scopes import OrganizationScope, Scope


async def organization(services: ScriptedServices, gateway: Gateway, name: str) -> Gateway:
    """Creates another organization with a project; returns the gateway with its keys."""
    made = await gateway.admin.CreateOrganization(
        pb.CreateOrganizationRequest(name=name), metadata=gateway.as_organization
    )
    key = await gateway.admin.CreateOrganizationKey(
        pb.CreateOrganizationKeyRequest(
            organization_id=made.organization.id, name="k", scopes=["organization.admin"]
        ),
        metadata=gateway.as_organization,
    )
    theirs = replace(gateway, organization_key=key.secret)
    own = await project(theirs, "default")
    return await project_key(theirs, own.id, *Scope)


async def refused(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    return raised.value.code(), reason(raised.value)


async def test_the_first_keys_are_made_once(services: ScriptedServices) -> None:
    settings = services.settings()
    organization = await ensure_organization_key(settings, known_key=services.organization.secret)
    assert (organization.secret, organization.created) == (services.organization.secret, False)
    again = await ensure_local_project(
        settings, organization.secret, known_key=services.local.secret
    )
    assert (again.secret, again.created) == (services.local.secret, False)
    lost = await ensure_local_project(settings, organization.secret, known_key=None)
    assert lost.created
    assert lost.project_id == services.local.project_id
    assert lost.secret != services.local.secret
    gateway = await services.gateway()
    for secret in (services.local.secret, lost.secret):
        response = await gateway.admin.WhoAmI(pb.WhoAmIRequest(), metadata=(("x-api-key", secret),))
        assert response.project.id == services.local.project_id
        assert set(response.api_key.scopes) == set(Scope)
        assert response.organization_id == services.local.organization_id
        assert response.server_version


async def test_the_first_key_of_an_installation_is_an_organization_key(
    services: ScriptedServices,
) -> None:
    gateway = await services.gateway()
    who = await gateway.admin.WhoAmI(pb.WhoAmIRequest(), metadata=gateway.as_organization)
    assert set(who.api_key.scopes) == set(OrganizationScope)
    assert not who.HasField("project")
    assert who.api_key.project_id == ""
    assert who.api_key.organization_id == who.organization_id


async def test_a_folder_of_an_earlier_release_keeps_its_project_key(
    services: ScriptedServices,
) -> None:
    settings = services.settings()
    # As before the migration: a key of the project "default" with every scope of that release.
    connection = await asyncpg.connect(services.urls.service_url)
    try:
        await connection.execute(
            "SELECT set_config('strata.organization_id', $1, false)", services.local.organization_id
        )
        await connection.execute(
            "UPDATE gateway.api_keys SET scopes = '{admin,approve,read,run,write}'"
        )
    finally:
        await connection.close()
    organization = await ensure_organization_key(settings, known_key=None)
    assert organization.organization_id == services.local.organization_id
    project = await ensure_local_project(
        settings, organization.secret, known_key=services.local.secret
    )
    assert (project.secret, project.created) == (services.local.secret, False)


async def test_an_organization_key_cannot_use_agents(services: ScriptedServices) -> None:
    gateway = await services.gateway()
    as_organization = replace(gateway, api_key=gateway.organization_key)
    agent_id = services.new_agent()
    assert await refused(as_organization.start_run(agent_id)) == (
        grpc.StatusCode.PERMISSION_DENIED,
        "SCOPE_MISSING",
    )
    assert services.turns.requests == []


@pytest.mark.parametrize("scopes", [("admin",), tuple(Scope)])
async def test_an_admin_key_of_a_project_cannot_administer_another(
    services: ScriptedServices, scopes: tuple[str, ...]
) -> None:
    gateway = await services.gateway()
    ours, theirs = await project(gateway, "ours"), await project(gateway, "theirs")
    us = await project_key(gateway, ours.id, *scopes)
    them = await project_key(gateway, theirs.id, "read")
    their_key = await them.admin.WhoAmI(pb.WhoAmIRequest(), metadata=them.metadata)
    admin, metadata = us.admin, us.metadata
    not_found = grpc.StatusCode.NOT_FOUND
    assert await refused(
        admin.CreateApiKey(
            pb.CreateApiKeyRequest(project_id=theirs.id, name="k", scopes=["admin"]),
            metadata=metadata,
        )
    ) == (not_found, "PROJECT_NOT_FOUND")
    assert await refused(
        admin.ListApiKeys(pb.ListApiKeysRequest(project_id=theirs.id), metadata=metadata)
    ) == (not_found, "PROJECT_NOT_FOUND")
    assert await refused(
        admin.RevokeApiKey(
            pb.RevokeApiKeyRequest(api_key_id=their_key.api_key.id), metadata=metadata
        )
    ) == (not_found, "API_KEY_NOT_FOUND")
    assert await refused(
        admin.GetUsage(pb.GetUsageRequest(project_id=theirs.id), metadata=metadata)
    ) == (not_found, "PROJECT_NOT_FOUND")
    assert await refused(
        admin.GetUsageSeries(pb.GetUsageSeriesRequest(project_id=theirs.id), metadata=metadata)
    ) == (not_found, "PROJECT_NOT_FOUND")
    for of_organization in (
        admin.CreateProject(pb.CreateProjectRequest(name="more"), metadata=metadata),
        admin.ListProjects(pb.ListProjectsRequest(), metadata=metadata),
        admin.ListProjectUsage(pb.ListProjectUsageRequest(), metadata=metadata),
        admin.ListOrganizations(pb.ListOrganizationsRequest(), metadata=metadata),
    ):
        assert await refused(of_organization) == (
            grpc.StatusCode.PERMISSION_DENIED,
            "SCOPE_MISSING",
        )
    # No key was revoked.
    await them.admin.WhoAmI(pb.WhoAmIRequest(), metadata=them.metadata)


async def test_an_admin_key_administers_the_keys_of_its_project(services: ScriptedServices) -> None:
    gateway = await services.gateway()
    own = await project(gateway, "own")
    us = await project_key(gateway, own.id, "admin", "read")
    made = await us.admin.CreateApiKey(
        pb.CreateApiKeyRequest(name="reader", scopes=["read"]), metadata=us.metadata
    )
    assert made.api_key.project_id == own.id
    listed = await us.admin.ListApiKeys(pb.ListApiKeysRequest(), metadata=us.metadata)
    assert made.api_key in listed.api_keys
    assert {key.project_id for key in listed.api_keys} == {own.id}
    revoked = await us.admin.RevokeApiKey(
        pb.RevokeApiKeyRequest(api_key_id=made.api_key.id), metadata=us.metadata
    )
    assert revoked.api_key.HasField("revoke_time")


async def test_a_key_cannot_grant_scopes_that_it_lacks(services: ScriptedServices) -> None:
    gateway = await services.gateway()
    own = await project(gateway, "own")
    us = await project_key(gateway, own.id, "admin", "read")
    denied = (grpc.StatusCode.PERMISSION_DENIED, "SCOPE_MISSING")
    for scopes in (["write"], ["read", "run"], []):
        request = pb.CreateApiKeyRequest(name="k", scopes=scopes)
        assert await refused(us.admin.CreateApiKey(request, metadata=us.metadata)) == denied
    # It may grant what its own scopes include.
    included = pb.CreateApiKeyRequest(name="k", scopes=["secrets"])
    await us.admin.CreateApiKey(included, metadata=us.metadata)
    made = await gateway.admin.CreateOrganizationKey(
        pb.CreateOrganizationKeyRequest(name="k", scopes=["organization.admin"]),
        metadata=gateway.as_organization,
    )
    lesser = (("x-api-key", made.secret),)
    more = pb.CreateOrganizationKeyRequest(name="k", scopes=["installation.admin"])
    assert await refused(gateway.admin.CreateOrganizationKey(more, metadata=lesser)) == denied
    least = pb.CreateOrganizationKeyRequest(name="k")
    read = await gateway.admin.CreateOrganizationKey(least, metadata=lesser)
    assert set(read.organization_key.scopes) == {"organization.read"}


async def test_organizations_are_created_listed_and_named_once(services: ScriptedServices) -> None:
    gateway = await services.gateway()
    admin, metadata = gateway.admin, gateway.as_organization
    request = pb.CreateOrganizationRequest(name="acme", request_id="r-1")
    first = await admin.CreateOrganization(request, metadata=metadata)
    assert await admin.CreateOrganization(request, metadata=metadata) == first
    assert await refused(
        admin.CreateOrganization(pb.CreateOrganizationRequest(name="acme"), metadata=metadata)
    ) == (grpc.StatusCode.ALREADY_EXISTS, "NAME_TAKEN")
    reused = pb.CreateOrganizationRequest(name="other", request_id="r-1")
    assert await refused(admin.CreateOrganization(reused, metadata=metadata)) == (
        grpc.StatusCode.ALREADY_EXISTS,
        "REQUEST_ID_REUSED",
    )
    names, token = [], ""
    for _ in range(2):
        page = await admin.ListOrganizations(
            pb.ListOrganizationsRequest(page_size=1, page_token=token), metadata=metadata
        )
        names += [organization.name for organization in page.organizations]
        token = page.next_page_token
    assert (sorted(names), token) == (["acme", "local"], "")


async def test_the_server_can_create_a_key_for_an_organization_created_by_a_call(
    services: ScriptedServices,
) -> None:
    gateway = await services.gateway()
    made = await gateway.admin.CreateOrganization(
        pb.CreateOrganizationRequest(name="acme"), metadata=gateway.as_organization
    )
    key = await ensure_organization_key(services.settings(), organization="acme")
    assert key.organization_id == made.organization.id
    who = await gateway.admin.WhoAmI(pb.WhoAmIRequest(), metadata=(("x-api-key", key.secret),))
    assert set(who.api_key.scopes) == {"organization.read", "organization.admin"}


async def test_bootstrap_prints_an_organization_key_and_nothing_else(
    socket_services: ScriptedServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = socket_services.settings()
    for name in ("database_url", "worker_database_url", "key_pepper"):
        monkeypatch.setenv(f"STRATA_GATEWAY_{name.upper()}", getattr(settings, name))
    ran = await run_command("bootstrap", "--organization", "acme")
    assert ran.code == 0, ran
    gateway = await socket_services.gateway()
    metadata = (("x-api-key", ran.out.strip()),)
    who = await gateway.admin.WhoAmI(pb.WhoAmIRequest(), metadata=metadata)
    assert set(who.api_key.scopes) == {"organization.read", "organization.admin"}
    projects = await gateway.admin.ListProjects(pb.ListProjectsRequest(), metadata=metadata)
    assert not projects.projects


async def test_revoked_organization_key_is_refused(services: ScriptedServices) -> None:
    gateway = await services.gateway()
    made = await gateway.admin.CreateOrganizationKey(
        pb.CreateOrganizationKeyRequest(name="k"), metadata=gateway.as_organization
    )
    metadata = (("x-api-key", made.secret),)
    await gateway.admin.ListProjects(pb.ListProjectsRequest(), metadata=metadata)
    listed = await gateway.admin.ListOrganizationKeys(
        pb.ListOrganizationKeysRequest(), metadata=metadata
    )
    assert made.organization_key in listed.organization_keys
    assert made.secret.encode() not in listed.SerializeToString()
    await gateway.admin.RevokeOrganizationKey(
        pb.RevokeOrganizationKeyRequest(api_key_id=made.organization_key.id),
        metadata=gateway.as_organization,
    )
    assert await refused(
        gateway.admin.ListProjects(pb.ListProjectsRequest(), metadata=metadata)
    ) == (grpc.StatusCode.UNAUTHENTICATED, "CREDENTIALS_INVALID")


async def test_projects_are_created_and_listed_and_their_names_are_unique(
    services: ScriptedServices,
) -> None:
    gateway = await services.gateway()
    first = await project(gateway, "one", request_id="r-1")
    assert await project(gateway, "one", request_id="r-1") == first
    admin = gateway.admin
    taken = pb.CreateProjectRequest(name="one")
    assert await refused(admin.CreateProject(taken, metadata=gateway.as_organization)) == (
        grpc.StatusCode.ALREADY_EXISTS,
        "NAME_TAKEN",
    )
    reused = pb.CreateProjectRequest(name="two", request_id="r-1")
    assert await refused(admin.CreateProject(reused, metadata=gateway.as_organization)) == (
        grpc.StatusCode.ALREADY_EXISTS,
        "REQUEST_ID_REUSED",
    )
    second = await project(gateway, "two")
    names = []
    token = ""
    for _ in range(3):
        page = await admin.ListProjects(
            pb.ListProjectsRequest(page_size=1, page_token=token), metadata=gateway.as_organization
        )
        names += [project.name for project in page.projects]
        token = page.next_page_token
    assert (sorted(names), token) == (["default", "one", "two"], "")
    assert first.id != second.id


async def test_a_key_has_access_only_to_its_project(services: ScriptedServices) -> None:
    gateway = await services.gateway()
    other = await project(gateway, "other")
    stranger = await project_key(gateway, other.id, "run", "read")
    [event, *_] = await collect(gateway.send(services.new_agent()))
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await stranger.run(event.run_id)
    assert reason(raised.value) == "RUN_NOT_FOUND"
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await collect(stranger.stream(event.run_id))
    assert reason(raised.value) == "RUN_NOT_FOUND"
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await stranger.cancel(event.run_id)
    assert reason(raised.value) == "RUN_NOT_FOUND"


async def test_the_secret_is_shown_once_and_never_stored(services: ScriptedServices) -> None:
    gateway = await services.gateway()
    made = await gateway.admin.CreateApiKey(
        pb.CreateApiKeyRequest(name="k"), metadata=gateway.metadata
    )
    assert set(made.api_key.scopes) == {"read", "write", "run"}
    listed = await gateway.admin.ListApiKeys(pb.ListApiKeysRequest(), metadata=gateway.metadata)
    assert made.api_key in listed.api_keys
    assert made.secret.encode() not in listed.SerializeToString()
    assert made.secret.rpartition(".")[2].encode() not in listed.SerializeToString()


async def test_another_organization_cannot_be_accessed(services: ScriptedServices) -> None:
    gateway = await services.gateway()
    them = await organization(services, gateway, "theirs")
    theirs = await them.admin.WhoAmI(pb.WhoAmIRequest(), metadata=them.metadata)
    # The key of our organization with fewer scopes, which does not administer the installation.
    made = await gateway.admin.CreateOrganizationKey(
        pb.CreateOrganizationKeyRequest(name="k", scopes=["organization.admin"]),
        metadata=gateway.as_organization,
    )
    admin, not_found = gateway.admin, grpc.StatusCode.NOT_FOUND
    for metadata in (gateway.metadata, (("x-api-key", made.secret),)):
        assert await refused(
            admin.CreateApiKey(
                pb.CreateApiKeyRequest(project_id=theirs.project.id, name="k", scopes=["read"]),
                metadata=metadata,
            )
        ) == (not_found, "PROJECT_NOT_FOUND")
        assert await refused(
            admin.ListApiKeys(
                pb.ListApiKeysRequest(project_id=theirs.project.id), metadata=metadata
            )
        ) == (not_found, "PROJECT_NOT_FOUND")
        assert await refused(
            admin.GetUsage(pb.GetUsageRequest(project_id=theirs.project.id), metadata=metadata)
        ) == (not_found, "PROJECT_NOT_FOUND")
        assert await refused(
            admin.RevokeApiKey(
                pb.RevokeApiKeyRequest(api_key_id=theirs.api_key.id), metadata=metadata
            )
        ) == (not_found, "API_KEY_NOT_FOUND")
    denied = (grpc.StatusCode.PERMISSION_DENIED, "SCOPE_MISSING")
    lesser, id_ = (("x-api-key", made.secret),), theirs.organization_id
    for request in (
        admin.CreateOrganizationKey(
            pb.CreateOrganizationKeyRequest(organization_id=id_, name="k"), metadata=lesser
        ),
        admin.ListOrganizationKeys(
            pb.ListOrganizationKeysRequest(organization_id=id_), metadata=lesser
        ),
        admin.RevokeOrganizationKey(
            pb.RevokeOrganizationKeyRequest(organization_id=id_, api_key_id=new_id("key")),
            metadata=lesser,
        ),
        admin.CreateOrganization(pb.CreateOrganizationRequest(name="n"), metadata=lesser),
    ):
        assert await refused(request) == denied
    # Neither the method for project keys nor another organization can revoke an organization key.
    first = await admin.WhoAmI(pb.WhoAmIRequest(), metadata=gateway.as_organization)
    revoke = pb.RevokeApiKeyRequest(api_key_id=first.api_key.id)
    key_not_found = (not_found, "API_KEY_NOT_FOUND")
    assert await refused(admin.RevokeApiKey(revoke, metadata=lesser)) == key_not_found
    as_theirs = pb.RevokeOrganizationKeyRequest(api_key_id=first.api_key.id)
    assert await refused(admin.RevokeOrganizationKey(as_theirs, metadata=them.as_organization)) == (
        key_not_found
    )
    projects = await admin.ListProjects(pb.ListProjectsRequest(), metadata=gateway.as_organization)
    assert theirs.project.id not in {project.id for project in projects.projects}
    unknown = pb.ListOrganizationKeysRequest(organization_id=new_id("organization"))
    assert await refused(admin.ListOrganizationKeys(unknown, metadata=gateway.as_organization)) == (
        not_found,
        "ORGANIZATION_NOT_FOUND",
    )


async def test_usage_is_summed(services: ScriptedServices) -> None:
    gateway = await services.gateway()
    agent, other = services.new_agent(), services.new_agent()
    for runner in (agent, agent, other):
        await collect(gateway.send(runner))
    admin, metadata = gateway.admin, gateway.metadata
    total = await admin.GetUsage(pb.GetUsageRequest(), metadata=metadata)
    assert (total.run_count, total.step_count, total.prompt_tokens) == (3, 3, 21)
    one = await admin.GetUsage(pb.GetUsageRequest(agent_id=other), metadata=metadata)
    assert (one.run_count, one.completion_tokens) == (1, 3)
    series = await admin.GetUsageSeries(pb.GetUsageSeriesRequest(), metadata=metadata)
    assert series.total == series.buckets[-1].usage == total
    assert len(series.buckets) == 31, "days of UTC; the first and the last one are not whole"
    starts = [bucket.start_time.ToDatetime() for bucket in series.buckets]
    assert {(start.hour, start.minute, start.second) for start in starts[1:]} == {(0, 0, 0)}
    ends = [bucket.end_time for bucket in series.buckets]
    assert ends[:-1] == [bucket.start_time for bucket in series.buckets[1:]]
    of_other = pb.GetUsageSeriesRequest(agent_id=other, bucket_seconds=366 * 86_400)
    assert (await admin.GetUsageSeries(of_other, metadata=metadata)).total == one
    moment = Timestamp(seconds=1_800_000_000)
    empty = pb.GetUsageSeriesRequest(start_time=moment, end_time=moment)
    assert not (await admin.GetUsageSeries(empty, metadata=metadata)).buckets


async def test_the_usage_of_all_projects_covers_the_organization(
    services: ScriptedServices,
) -> None:
    gateway = await services.gateway()
    other = await project(gateway, "other")
    us = await project_key(gateway, other.id, *Scope)
    for caller in (gateway, us, us):
        await collect(caller.send(services.new_agent()))
    them = await organization(services, gateway, "theirs")
    await collect(them.send(services.new_agent()))
    metadata = gateway.as_organization
    named = pb.GetUsageRequest(project_id=other.id)
    assert (await gateway.admin.GetUsage(named, metadata=metadata)).run_count == 2
    counts: dict[str, int] = {}
    token = ""
    for _ in range(2):
        page = await gateway.admin.ListProjectUsage(
            pb.ListProjectUsageRequest(page_size=1, page_token=token), metadata=metadata
        )
        counts |= {project.project.id: project.usage.run_count for project in page.projects}
        token = page.next_page_token
    assert (counts, token) == ({services.local.project_id: 1, other.id: 2}, "")
    whole = await them.admin.ListProjectUsage(
        pb.ListProjectUsageRequest(), metadata=them.as_organization
    )
    assert [project.usage.prompt_tokens for project in whole.projects] == [7]
    # An organization key belongs to no project.
    assert (await refused(gateway.admin.GetUsage(pb.GetUsageRequest(), metadata=metadata)))[
        0
    ] is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("method", "request_", "fields"),
    [
        ("CreateProject", pb.CreateProjectRequest(), ["name"]),
        ("CreateProject", pb.CreateProjectRequest(name="a" * 200), ["name"]),
        ("CreateProject", pb.CreateProjectRequest(name="a\nb", request_id="ü"), None),
        ("CreateApiKey", pb.CreateApiKeyRequest(name="k", scopes=["root"]), ["scopes[0]"]),
        ("CreateApiKey", pb.CreateApiKeyRequest(name="k", project_id="x"), None),
        ("RevokeApiKey", pb.RevokeApiKeyRequest(api_key_id="agent-1"), None),
        ("GetUsage", pb.GetUsageRequest(agent_id="x"), None),
        ("GetUsageSeries", pb.GetUsageSeriesRequest(project_id="x"), None),
        (
            "GetUsageSeries",
            pb.GetUsageSeriesRequest(bucket_seconds=59, end_time=Timestamp(seconds=1)),
            ["bucket_seconds", "end_time"],
        ),
        ("GetUsageSeries", pb.GetUsageSeriesRequest(bucket_seconds=2000), ["bucket_seconds"]),
        ("ListProjects", pb.ListProjectsRequest(page_size=-1), None),
        ("ListProjects", pb.ListProjectsRequest(page_token="x"), None),
        ("ListProjectUsage", pb.ListProjectUsageRequest(page_token="x"), None),
        ("CreateOrganization", pb.CreateOrganizationRequest(name=" "), ["name"]),
        ("CreateOrganizationKey", pb.CreateOrganizationKeyRequest(name="k", scopes=["run"]), None),
        ("CreateOrganizationKey", pb.CreateOrganizationKeyRequest(organization_id="x"), None),
        ("ListApiKeys", pb.ListApiKeysRequest(page_token="x"), None),
    ],
)
async def test_wrong_requests_are_refused(
    socket_services: ScriptedServices, method: str, request_: Any, fields: list[str] | None
) -> None:
    gateway = await socket_services.gateway()
    of_project = method in {
        *("RevokeApiKey", "CreateApiKey", "ListApiKeys", "GetUsage", "GetUsageSeries")
    }
    metadata = gateway.metadata if of_project else gateway.as_organization
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await getattr(gateway.admin, method)(request_, metadata=metadata)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert reason(raised.value).startswith("INVALID_")
    for field in fields or ():
        assert (
            field.encode()
            in dict(raised.value.trailing_metadata() or ())["grpc-status-details-bin"]
        )


async def test_unknown_key_is_not_found_and_unbuilt_methods_are_unimplemented(
    services: ScriptedServices,
) -> None:
    gateway = await services.gateway()
    admin, metadata = gateway.admin, gateway.metadata
    assert await refused(
        admin.RevokeApiKey(pb.RevokeApiKeyRequest(api_key_id=new_id("key")), metadata=metadata)
    ) == (grpc.StatusCode.NOT_FOUND, "API_KEY_NOT_FOUND")
    for call in (
        admin.ListAuditEvents(pb.ListAuditEventsRequest(), metadata=metadata),
        admin.EraseSubject(pb.EraseSubjectRequest(), metadata=metadata),
    ):
        assert await refused(call) == (grpc.StatusCode.UNIMPLEMENTED, "NOT_BUILT")
