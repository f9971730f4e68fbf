"""``strata agents tools``: attaches tools to an agent and detaches them."""

from __future__ import annotations

from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.common.v1 import tool_pb2
from strata.api.tool_execution.v1 import mcp_service_pb2 as mcp_pb
from strata.api.tool_execution.v1 import tool_service_pb2 as pb
from strata.cli.client import GatewayClient
from strata.cli.commands import mcp_lookup
from strata.cli.options import AgentArgument, GatewayOptions, JsonOption, online
from strata.cli.output import note, print_listing, safe
from strata.protocol.errors import NotFoundError
from strata.shared.convert.enums import enum_name
from strata.shared.one_line import clipped
from strata.shared.server_tools import server_of

_DESCRIPTION_CHARS = 80


@online
def show_tools(
    connection: GatewayOptions, agent: AgentArgument, as_json: JsonOption = False
) -> None:
    """List the tools of an agent's next turn, including all tools of its MCP servers."""

    async def read(client: GatewayClient) -> tuple[list[tuple[pb.Tool, str]], list[str]]:
        stored = await client.agent(agent)
        names = list(stored.tools)
        tools: list[tuple[pb.Tool, str]] = []
        problems: list[str] = []
        for name in (name for name in names if server_of(name) is None):
            try:
                response = await client.tools.GetTool(pb.GetToolRequest(name=name))
                tools.append((response.tool, ""))
            except NotFoundError:
                problems.append(f"{name}: there is no such tool now")
        left_out: frozenset[str] = frozenset()
        if any(server_of(name) for name in names):
            request = agent_pb.GetContextWindowRequest(agent_id=stored.id)
            left_out = frozenset((await client.agents.GetContextWindow(request)).tools_left_out)
        for name in names:
            server = server_of(name)
            if server is None:
                continue
            try:
                listed_server = await mcp_lookup.server_named(client, server)
            except NotFoundError:
                problems.append(f"{name}: there is no such MCP server")
                continue
            problem = _problem(listed_server)
            if problem:
                problems.append(f"{name}: {problem}")
                continue
            whole = await client.mcp.GetMcpServer(
                mcp_pb.GetMcpServerRequest(mcp_server_id=listed_server.id)
            )
            fitting = [tool for tool in whole.server.tools if tool.name not in names]
            offered = [tool for tool in fitting if tool.name not in left_out]
            if len(offered) < len(fitting):
                problems.append(
                    f"{name}: {len(fitting) - len(offered)} tools are left out: too many, or too"
                    " large for the context window"
                )
            tools += [(tool, name) for tool in offered]
            for unusable, reason in sorted(whole.server.quarantined_tools.items()):
                problems.append(f"{name}: {unusable} cannot be used: {reason}")
        return tools, problems

    tools, problems = connection.run(read)
    rows = [
        (
            tool.name,
            enum_name(tool_pb2.ToolType, tool.type),
            source,
            clipped(tool.description, _DESCRIPTION_CHARS),
        )
        for tool, source in tools
    ]
    print_listing(
        pb.ListToolsResponse(tools=[tool for tool, _ in tools]),
        ["name", "type", "part of", "description"],
        rows,
        empty="No tools.",
        as_json=as_json,
    )
    for problem in problems:
        note(safe(problem))


def _problem(server: mcp_pb.McpServer) -> str:
    if server.disabled:
        return "the MCP server is disabled"
    return f"the MCP server cannot be reached: {server.error}" if server.error else ""
