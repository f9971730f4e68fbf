"""gRPC servicer of McpService: the MCP servers of a project."""

from __future__ import annotations

from typing import Any

from strata.api.tool_execution.v1 import mcp_service_pb2 as pb
from strata.api.tool_execution.v1 import mcp_service_pb2_grpc as pb_grpc
from strata.protocol.errors import invalid_field
from strata.shared.context import require_caller
from strata.shared.db import Page, decode_page_token, page_limit
from strata.shared.ids import check_id
from strata.shared.scopes import Scope
from strata.tool_execution.convert import mcp as convert_mcp
from strata.tool_execution.domain.mcp import McpServer, McpStore
from strata.tool_execution.mcp.errors import ConnectError
from strata.tool_execution.mcp.manager import McpManager
from strata.tool_execution.mcp.sign_in import SignIns
from strata.tool_execution.mcp.tool_check import MAX_REMOTE_NAME
from strata.tool_execution.mcp.transports import McpTransports

Context = Any
MAX_PAGE_SIZE = 500


class McpServicer(pb_grpc.McpServiceServicer):
    """Manages MCP servers, their tools and sign-ins.

    Args:
        store: Store of the servers.
        manager: Manages the sessions.
        transports: Checks whether servers may be reached.
        sign_ins: Sign-ins of people.
    """

    def __init__(
        self, store: McpStore, manager: McpManager, transports: McpTransports, sign_ins: SignIns
    ) -> None:
        self._store = store
        self._manager = manager
        self._transports = transports
        self._sign_ins = sign_ins

    async def AddMcpServer(
        self, request: pb.AddMcpServerRequest, context: Context
    ) -> pb.AddMcpServerResponse:
        """Adds a server and reads its tools."""
        server, request_key = convert_mcp.to_new_server(request)
        await self._transports.check(server)
        stored_server = await self._store.add(server, request_key)
        if stored_server.id == server.id:
            await self._read(stored_server.id)
        return pb.AddMcpServerResponse(server=await self._whole(stored_server.id))

    async def GetMcpServer(
        self, request: pb.GetMcpServerRequest, context: Context
    ) -> pb.GetMcpServerResponse:
        """Returns a server with its usable tools."""
        return pb.GetMcpServerResponse(server=await self._whole(_id(request.mcp_server_id)))

    async def ListMcpServers(
        self, request: pb.ListMcpServersRequest, context: Context
    ) -> pb.ListMcpServersResponse:
        """Lists servers by name."""
        limit = page_limit(request.page_size, maximum=MAX_PAGE_SIZE)
        scope = "ListMcpServers"
        cursor = decode_page_token(scope, request.page_token, (str,))
        servers = await self._store.page(str(cursor[0]) if cursor else "", limit + 1)
        page = Page.cut(servers, limit, scope, lambda server: (server.name,))
        return pb.ListMcpServersResponse(
            servers=[
                convert_mcp.server_to_proto(server, with_credentials=_may_see_credentials())
                for server in page.rows
            ],
            next_page_token=page.next_page_token,
        )

    async def UpdateMcpServer(
        self, request: pb.UpdateMcpServerRequest, context: Context
    ) -> pb.UpdateMcpServerResponse:
        """Replaces the configuration of a server."""
        before = await self._store.get(_id(request.mcp_server_id))
        server = convert_mcp.to_changed_server(request, before)
        if server.enabled:
            await self._transports.check(server)
        await self._store.update(server)
        await self._read(server.id)
        return pb.UpdateMcpServerResponse(server=await self._whole(server.id))

    async def RefreshMcpServer(
        self, request: pb.RefreshMcpServerRequest, context: Context
    ) -> pb.RefreshMcpServerResponse:
        """Reads the tools again."""
        server = await self._store.get(_id(request.mcp_server_id))
        if server.enabled:
            await self._transports.check(server)
        changed = await self._read(server.id)
        return pb.RefreshMcpServerResponse(
            server=await self._whole(server.id), changed_tools=changed
        )

    async def RemoveMcpServer(
        self, request: pb.RemoveMcpServerRequest, context: Context
    ) -> pb.RemoveMcpServerResponse:
        """Removes a server with its tools."""
        server_id = _id(request.mcp_server_id)
        await self._store.delete(server_id)
        await self._manager.forget(server_id)
        return pb.RemoveMcpServerResponse()

    async def ListMcpTools(
        self, request: pb.ListMcpToolsRequest, context: Context
    ) -> pb.ListMcpToolsResponse:
        """Lists all known tools of a server."""
        server_id = _id(request.mcp_server_id)
        limit = page_limit(request.page_size, maximum=MAX_PAGE_SIZE)
        scope = f"ListMcpTools {server_id}"
        cursor = decode_page_token(scope, request.page_token, (str,))
        tools = await self._store.tools(server_id, str(cursor[0]) if cursor else "", limit + 1)
        page = Page.cut(tools, limit, scope, lambda tool: (tool.name,))
        return pb.ListMcpToolsResponse(
            tools=[convert_mcp.tool_of_server_to_proto(tool) for tool in page.rows],
            next_page_token=page.next_page_token,
        )

    async def ApproveMcpTool(
        self, request: pb.ApproveMcpToolRequest, context: Context
    ) -> pb.ApproveMcpToolResponse:
        """Approves the current description and schema of a changed tool."""
        server_id = _id(request.mcp_server_id)
        if not 0 < len(request.name) <= MAX_REMOTE_NAME or "\0" in request.name:
            problem = f"must be the name of a tool, at most {MAX_REMOTE_NAME} characters"
            raise invalid_field("name", problem)
        tool = await self._store.approve(server_id, request.name, request.version)
        return pb.ApproveMcpToolResponse(tool=convert_mcp.tool_of_server_to_proto(tool))

    async def BeginMcpSignIn(
        self, request: pb.BeginMcpSignInRequest, context: Context
    ) -> pb.BeginMcpSignInResponse:
        """Starts a sign-in; returns the URL for the browser."""
        server_id = _id(request.mcp_server_id)
        redirect_uri = convert_mcp.to_redirect(request.redirect_uri)
        step = await self._sign_ins.begin(server_id, redirect_uri)
        answer = pb.BeginMcpSignInResponse(
            authorization_url=step.url, issuer=step.issuer, scope=step.scope, state=step.state
        )
        answer.expire_time.FromDatetime(step.expire_time)
        return answer

    async def CompleteMcpSignIn(
        self, request: pb.CompleteMcpSignInRequest, context: Context
    ) -> pb.CompleteMcpSignInResponse:
        """Completes a sign-in with the authorization response of the browser."""
        server_id = _id(request.mcp_server_id)
        convert_mcp.check_authorization_response(request)
        await self._sign_ins.complete(server_id, request.state, request.code, request.issuer)
        await self._read(server_id)
        return pb.CompleteMcpSignInResponse(server=await self._whole(server_id))

    async def ForgetMcpSignIn(
        self, request: pb.ForgetMcpSignInRequest, context: Context
    ) -> pb.ForgetMcpSignInResponse:
        """Deletes the tokens of a server."""
        server_id = _id(request.mcp_server_id)
        await self._sign_ins.forget(server_id)
        await self._manager.forget(server_id)
        return pb.ForgetMcpSignInResponse(server=await self._whole(server_id))

    async def _read(self, server_id: str) -> list[str]:
        """Reads the tools of a server; the manager stores it if the server is unreachable."""
        try:
            return list((await self._manager.refresh(server_id)).changed)
        except ConnectError:
            return []

    async def _whole(self, server_id: str) -> pb.McpServer:
        server: McpServer = await self._store.get(server_id)
        return convert_mcp.server_to_proto(
            server,
            await self._store.usable(server_id),
            await self._store.quarantined(server_id),
            with_credentials=_may_see_credentials(),
        )


def _may_see_credentials() -> bool:
    return Scope.SECRETS in require_caller().scopes


def _id(server_id: str) -> str:
    return check_id(server_id, "mcp_server", field="mcp_server_id")
