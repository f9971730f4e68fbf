"""API keys and scopes of every public method."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor import MethodDescriptor

from clocks import OffsetClock
from integration.gateway.scripted_runs import NEVER, plays, started
from integration.gateway.scripted_services import Gateway, ScriptedServices
from polling import eventually
from rpc_errors import error_of_call, reason
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.agent_loop.v1 import agent_service_pb2_grpc as agent_grpc
from strata.api.gateway.v1 import admin_service_pb2 as pb
from strata.api.gateway.v1 import run_service_pb2
from strata.gateway.auth.domain import new_secret
from strata.gateway.auth.policy import scopes_of
from strata.gateway.auth.run_tokens import FOR_RUNS
from strata.gateway.registry import public_services
from strata.shared.auth import TokenSigner, generate_key_pair
from strata.shared.interceptors import auth
from strata.shared.scopes import OrganizationScope, Scope, with_included

METHODS = [method for service in public_services() for method in service.methods]

UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED


def path_of(method: MethodDescriptor) -> str:
    return f"/{method.containing_service.full_name}/{method.name}"


async def status(gateway: Gateway, method: MethodDescriptor, *metadata: tuple[str, str]) -> Any:
    return await error_of_call(gateway.channel, path_of(method), metadata)


async def key(gateway: Gateway, *scopes: str, **fields: Any) -> tuple[str, pb.ApiKey]:
    request = pb.CreateApiKeyRequest(name="a key", scopes=scopes, **fields)
    response = await gateway.admin.CreateApiKey(request, metadata=gateway.metadata)
    return response.secret, response.api_key


def bearer(secret: str) -> tuple[str, str]:
    return ("authorization", f"Bearer {secret}")


async def test_every_public_method_requires_a_valid_key(services: ScriptedServices) -> None:
    gateway = await services.gateway()
    wrong = new_secret().text
    right = gateway.api_key
    tampered = right[:-2] + ("AA" if right[-2:] != "AA" else "BB")
    attempts: list[tuple[tuple[tuple[str, str], ...], str]] = [
        ((), "CREDENTIALS_MISSING"),
        ((bearer(wrong),), "CREDENTIALS_INVALID"),
        ((bearer(tampered),), "CREDENTIALS_INVALID"),
        ((bearer("sk-strata-"),), "CREDENTIALS_INVALID"),
        ((("authorization", f"Basic {right}"),), "CREDENTIALS_INVALID"),
        ((("x-api-key", wrong),), "CREDENTIALS_INVALID"),
        ((bearer(wrong), ("x-api-key", right)), "CREDENTIALS_INVALID"),
    ]
    for method in METHODS:
        for metadata, expected in attempts:
            error = await status(gateway, method, *metadata)
            assert error is not None, method.full_name
            assert (error.code(), reason(error)) == (UNAUTHENTICATED, expected)
    assert services.turns.requests == []
    assert services.agents.calls == []


async def test_internal_token_is_not_accepted_as_a_key(services: ScriptedServices) -> None:
    gateway = await services.gateway()
    await anext(aiter(gateway.send(services.new_agent())))
    [caller] = services.turns.callers
    for method in METHODS:
        error = await status(gateway, method, bearer(caller.token))
        # Some are for the agents of runs; for these an empty request is invalid.
        for_runs = path_of(method) in FOR_RUNS
        assert (error is None or error.code() is not UNAUTHENTICATED) == for_runs, method.full_name


async def test_an_agent_needs_the_token_of_a_run(services: ScriptedServices) -> None:
    gateway = await services.gateway()
    agent_id = services.new_agent()
    await anext(aiter(gateway.send(agent_id)))
    [caller] = services.turns.callers
    others = TokenSigner(generate_key_pair()[0])
    ours = TokenSigner(services.private_key)
    who = (caller.organization_id, caller.project_id, caller.principal, caller.scopes)
    old = TokenSigner(services.private_key, clock=OffsetClock(-3600))
    refused = [
        ours.mint(*who),
        others.mint(*who, run_id=caller.run_id),
        old.mint(*who, run_id=caller.run_id),
        "a.b.c",
    ]
    stub = agent_grpc.AgentServiceStub(gateway.channel)
    request = agent_pb.GetAgentRequest(agent_id=agent_id)
    for token in refused:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.GetAgent(request, metadata=(bearer(token),), timeout=20)
        assert caught.value.code() is UNAUTHENTICATED
        assert reason(caught.value) == "CREDENTIALS_INVALID"
    response = await stub.GetAgent(request, metadata=(bearer(caller.token),), timeout=20)
    assert response.agent.id == agent_id


async def test_calls_of_agents_count_towards_the_limit_of_the_key(
    services: ScriptedServices,
) -> None:
    gateway = await services.gateway(calls_per_second=0.001, call_burst=3)
    agent_id = services.new_agent()
    await anext(aiter(gateway.send(agent_id)))
    [caller] = services.turns.callers
    stub = agent_grpc.AgentServiceStub(gateway.channel)
    request = agent_pb.GetAgentRequest(agent_id=agent_id)
    for _ in range(2):
        await stub.GetAgent(request, metadata=(bearer(caller.token),), timeout=20)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.GetAgent(request, metadata=(bearer(caller.token),), timeout=20)
    assert reason(caught.value) == "QUOTA_EXCEEDED"


async def test_every_public_method_needs_its_scope(services: ScriptedServices) -> None:
    await services.serve_absent_services()
    gateway = await services.gateway()
    secrets: dict[str, str] = {scope: (await key(gateway, scope))[0] for scope in Scope}
    for of_organization in OrganizationScope:
        made = await gateway.admin.CreateOrganizationKey(
            pb.CreateOrganizationKeyRequest(name="k", scopes=[of_organization]),
            metadata=gateway.as_organization,
        )
        secrets[of_organization] = made.secret
    for scope, secret in secrets.items():
        errors = await asyncio.gather(
            *(status(gateway, method, bearer(secret)) for method in METHODS)
        )
        for method, error in zip(METHODS, errors, strict=True):
            denied = error is not None and error.code() is grpc.StatusCode.PERMISSION_DENIED
            allowed = bool(with_included({scope}) & scopes_of(method))
            assert denied != allowed, (method.full_name, scope)
            if denied:
                assert reason(error) == "SCOPE_MISSING"
            elif error is not None:
                assert error.code() is not UNAUTHENTICATED
                assert reason(error)
                assert "Traceback" not in (error.details() or "")


def test_every_public_method_has_a_deliberate_scope() -> None:
    table = {method.full_name.removeprefix("strata.api."): scopes_of(method) for method in METHODS}
    assert table["gateway.v1.RunService.SendMessage"] == {Scope.RUN}
    assert table["gateway.v1.AdminService.CreateApiKey"] == {Scope.ADMIN, OrganizationScope.ADMIN}
    assert table["gateway.v1.AdminService.CreateProject"] == {OrganizationScope.ADMIN}
    assert table["core_memory.v1.BlockService.EditBlock"] == {Scope.WRITE}
    assert table["recall.v1.MessageService.SearchMessages"] == {Scope.READ}
    assert table["archival.v1.PassageService.UploadPassages"] == {Scope.WRITE}
    assert table["tool_execution.v1.ToolService.PutSecret"] == {Scope.SECRETS}
    assert table["recall.v1.MessageService.SetRetention"] == {Scope.ADMIN}
    assert table["recall.v1.MessageIndexService.GetIndex"] == {OrganizationScope.INSTALLATION}
    assert table["archival.v1.PassageIndexService.StartReindex"] == {OrganizationScope.INSTALLATION}
    assert table["recall.v1.MessageService.ExportMessages"] == {Scope.READ}
    readers = {name for name, scopes in table.items() if scopes == {Scope.READ}}
    verbs = (
        "Get",
        "List",
        "Search",
        "Export",
        "Diff",
        "Blame",
        "Grep",
        "Explain",
        "Expand",
        "Lint",
        "Preview",
        "Read",
        "Render",
        "Watch",
        # Reads what is stored of a run, for a replay elsewhere.
        "Record",
    )
    assert all(name.rpartition(".")[2].startswith(verbs) for name in readers)


async def test_a_key_is_accepted_in_either_header(services: ScriptedServices) -> None:
    gateway = await services.gateway()
    for metadata in (
        bearer(gateway.api_key),
        ("authorization", f"bearer {gateway.api_key}"),
        ("x-api-key", gateway.api_key),
    ):
        response = await gateway.admin.WhoAmI(pb.WhoAmIRequest(), metadata=(metadata,))
        assert response.project.name == "default"


async def test_revoked_key_is_refused(services: ScriptedServices) -> None:
    gateway = await services.gateway(key_cache_s=0.2)
    other = await services.gateway(key_cache_s=0.2)
    secret, made = await key(gateway, "read")
    who = pb.WhoAmIRequest()
    await gateway.admin.WhoAmI(who, metadata=(bearer(secret),))
    await other.admin.WhoAmI(who, metadata=(bearer(secret),))
    response = await gateway.admin.RevokeApiKey(
        pb.RevokeApiKeyRequest(api_key_id=made.id), metadata=gateway.metadata
    )
    assert response.api_key.HasField("revoke_time")
    # This gateway refuses at once, another one when it looks up the cached key again.
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await gateway.admin.WhoAmI(who, metadata=(bearer(secret),))
    assert raised.value.code() is UNAUTHENTICATED
    await eventually(lambda: refused(other, secret))


async def test_an_open_stream_ends_when_its_key_is_revoked_and_the_run_goes_on(
    services: ScriptedServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "RECHECK_S", 0.1)
    services.turns.script = plays(started(), NEVER)
    gateway = await services.gateway(key_cache_s=0.1)
    secret, made = await key(gateway, "run", "read")
    run = await gateway.start_run(services.new_agent())
    request = run_service_pb2.StreamRunRequest(run_id=run.id)
    revoked = gateway.runs.StreamRun(request, metadata=(bearer(secret),), timeout=60)
    kept = gateway.stream(run.id)
    for stream in (revoked, kept):
        await stream.read()
    await gateway.admin.RevokeApiKey(
        pb.RevokeApiKeyRequest(api_key_id=made.id), metadata=gateway.metadata
    )

    async def read_all() -> None:
        while await revoked.read() is not grpc.aio.EOF:
            pass

    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await read_all()
    assert raised.value.code() is UNAUTHENTICATED
    assert not kept.done()
    assert (await gateway.run(run.id)).state == run_service_pb2.RUN_STATE_RUNNING
    kept.cancel()
    await gateway.cancel(run.id)


async def test_a_key_expires(services: ScriptedServices) -> None:
    gateway = await services.gateway(key_cache_s=600)
    soon = pb.CreateApiKeyRequest(name="soon", scopes=["read"])
    soon.expire_time.GetCurrentTime()
    soon.expire_time.seconds += 3600
    response = await gateway.admin.CreateApiKey(soon, metadata=gateway.metadata)
    metadata = (bearer(response.secret),)
    await gateway.admin.WhoAmI(pb.WhoAmIRequest(), metadata=metadata)
    authenticator: Any = gateway.service.authenticator
    authenticator = authenticator._keys
    authenticator._clock = OffsetClock(3000)
    await gateway.admin.WhoAmI(pb.WhoAmIRequest(), metadata=metadata)
    # The key is cached, and refused after its end.
    authenticator._clock = OffsetClock(3600)
    assert await refused(gateway, response.secret)


async def refused(gateway: Gateway, secret: str) -> bool:
    try:
        await gateway.admin.WhoAmI(pb.WhoAmIRequest(), metadata=(bearer(secret),))
    except grpc.aio.AioRpcError as error:
        return error.code() is UNAUTHENTICATED
    return False


async def test_key_over_its_rate_limit_gets_a_retry_delay(services: ScriptedServices) -> None:
    gateway = await services.gateway(calls_per_second=0.001, call_burst=3)
    errors = [await status(gateway, METHODS[0], bearer(gateway.api_key)) for _ in range(4)]
    assert [error.code() for error in errors[:3]] == [grpc.StatusCode.INVALID_ARGUMENT] * 3
    assert errors[3].code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert reason(errors[3]) == "QUOTA_EXCEEDED"


async def test_open_runs_of_a_project_are_limited(services: ScriptedServices) -> None:
    services.turns.script = plays(NEVER)
    gateway = await services.gateway(open_runs_per_project=2)
    agent = services.new_agent()
    await gateway.start_run(agent)
    await gateway.start_run(agent)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await gateway.start_run(agent)
    assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert reason(raised.value) == "QUOTA_EXCEEDED"
