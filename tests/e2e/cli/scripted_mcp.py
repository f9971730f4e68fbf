"""A scripted McpService."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from strata.api.tool_execution.v1 import mcp_service_pb2 as pb
from strata.api.tool_execution.v1 import mcp_service_pb2_grpc as pb_grpc
from strata.api.tool_execution.v1 import tool_service_pb2 as tool_pb
from strata.shared.ids import new_id

UNREACHABLE = "http://127.0.0.1:1/mcp"


@dataclass
class McpServers(pb_grpc.McpServiceServicer):
    """Keeps servers; each has one tool that works and one that has changed."""

    servers: dict[str, pb.McpServer] = field(default_factory=dict)
    approved: list[pb.ApproveMcpToolRequest] = field(default_factory=list)
    completed: list[pb.CompleteMcpSignInRequest] = field(default_factory=list)

    async def UpdateMcpServer(self, request: Any, context: Any) -> Any:
        server = self.servers[request.mcp_server_id]
        server.CopyFrom(request.server)
        server.healthy = server.url != UNREACHABLE
        server.error = "" if server.healthy else "no server answers at this address"
        return pb.UpdateMcpServerResponse(server=server)

    async def AddMcpServer(self, request: Any, context: Any) -> Any:
        server = pb.McpServer()
        server.CopyFrom(request.server)
        server.id = new_id("mcp_server")
        server.healthy = server.url != UNREACHABLE
        server.error = "" if server.healthy else "no server answers at this address"
        server.tools.append(tool_pb.Tool(name=f"{server.name}__search"))
        server.quarantined_tools["write"] = "it has changed"
        self.servers[server.id] = server
        return pb.AddMcpServerResponse(server=server)

    async def GetMcpServer(self, request: Any, context: Any) -> Any:
        return pb.GetMcpServerResponse(server=self.servers[request.mcp_server_id])

    async def ListMcpServers(self, request: Any, context: Any) -> Any:
        return pb.ListMcpServersResponse(servers=self.servers.values())

    async def RefreshMcpServer(self, request: Any, context: Any) -> Any:
        server = self.servers[request.mcp_server_id]
        return pb.RefreshMcpServerResponse(server=server, changed_tools=["write"])

    async def RemoveMcpServer(self, request: Any, context: Any) -> Any:
        del self.servers[request.mcp_server_id]
        return pb.RemoveMcpServerResponse()

    async def ListMcpTools(self, request: Any, context: Any) -> Any:
        name = self.servers[request.mcp_server_id].name
        changed = pb.McpTool(
            name="write",
            tool_name=f"{name}__write",
            state=pb.MCP_TOOL_STATE_CHANGED,
            reason="it has changed",
            description="Writes otherwise.",
            version="v2",
            approved_description="Writes.",
        )
        well = pb.McpTool(
            name="search", tool_name=f"{name}__search", state=pb.MCP_TOOL_STATE_APPROVED
        )
        return pb.ListMcpToolsResponse(tools=[well, changed])

    async def ApproveMcpTool(self, request: Any, context: Any) -> Any:
        self.approved.append(request)
        name = self.servers[request.mcp_server_id].name
        return pb.ApproveMcpToolResponse(tool=pb.McpTool(tool_name=f"{name}__{request.name}"))

    async def BeginMcpSignIn(self, request: Any, context: Any) -> Any:
        # The page of the authorization server that agrees to everything: it only sends back.
        back = "code=c0de&state=st4te&iss=https%3A%2F%2Flogin.example.org"
        return pb.BeginMcpSignInResponse(
            authorization_url=f"{request.redirect_uri}?{back}",
            issuer="https://login.example.org",
            state="st4te",
        )

    async def CompleteMcpSignIn(self, request: Any, context: Any) -> Any:
        self.completed.append(request)
        server = self.servers[request.mcp_server_id]
        server.sign_in.principal, server.sign_in.issuer = "key-1", request.issuer
        return pb.CompleteMcpSignInResponse(server=server)

    async def ForgetMcpSignIn(self, request: Any, context: Any) -> Any:
        server = self.servers[request.mcp_server_id]
        server.ClearField("sign_in")
        return pb.ForgetMcpSignInResponse(server=server)
