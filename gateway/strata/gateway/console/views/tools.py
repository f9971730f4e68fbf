"""Tools: list, search, definition, trying one; storing, changing and deleting custom tools."""

from __future__ import annotations

from starlette.responses import Response

from strata.api.common.v1 import tool_pb2
from strata.api.tool_execution.v1 import tool_service_pb2 as pb
from strata.gateway.console.form_pages import FormPage, check_unchanged, lines_in, refusal
from strata.gateway.console.form_values import whole_number
from strata.gateway.console.forms import FormFields
from strata.gateway.console.tool_forms import arguments_of, fields_of
from strata.gateway.console.views.agent_names import agent_id_of
from strata.gateway.console.visits import ViewRoute, Visit
from strata.protocol.errors import InvalidArgumentError, StrataError
from strata.shared.convert.enums import numbers_by_name
from strata.shared.ids import new_id
from strata.shared.tool_returns import result_of
from strata.shared.turn_texts import whole_arguments

_PAGE = 100
_HITS = 50
_RUN_TIMEOUT_S = 120.0
_RUNNABLE = (tool_pb2.TOOL_TYPE_CUSTOM, tool_pb2.TOOL_TYPE_MCP)
_TYPES = {
    name.lower(): number
    for name, number in numbers_by_name(tool_pb2.ToolType.DESCRIPTOR).items()
    if number
}
_EFFECTS = {
    name.lower(): number for name, number in numbers_by_name(tool_pb2.ToolEffect.DESCRIPTOR).items()
}
_EDITABLE = (tool_pb2.TOOL_TYPE_CUSTOM, tool_pb2.TOOL_TYPE_CLIENT)
# Packages of a new version are fetched before it is stored.
_STORE_TIMEOUT_S = 300.0
_NOT_SAVED = "The tool was not saved."
_FORM = FormPage(
    "tools/form.html",
    {
        name: name
        for name in (
            "name",
            "source_code",
            "description",
            "parameters_json",
            "tags",
            "return_char_limit",
            "effect",
            "pip_requirements",
            "secret_names",
            "allowed_hosts",
            "default_requires_approval",
            "enable_parallel_execution",
        )
    },
)
_WITH_MEMORY = "agent_state"
"""The parameter by which a custom tool gets the memory of an agent."""


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
        editable=tool.type in _EDITABLE,
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


async def new_tool(visit: Visit) -> Response:
    """Shows the form for a new custom tool."""
    form = FormFields({"request_id": [new_id("console")], "type": ["custom"]})
    return _FORM.show(visit, form, **_choices(None))


async def create_tool(visit: Visit) -> Response:
    """Stores a new custom tool from the form."""
    form = visit.form
    try:
        request = _definition(form)
        request.request_id = form.text("request_id")
        request.name = form.text("name").strip()
        request.source_code = form.text("source_code")
        request.description = form.text("description").strip()
        request.parameters_json = form.text("parameters_json").strip()
        stored = await visit.services.tools.UpsertTool(request, timeout=_STORE_TIMEOUT_S)
    except StrataError as error:
        return _FORM.show_again(visit, error, **_choices(None))
    return visit.go_to(f"/tools/{stored.tool.id}")


async def edit_tool(visit: Visit) -> Response:
    """Shows the form that changes a tool."""
    tool = await _editable_tool(visit)
    form = FormFields(
        {
            "version": [tool.version],
            "source_code": [tool.source_code],
            "description": [tool.description],
            "parameters_json": [whole_arguments(tool.parameters_json)],
            "tags": ["\n".join(tool.tags)],
            "return_char_limit": [str(tool.return_char_limit)],
            "effect": [name for name, number in _EFFECTS.items() if number == tool.effect],
            "default_requires_approval": ["on" if tool.default_requires_approval else ""],
            "enable_parallel_execution": ["on" if tool.enable_parallel_execution else ""],
            "pip_requirements": ["\n".join(tool.pip_requirements)],
            "secret_names": ["\n".join(tool.secret_names)],
            "allowed_hosts": ["\n".join(tool.allowed_hosts)],
        }
    )
    return _FORM.show(visit, form, **_choices(tool))


