"""Projects, keys and use."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio
import pytest

from integration.gateway.test_proxy import reason
from integration.gateway.world import Gateway, World, collect
from strata.api.gateway.v1 import admin_service_pb2 as pb
from strata.gateway.bootstrap import ensure_local_project
from strata.shared.ids import new_id


async def project(gateway: Gateway, name: str, **fields: Any) -> pb.Project:
    request = pb.CreateProjectRequest(name=name, **fields)
    return (await gateway.admin.CreateProject(request, metadata=gateway.metadata)).project


async def refused(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    return raised.value.code(), reason(raised.value)


async def test_the_first_project_is_made_once(world: World) -> None:
    settings = world.settings()
    assert world.local is not None
    again = await ensure_local_project(settings, known_key=world.local.api_key)
    assert again.api_key == world.local.api_key
    assert not again.created_key
    lost = await ensure_local_project(settings, known_key=None)
    assert lost.created_key
    assert lost.project_id == world.local.project_id
    assert lost.api_key != world.local.api_key
    gateway = await world.gateway()
    for secret in (world.local.api_key, lost.api_key):
        response = await gateway.admin.WhoAmI(pb.WhoAmIRequest(), metadata=(("x-api-key", secret),))
        assert response.project.id == world.local.project_id
        assert set(response.api_key.scopes) == {"read", "write", "run", "approve", "admin"}
        assert response.organization_id == world.local.organization_id
        assert response.server_version


async def test_projects_are_created_listed_and_named_once(world: World) -> None:
    gateway = await world.gateway()
    first = await project(gateway, "one", request_id="r-1")
    assert await project(gateway, "one", request_id="r-1") == first
    admin = gateway.admin
    taken = pb.CreateProjectRequest(name="one")
    assert await refused(admin.CreateProject(taken, metadata=gateway.metadata)) == (
        grpc.StatusCode.ALREADY_EXISTS,
        "NAME_TAKEN",
    )
    reused = pb.CreateProjectRequest(name="two", request_id="r-1")
    assert await refused(admin.CreateProject(reused, metadata=gateway.metadata)) == (
        grpc.StatusCode.ALREADY_EXISTS,
        "REQUEST_ID_REUSED",
    )
    second = await project(gateway, "two")
    names = []
    token = ""
    for _ in range(3):
        page = await admin.ListProjects(
            pb.ListProjectsRequest(page_size=1, page_token=token), metadata=gateway.metadata
        )
        names += [each.name for each in page.projects]
        token = page.next_page_token
    assert (sorted(names), token) == (["default", "one", "two"], "")
    assert first.id != second.id


async def test_a_key_reaches_only_its_project(world: World) -> None:
    gateway = await world.gateway()
    other = await project(gateway, "other")
    request = pb.CreateApiKeyRequest(project_id=other.id, name="k", scopes=["run", "read"])
    made = await gateway.admin.CreateApiKey(request, metadata=gateway.metadata)
    assert made.api_key.project_id == other.id
    stranger = Gateway(gateway.room, gateway.channel, made.secret, gateway.stop)
    [event, *_] = await collect(gateway.send(world.new_agent()))
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await stranger.run(event.run_id)
    assert reason(raised.value) == "RUN_NOT_FOUND"
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await collect(stranger.stream(event.run_id))
    assert reason(raised.value) == "RUN_NOT_FOUND"
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await stranger.cancel(event.run_id)
    assert reason(raised.value) == "RUN_NOT_FOUND"


async def test_the_secret_is_shown_once_and_never_stored(world: World) -> None:
    gateway = await world.gateway()
    made = await gateway.admin.CreateApiKey(
        pb.CreateApiKeyRequest(name="k"), metadata=gateway.metadata
    )
    assert set(made.api_key.scopes) == {"read", "write", "run"}
    listed = await gateway.admin.ListApiKeys(pb.ListApiKeysRequest(), metadata=gateway.metadata)
    assert made.api_key in listed.api_keys
    assert made.secret.encode() not in listed.SerializeToString()
    assert made.secret.rpartition(".")[2].encode() not in listed.SerializeToString()


async def test_another_organisation_is_out_of_reach(world: World) -> None:
    theirs = await ensure_local_project(world.settings(), organization="theirs")
    gateway = await world.gateway()
    admin, metadata = gateway.admin, gateway.metadata
    not_found = grpc.StatusCode.NOT_FOUND
    assert await refused(
        admin.CreateApiKey(
            pb.CreateApiKeyRequest(project_id=theirs.project_id, name="k"), metadata=metadata
        )
    ) == (not_found, "PROJECT_NOT_FOUND")
    assert await refused(
        admin.ListApiKeys(pb.ListApiKeysRequest(project_id=theirs.project_id), metadata=metadata)
    ) == (not_found, "PROJECT_NOT_FOUND")
    their_key = await admin.WhoAmI(pb.WhoAmIRequest(), metadata=(("x-api-key", theirs.api_key),))
    assert await refused(
        admin.RevokeApiKey(
            pb.RevokeApiKeyRequest(api_key_id=their_key.api_key.id), metadata=metadata
        )
    ) == (not_found, "API_KEY_NOT_FOUND")
    projects = await admin.ListProjects(pb.ListProjectsRequest(), metadata=metadata)
    assert theirs.project_id not in {each.id for each in projects.projects}


async def test_use_is_summed(world: World) -> None:
    gateway = await world.gateway()
    agent, other = world.new_agent(), world.new_agent()
    for each in (agent, agent, other):
        await collect(gateway.send(each))
    admin, metadata = gateway.admin, gateway.metadata
    total = await admin.GetUsage(pb.GetUsageRequest(), metadata=metadata)
    assert (total.run_count, total.step_count, total.prompt_tokens) == (3, 3, 21)
    one = await admin.GetUsage(pb.GetUsageRequest(agent_id=other), metadata=metadata)
    assert (one.run_count, one.completion_tokens) == (1, 3)


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
        ("ListProjects", pb.ListProjectsRequest(page_size=-1), None),
        ("ListProjects", pb.ListProjectsRequest(page_token="x"), None),
        ("ListApiKeys", pb.ListApiKeysRequest(page_token="x"), None),
    ],
)
async def test_wrong_requests_are_refused(
    network_world: World, method: str, request_: Any, fields: list[str] | None
) -> None:
    gateway = await network_world.gateway()
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await getattr(gateway.admin, method)(request_, metadata=gateway.metadata)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert reason(raised.value).startswith("INVALID_")
    for field in fields or ():
        assert (
            field.encode()
            in dict(raised.value.trailing_metadata() or ())["grpc-status-details-bin"]
        )


async def test_an_unknown_key_is_not_found_and_what_is_not_built_says_so(world: World) -> None:
    gateway = await world.gateway()
    admin, metadata = gateway.admin, gateway.metadata
    assert await refused(
        admin.RevokeApiKey(pb.RevokeApiKeyRequest(api_key_id=new_id("key")), metadata=metadata)
    ) == (grpc.StatusCode.NOT_FOUND, "API_KEY_NOT_FOUND")
    for call in (
        admin.ListAuditEvents(pb.ListAuditEventsRequest(), metadata=metadata),
        admin.EraseSubject(pb.EraseSubjectRequest(), metadata=metadata),
    ):
        assert await refused(call) == (grpc.StatusCode.UNIMPLEMENTED, "NOT_BUILT")
