"""Tools: list, search, definition, and trying one."""

from __future__ import annotations

from starlette.responses import Response

from strata.api.common.v1 import tool_pb2
from strata.api.tool_execution.v1 import tool_service_pb2 as pb
from strata.gateway.console.tool_forms import arguments_of, fields_of
from strata.gateway.console.views.agent_names import agent_id_of
from strata.gateway.console.visits import ViewRoute, Visit
from strata.shared.convert.enums import numbers_by_name
from strata.shared.turn_texts import result_of, whole_arguments

_PAGE = 100
_HITS = 50
_RUN_TIMEOUT_S = 120.0
_RUNNABLE = (tool_pb2.TOOL_TYPE_CUSTOM, tool_pb2.TOOL_TYPE_MCP)
_TYPES = {
    name.lower(): number
    for name, number in numbers_by_name(tool_pb2.ToolType.DESCRIPTOR).items()
    if number
}
_WITH_MEMORY = "agent_state"
"""The parameter by which a custom tool asks for the memory of an agent."""


async def list_tools(visit: Visit) -> Response:
    """Lists tools, of one type or all, or those that fit a text."""
    query, kind = visit.query("query").strip(), visit.query("type")
    tools: list[pb.Tool] = []
    next_page = ""
    if query:
        matches = await visit.services.tools.SearchTools(
            pb.SearchToolsRequest(query=query, limit=_HITS)
        )
        tools = [hit.tool for hit in matches.hits]
        if kind in _TYPES:
            tools = [tool for tool in tools if tool.type == _TYPES[kind]]
    else:
        request = pb.ListToolsRequest(page_size=_PAGE, page_token=visit.query("page"))
        if kind in _TYPES:
            request.types.append(_TYPES[kind])  # type: ignore[arg-type]
        listing = await visit.services.tools.ListTools(request)
        tools, next_page = list(listing.tools), listing.next_page_token
    return visit.page(
        "tools/rows.html" if visit.by_htmx else "tools/list.html",
        tools=tools,
        next_page=next_page,
        query=query,
        kind=kind,
        kinds=list(_TYPES),
    )


async def show_tool(visit: Visit) -> Response:
    """Shows the definition of a tool, with a form to try it."""
    tool = await _tool_of(visit)
    return visit.page(
        "tools/tool.html",
        tool=tool,
        schema=whole_arguments(tool.parameters_json),
        fields=fields_of(tool.parameters_json),
        runnable=tool.type in _RUNNABLE,
        takes_agent=tool.type == tool_pb2.TOOL_TYPE_CUSTOM and _WITH_MEMORY in tool.source_code,
        ran=None,
    )


async def run_tool(visit: Visit) -> Response:
    """Runs a tool once with the arguments of the form, and shows what it returned."""
    tool = await _tool_of(visit)
    request = pb.RunToolRequest(
        tool_id=tool.id,
        arguments_json=arguments_of(tool.parameters_json, visit.form),
        agent_id=await agent_id_of(visit, visit.form.text("agent").strip()),
    )
    ran = await visit.services.tools.RunTool(request, timeout=_RUN_TIMEOUT_S)
    return visit.page(
        "tools/result.html" if visit.by_htmx else "tools/ran.html",
        tool=tool,
        arguments=whole_arguments(request.arguments_json),
        ran=ran,
        content=result_of(ran.tool_return.content),
    )


async def _tool_of(visit: Visit) -> pb.Tool:
    request = pb.GetToolRequest(tool_id=visit.argument("tool_id"))
    tool: pb.Tool = (await visit.services.tools.GetTool(request)).tool
    return tool


VIEWS = (
    ViewRoute("/tools", list_tools),
    ViewRoute("/tools/{tool_id}", show_tool),
    ViewRoute("/tools/{tool_id}/run", run_tool, "POST"),
)