async def update_tool(visit: Visit) -> Response:
    """Stores a new version of a tool, unless another one was stored meanwhile.

    The stored tool does not say whether its description and its schema were derived from its
    source. If the form leaves them unchanged, they are kept with an unchanged source, and derived
    again from a changed one.
    """
    tool, form = await _editable_tool(visit), visit.form
    source = form.text("source_code")
    source_stays = source == tool.source_code.replace("\r\n", "\n")
    try:
        check_unchanged(form.text("version"), tool.version, "tool")
        request = _definition(form)
        request.request_id = new_id("console")
        request.type = tool.type
        request.name = tool.name
        request.source_code = source
        description = form.text("description").strip()
        if source_stays or description != tool.description.strip():
            request.description = description
        parameters = form.text("parameters_json").strip()
        if parameters != whole_arguments(tool.parameters_json).strip():
            request.parameters_json = parameters
        elif source_stays:
            request.parameters_json = tool.parameters_json
        await visit.services.tools.UpsertTool(request, timeout=_STORE_TIMEOUT_S)
    except StrataError as error:
        return _FORM.show_again(visit, error, **_choices(tool))
    return visit.go_to(f"/tools/{tool.id}")


def _definition(form: FormFields) -> pb.UpsertToolRequest:
    """Returns the request for a tool in a form, without its name, source, description and schema.

    Raises:
        InvalidArgumentError: A field has a wrong value.
    """
    effect = form.text("effect") or "unspecified"
    if effect not in _EFFECTS:
        raise refusal(_NOT_SAVED, "effect", f"{effect!r} is not one of the choices")
    return pb.UpsertToolRequest(
        tags=lines_in(form, "tags"),
        return_char_limit=whole_number(
            form.text("return_char_limit"), "return_char_limit", _NOT_SAVED
        ),
        effect=_EFFECTS[effect],  # type: ignore[arg-type]
        default_requires_approval=form.checked("default_requires_approval"),
        enable_parallel_execution=form.checked("enable_parallel_execution"),
        pip_requirements=lines_in(form, "pip_requirements"),
        secret_names=lines_in(form, "secret_names"),
        allowed_hosts=lines_in(form, "allowed_hosts"),
    )


def _choices(tool: pb.Tool | None) -> dict[str, object]:
    """Returns the values of a page with the form of a tool, other than the fields."""
    effects = [("unspecified", "not declared: a call is never repeated automatically")]
    effects += [(name, name.replace("_", " ")) for name, number in _EFFECTS.items() if number]
    return {
        "tool": tool,
        "effects": effects,
        "by_client": tool is not None and tool.type == tool_pb2.TOOL_TYPE_CLIENT,
    }


async def delete_tool(visit: Visit) -> Response:
    """Deletes a tool; agents continue without it."""
    request = pb.DeleteToolRequest(tool_id=visit.argument("tool_id"))
    await visit.services.tools.DeleteTool(request)
    return visit.go_to("/tools")


async def _editable_tool(visit: Visit) -> pb.Tool:
    """Returns the tool in the path of a request.

    Raises:
        NotFoundError: There is no such tool in the project of the key.
        InvalidArgumentError: It is built in, or one of an MCP server.
    """
    tool = await _tool_of(visit)
    if tool.type not in _EDITABLE:
        raise InvalidArgumentError(
            f"{tool.name} is built in or belongs to an MCP server, so it cannot be changed here."
        )
    return tool


async def _tool_of(visit: Visit) -> pb.Tool:
    request = pb.GetToolRequest(tool_id=visit.argument("tool_id"))
    tool: pb.Tool = (await visit.services.tools.GetTool(request)).tool
    return tool


VIEWS = (
    ViewRoute("/tools", list_tools),
    ViewRoute("/tools/new", new_tool),
    ViewRoute("/tools/new", create_tool, "POST"),
    ViewRoute("/tools/{tool_id}", show_tool),
    ViewRoute("/tools/{tool_id}/edit", edit_tool),
    ViewRoute("/tools/{tool_id}/edit", update_tool, "POST"),
    ViewRoute("/tools/{tool_id}/delete", delete_tool, "POST"),
    ViewRoute("/tools/{tool_id}/run", run_tool, "POST"),
)
