"""The access of keys with different scopes to the credentials of an MCP server."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from e2e.edge.answers import ask
from e2e.edge.contract import public_methods
from faults.live import Client
from strata.api.gateway.v1 import admin_service_pb2
from strata.api.tool_execution.v1 import mcp_service_pb2 as pb
from strata.shared.scopes import Scope

pytestmark = pytest.mark.asyncio(loop_scope="session")

TOKEN = "t0ken-0123456789"


async def key(client: Client, *scopes: str) -> Sequence[tuple[str, str]]:
    made = await client.admin.CreateApiKey(
        admin_service_pb2.CreateApiKeyRequest(name="k", scopes=scopes), **client.call
    )
    return (("x-api-key", made.secret),)


async def test_a_credential_of_a_server_is_shown_to_keys_for_secrets_only(client: Client) -> None:
    server = pb.McpServer(
        name="plain",
        transport=pb.MCP_TRANSPORT_STREAMABLE_HTTP,
        url=f"https://mcp.invalid/mcp?access_token={TOKEN}",
        headers={"X-Auth-Token": TOKEN, "X-Tenant": "pets"},
    )

    async def answer_of(method: str, request: object, metadata: Sequence[tuple[str, str]]) -> bytes:
        path = public_methods()[f"McpService.{method}"].path
        answer = await ask(client, path, request.SerializeToString(), metadata)  # type: ignore[attr-defined]
        assert answer.status == "OK", answer
        return b"".join(answer.responses)

    added = await answer_of("AddMcpServer", pb.AddMcpServerRequest(server=server), client.metadata)
    server_id = pb.AddMcpServerResponse.FromString(added).server.id
    requests = {
        "GetMcpServer": pb.GetMcpServerRequest(mcp_server_id=server_id),
        "ListMcpServers": pb.ListMcpServersRequest(page_size=500),
    }
    others = await key(client, Scope.READ, Scope.WRITE, Scope.RUN, Scope.APPROVE)
    for method, request in requests.items():
        hidden = await answer_of(method, request, others)
        assert TOKEN.encode() not in hidden
        assert b"[secret " in hidden
        assert b"pets" in hidden
        assert TOKEN.encode() in await answer_of(method, request, client.metadata)
    refresh = pb.RefreshMcpServerRequest(mcp_server_id=server_id)
    assert TOKEN.encode() not in await answer_of("RefreshMcpServer", refresh, others)
    # What administrators added, only administrators can remove.
    path = public_methods()["McpService.RemoveMcpServer"].path
    remove = pb.RemoveMcpServerRequest(mcp_server_id=server_id).SerializeToString()
    assert (await ask(client, path, remove, others)).pair == ("PERMISSION_DENIED", "SCOPE_MISSING")
    assert (await ask(client, path, remove, client.metadata)).status == "OK"
