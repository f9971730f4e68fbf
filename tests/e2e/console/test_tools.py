"""The pages of tools and MCP servers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from console_client import HOSTILE, ConsoleClient, shown
from console_records import make_tool
from mcp_support import open_folder, program_command, tool
from strata.api.core_memory.v1.block_service_pb2 import NewBlock
from strata.api.tool_execution.v1 import mcp_service_pb2 as mcp_pb
from strata.api.tool_execution.v1 import mcp_service_pb2_grpc as mcp_grpc
from strata.gateway.console.forms import FormFields
from strata.gateway.console.tool_forms import JSON_FIELD, arguments_of, fields_of
from strata.protocol.errors import InvalidArgumentError, NotFoundError
from whole_system import System

pytestmark = pytest.mark.asyncio(loop_scope="session")

SOURCE = '''
def garden(beds: int, plant: str, tall: bool = False, tags: list[str] | None = None) -> str:
    """Plants a garden.

    Args:
        beds: How many beds.
        plant: What <script>alert(1)</script> grows there.
        tall: Whether it is tall.
        tags: Labels.
    """
    print("<script>alert(2)</script>")
    return f"{beds} beds of {plant}, tall: {tall}, tags: {tags}"
'''
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "count": {"type": "integer"},
            "weight": {"anyOf": [{"type": "number"}, {"type": "null"}], "default": None},
            "name": {"type": "string", "description": "A name."},
            "hint": {"type": "string"},
            "on": {"type": "boolean"},
            "kind": {"type": "string", "enum": ["a", "b"]},
            "rows": {"type": "array"},
        },
        "required": ["count", "name"],
    }
)


async def test_tool_is_tried_with_arguments_of_the_form(system: System, ann: ConsoleClient) -> None:
    stored = await make_tool(system, SOURCE)
    page = (await ann.get(f"/tools/{stored.id}")).text
    assert 'name="argument:beds"' in page
    assert shown('print("<script>alert(2)</script>")') in page
    assert "<script>alert" not in page
    arguments = {"argument:beds": "3", "argument:plant": HOSTILE, "argument:tags": '["x"]'}
    ran = await ann.post(f"/tools/{stored.id}/run", arguments, headers={"hx-request": "true"})
    assert ran.status_code == 200
    assert shown(f"3 beds of {HOSTILE}, tall: False, tags: ['x']") in ran.text
    assert "<script>" not in ran.text
    assert "<html" not in ran.text
    written = {JSON_FIELD: '{"beds": 1, "plant": "fern"}'}
    whole = await ann.post(f"/tools/{stored.id}/run", written)
    assert "1 beds of fern" in whole.text
    assert "<html" in whole.text


async def test_refused_arguments_are_explained(system: System, ann: ConsoleClient) -> None:
    stored = await make_tool(system, SOURCE)
    form = {"argument:beds": "many", "argument:plant": "", "argument:tags": "[1"}
    refused = await ann.post(f"/tools/{stored.id}/run", form, headers={"hx-request": "true"})
    assert refused.status_code == 400
    assert "<code>beds</code>" in refused.text
    assert "<code>tags</code>" in refused.text
    builtin = (await ann.get("/tools", params={"type": "core"})).text
    tool_id = "tool-" + builtin.partition("/console/tools/tool-")[2].partition('"')[0]
    assert "cannot be run without an agent" in (await ann.get(f"/tools/{tool_id}")).text
    response = await ann.post(f"/tools/{tool_id}/run")
    assert (response.status_code, "built in" in response.text) == (400, True)


async def test_a_tool_can_be_tried_with_the_memory_of_an_agent(
    system: System, ann: ConsoleClient
) -> None:
    agent = await system.make_agent(blocks=[NewBlock(label="human", value="Likes tea.")])
    source = '''
def rewrite(agent_state) -> str:
    """Rewrites what is known."""
    agent_state.memory.update_block_value(label="human", value="<i>Likes coffee.</i>")
    return "done"
'''
    stored = await make_tool(system, source)
    assert 'name="agent"' in (await ann.get(f"/tools/{stored.id}")).text
    ran = (await ann.post(f"/tools/{stored.id}/run", {"agent": agent.name})).text
    assert shown("<i>Likes coffee.</i>") in ran
    assert (await system.block(agent, "human")).value == "Likes tea."


async def test_tools_are_found_by_type_and_text(system: System, ann: ConsoleClient) -> None:
    stored = await make_tool(system, SOURCE)
    custom = (await ann.get("/tools", params={"type": "custom"})).text
    assert stored.id in custom
    assert "archival_memory_search" not in custom
    part = await ann.get("/tools", params={"query": "plant"}, headers={"hx-request": "true"})
    assert part.text.strip().startswith('<div id="tools"')
    assert stored.id in part.text


async def test_server_is_added_checked_approved_and_removed(
    system: System, ann: ConsoleClient
) -> None:
    with open_folder() as folder:
        listed = folder / "tools.json"
        _list(listed, HOSTILE)
        response = await ann.post(
            "/mcp",
            {
                "name": "garden",
                "transport": "stdio",
                "command": "\r\n".join([*program_command(), str(listed)]),
                "environment": "LEVEL=2\r\n",
            },
        )
        assert response.status_code == 303, response.text
        path = response.headers["location"].removeprefix("/console")
        page = (await ann.get(path)).text
        assert "healthy" in page
        assert "garden__water" in page
        assert shown("<script>alert(1)") in page
        assert "<script>alert" not in page
        assert "garden" in (await ann.get("/mcp")).text

        _list(listed, "Something else.")
        await ann.post(f"{path}/check")
        page = (await ann.get(path)).text
        assert "Approve the present definition" in page
        version = page.partition('name="version" value="')[2].partition('"')[0]
        await ann.post(f"{path}/approve", {"name": "water", "version": version})
        page = (await ann.get(path)).text
        assert "Approve the present definition" not in page
        tool_id = page.partition("/console/tools/")[2].partition('"')[0]
        ran = (await ann.post(f"/tools/{tool_id}/run", {JSON_FIELD: '{"x": "<b>"}'})).text
        assert "&lt;b&gt;" in ran
        assert "untrusted: from an MCP server" in ran
        removed = await ann.post(f"{path}/remove")
    assert removed.headers["location"] == "/console/mcp"
    with pytest.raises(NotFoundError):
        await mcp_grpc.McpServiceStub(system.channel).GetMcpServer(
            mcp_pb.GetMcpServerRequest(mcp_server_id=path.rpartition("/")[2])
        )


def _list(file: Path, description: str) -> None:
    file.write_text(json.dumps([tool("water", description)]))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"transport": "pigeon"}, "transport"),
        ({"headers": "no separator"}, "headers"),
        ({"call_timeout": "soon"}, "call_timeout"),
        ({"url": "ftp://x"}, "url"),
    ],
)
async def test_a_refused_server_is_explained_beside_the_field(
    ann: ConsoleClient, fields: dict[str, str], named: str
) -> None:
    form = {"name": "refused", "transport": "sse", "url": "https://mcp.example/mcp", **fields}
    response = await ann.post("/mcp", form)
    assert response.status_code == 400
    assert f'id="{named}-problem"' in response.text
    assert 'value="refused"' in response.text


async def test_form_of_a_schema_makes_arguments_of_its_types() -> None:
    form = FormFields(
        {
            "argument:count": ["3"],
            "argument:weight": ["1.5"],
            "argument:name": [""],
            "argument:hint": [""],
            "argument:on": ["true"],
            "argument:kind": ["b"],
            "argument:rows": ["[1, null]"],
        }
    )
    assert json.loads(arguments_of(SCHEMA, form)) == {
        "count": 3,
        "weight": 1.5,
        "name": "",
        "on": True,
        "kind": "b",
        "rows": [1, None],
    }
    kinds = {field.name: field.kind for field in fields_of(SCHEMA)}
    assert (kinds["weight"], kinds["rows"], kinds["count"]) == ("number", "json", "integer")
    wrong = {"count": "1e3", "weight": "nan", "on": "perhaps", "rows": "{"}
    form = FormFields({f"argument:{name}": [text] for name, text in wrong.items()})
    with pytest.raises(InvalidArgumentError) as refusal:
        arguments_of(SCHEMA, form)
    assert [violation.field for violation in refusal.value.violations] == [*wrong]


@pytest.mark.parametrize(
    "schema", ["", "[]", "{", '{"properties": []}', '{"properties": {"a": 1}}']
)
async def test_a_schema_without_simple_types_makes_json_fields(schema: str) -> None:
    fields = fields_of(schema)
    assert [field.kind for field in fields] == ["json"] * len(fields)
