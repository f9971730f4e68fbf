"""The tools, resources and prompts for an agent's memory, as an MCP client uses them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import mcp_types as types
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from doubles.script import say
from mcp_clients import BY_EDITOR, EDITOR, refused, result_of
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.archival.v1 import passage_service_pb2 as passage_pb
from strata.api.core_memory.v1 import block_service_pb2 as pb
from strata.api.core_memory.v1 import file_service_pb2 as file_pb
from strata.api.gateway.v1 import admin_service_pb2 as admin_pb
from strata.api.tool_execution.v1 import tool_service_pb2 as tool_pb
from strata.cli.connection import Target
from strata.cli.mcp_server.memory import open_memory
from strata.shared.agent_mcp.definitions import CHANGING, READING
from strata.shared.agent_mcp.resources import uri_of
from strata.shared.agent_mcp.server import build_server
from strata.shared.ids import new_id
from tcp_relay import TcpRelay
from uploading import make_folder, until_read, upload
from whole_system import System

pytestmark = pytest.mark.asyncio(loop_scope="session")

FACTS = "Name: Ada\nCity: Graz"
OURS = {"list_memory_blocks", "read_memory_block", "view_memory", "memory_create"}


@asynccontextmanager
async def serving(
    system: System,
    agent: agent_pb.Agent,
    *,
    read_only: bool = False,
    key: str = "",
    address: str = "",
    on_message: Any = None,
) -> AsyncIterator[Client]:
    """Opens a client of a server in this process, connected to the running Strata."""
    target = Target(address or system.address, key or system.key, "Start it with: strata up")
    memory = await open_memory(lambda: target, agent.name)
    server = build_server(memory, read_only=read_only or not memory.may_write, one_connection=True)
    async with Client(
        server, client_info=EDITOR, mode="legacy", message_handler=on_message
    ) as client:
        yield client


async def ada(system: System) -> agent_pb.Agent:
    """An agent with one block of two lines, and one that is read-only."""
    blocks = [
        pb.NewBlock(label="human", value=FACTS),
        pb.NewBlock(label="rules", value="Be kind.", read_only=True),
    ]
    return await system.make_agent(blocks=blocks)


async def write(system: System, agent: agent_pb.Agent, value: str) -> None:
    """Changes the block as another editor."""
    block = await system.block(agent, "human")
    await system.blocks.UpdateBlock(pb.UpdateBlockRequest(block_id=block.id, value=value))


@pytest.mark.parametrize(
    ("tool", "arguments", "value"),
    [
        ("core_memory_append", {"content": "Likes tea"}, f"{FACTS}\nLikes tea"),
        ("memory_insert", {"new_str": "Age", "insert_line": 1}, "Name: Ada\nAge\nCity: Graz"),
        ("memory_insert", {"new_str": "Age: 36"}, f"{FACTS}\nAge: 36"),
        ("memory_replace", {"old_str": "Graz", "new_str": "Linz"}, "Name: Ada\nCity: Linz"),
        ("memory_rethink", {"new_memory": "Ada of Graz", "revision": 1}, "Ada of Graz"),
    ],
)  # fmt: skip
async def test_an_edit_is_returned_shown_and_stored_with_the_name_of_the_client(
    system: System, tool: str, arguments: dict[str, Any], value: str
) -> None:
    agent = await ada(system)
    async with serving(system, agent) as client:
        done = await result_of(client, tool, label="human", **arguments)
    assert (done["label"], done["revision"], done["merged"]) == ("human", 2, False)
    assert done["message"]
    assert done["diff"].startswith("@@")
    block = await system.block(agent, "human")
    assert block.value == value
    request = pb.BlameBlockRequest(block_id=block.id)
    lines = (await system.blocks.BlameBlock(request)).lines
    assert [line.origin.reason for line in lines if line.revision == 2] == [BY_EDITOR]


async def test_adjacent_edits_are_merged_and_overlapping_ones_are_conflicts(system: System) -> None:
    agent = await ada(system)
    async with serving(system, agent) as client:
        assert (await result_of(client, "read_memory_block", label="human"))["revision"] == 1
        await write(system, agent, "Name: Ada\nCity: Rome")
        done = await result_of(
            client, "memory_rethink", label="human", new_memory="Name: Ada L.\nCity: Graz",
            revision=1,
        )  # fmt: skip
        assert (done["revision"], done["merged"]) == (3, True)
        assert (await system.block(agent, "human")).value == "Name: Ada L.\nCity: Rome"

        rewritten = {"label": "human", "new_memory": "Name: Ada\nCity: Wien", "revision": 1}
        refusal = await refused(client, "memory_rethink", **rewritten)
        assert "[EDIT_CONFLICT]" in refusal
        assert "at revision 3" in refusal
        assert "City: Rome" in refusal
        replaced = {"label": "human", "old_str": "Graz", "new_str": "Wien"}
        assert "[EDIT_CONFLICT]" in await refused(client, "memory_replace", **replaced, revision=1)
        assert "[REVISION_MISMATCH]" in await refused(
            client, "memory_replace", **replaced, revision=99
        )
    assert (await system.block(agent, "human")).revision == 3


async def test_read_only_blocks_limits_and_unknown_labels_are_refused(system: System) -> None:
    agent = await ada(system)
    async with serving(system, agent) as client:
        refusal = await refused(client, "core_memory_append", label="rules", content="Not.")
        assert "[BLOCK_READ_ONLY]" in refusal
        long = await refused(client, "core_memory_append", label="human", content="x" * 30_000)
        assert "[BLOCK_LIMIT_EXCEEDED]" in long
        misspelt = {"label": "humna", "new_memory": "Ada", "revision": 1}
        assert "[BLOCK_NOT_FOUND]" in await refused(client, "memory_rethink", **misspelt)
        assert "[BLOCK_NOT_FOUND]" in await refused(client, "read_memory_block", label="humna")
        made = await result_of(
            client, "memory_create", label="trips", description="Journeys.", file_text="Porto"
        )
        assert made["revision"] == 1
        again = await refused(client, "memory_create", label="trips", description="Journeys.")
        assert "[NAME_TAKEN]" in again
        listed = (await result_of(client, "list_memory_blocks"))["blocks"]
    assert [(block["label"], block["read_only"], block["characters"]) for block in listed] == [
        ("human", False, len(FACTS)),
        ("rules", True, 8),
        ("trips", False, 5),
    ]
    assert listed[2]["description"] == "Journeys."


@pytest.mark.parametrize(
    ("tool", "arguments", "field"),
    [
        ("read_memory_block", {}, "'label' is a required property"),
        ("core_memory_append", {"label": "human", "content": 7}, "$.content: 7 is not of type"),
        ("memory_insert", {"label": "human", "new_str": "a", "insert_line": "1"}, "$.insert_line"),
        ("memory_rethink", {"label": "human", "new_memory": "a"}, "'revision' is a required"),
        ("memory_replace", {"label": "human", "old_str": "a", "new_str": "b", "by": 1}, "'by'"),
        ("conversation_search", {"query": "a", "roles": ["nobody"]}, "$.roles[0]"),
        ("conversation_search", {"query": "a", "start_date": "soon"}, "start_date: is not ISO"),
        ("conversation_search", {"query": "a", "end_date": "9999-12-31"}, "end_date: is not"),
        ("archival_memory_search", {"query": "a", "top_k": 1000}, "$.top_k"),
        ("memory_insert", {"label": "human", "new_str": "a", "insert_line": 10**12}, "too large"),
        ("core_memory_append", {"label": "human", "content": "\ud800"}, "surrogate"),
        ("memory_create", {"label": "7 up", "description": "x"}, "label"),
    ],
)
async def test_wrong_arguments_are_reported_and_nothing_is_done(
    system: System, ann: agent_pb.Agent, tool: str, arguments: dict[str, Any], field: str
) -> None:
    async with serving(system, ann) as client:
        assert field in await refused(client, tool, **arguments)
    assert (await system.block(ann, "human")).revision == 1


async def test_searches_find_messages_and_passages(system: System) -> None:
    agent = await system.make_agent(timezone="Asia/Tokyo")
    system.model.script(say("Noted."))
    await system.send(agent, "The kestrel nests on the tower.")
    async with serving(system, agent) as client:
        results = await result_of(client, "conversation_search", query="kestrel", roles=["user"])
        assert results["results"][0]["content"] == "The kestrel nests on the tower."
        assert results["results"][0]["role"] == "user"
        assert results["results"][0]["timestamp"].endswith("+09:00")
        day = results["results"][0]["timestamp"][:10]
        same = {"query": "kestrel", "start_date": day, "end_date": day}
        assert (await result_of(client, "conversation_search", **same))["results"]
        none = await result_of(
            client, "conversation_search", query="kestrel", end_date="2020-01-01"
        )
        assert none == {"message": "No results found.", "results": []}

        fact = {"content": "The spare key is under the blue pot.", "tags": ["house"]}
        stored = await result_of(client, "archival_memory_insert", **fact)
        assert stored["message"] == "Stored."
        twice = await result_of(client, "archival_memory_insert", **fact)
        assert twice["message"].startswith("Nothing was stored")
        assert (twice["id"], twice["tags"]) == (stored["id"], ["house"])
        hits = (await result_of(client, "archival_memory_search", query="blue pot"))["results"]
        assert [(hit["content"], hit["tags"]) for hit in hits] == [(fact["content"], ["house"])]
        other = {"query": "blue pot", "tags": ["garden"], "tag_match_mode": "all"}
        assert (await result_of(client, "archival_memory_search", **other))["results"] == []
    request = passage_pb.GetPassageRequest(passage_id=stored["id"])
    passage = (await system.passages.GetPassage(request)).passage
    assert dict(passage.metadata) == {"mcp_client": "Ed the Editor 7.1"}
    assert passage.origin.agent_id == ""


async def test_files_are_searched_and_open_files_are_shown(
    system: System, ann: agent_pb.Agent
) -> None:
    folder = await make_folder(system, name=f"papers {new_id('x')}")
    file = await upload(system, folder.id, "birds.txt", b"Finches sing.\nThe kestrel nests here.\n")
    await until_read(system, file)
    attach = file_pb.AttachFolderRequest(agent_id=ann.id, folder_id=folder.id)
    await system.files.AttachFolder(attach)
    name = f"{folder.name}/birds.txt"
    opened = file_pb.OpenFilesRequest(agent_id=ann.id, windows=[file_pb.FileWindow(file_name=name)])
    await system.files.OpenFiles(opened)
    async with serving(system, ann) as client:
        results = await result_of(client, "grep_files", pattern="KESTREL", context_lines=0)
        assert "The kestrel nests here." in results
        assert "Finches" not in results
        assert "kestrel" in await result_of(client, "semantic_search_files", query="kestrel nests")
        seen = await result_of(client, "view_memory")
    assert "<persona>" in seen
    assert "Finches sing." in seen
    assert seen == (await system.blocks.RenderMemory(pb.RenderMemoryRequest(agent_id=ann.id))).text


async def test_blocks_are_resources_under_their_agent(system: System, ann: agent_pb.Agent) -> None:
    agent = await ada(system)
    async with serving(system, agent) as client:
        listed = (await client.list_resources()).resources
        assert [(entry.name, entry.mime_type, entry.size) for entry in listed] == [
            ("human", "text/markdown", len(FACTS)),
            ("rules", "text/markdown", 8),
        ]
        uri = f"strata://agents/{agent.id}/blocks/human"
        assert listed[0].uri == uri
        assert listed[0].annotations is not None
        [contents] = (await client.read_resource(uri)).contents
        assert isinstance(contents, types.TextResourceContents)
        assert (contents.uri, contents.text) == (uri, FACTS)
        [template] = (await client.list_resource_templates()).resource_templates
        assert template.uri_template.replace("{label}", "human") == uri
        for elsewhere in (
            f"strata://agents/{ann.id}/blocks/human",
            f"strata://agents/{agent.id}/blocks/",
            f"strata://agents/{agent.id}/blocks/human/more",
            "file:///etc/passwd",
        ):
            with pytest.raises(MCPError, match="no memory block of this agent at this address"):
                await client.read_resource(elsewhere)
        for label, problem in {"nowhere": "BLOCK_NOT_FOUND", "x" * 1_000: "INVALID_FIELD"}.items():
            with pytest.raises(MCPError, match=problem) as refused:
                await client.read_resource(uri_of(agent.id, label))
            assert refused.value.code == types.INVALID_PARAMS


async def test_changed_blocks_are_reported_within_a_connection(system: System) -> None:
    agent = await ada(system)
    human, rules = (uri_of(agent.id, label) for label in ("human", "rules"))
    reports: asyncio.Queue[str] = asyncio.Queue()

    async def report(message: Any) -> None:
        if isinstance(message, types.ResourceUpdatedNotification):
            reports.put_nowait(message.params.uri)

    async def request(kind: Any, params: Any, uri: str) -> None:
        await client.session.send_request(kind(params=params(uri=uri)), types.EmptyResult)

    async with asyncio.timeout(30), serving(system, agent, on_message=report) as client:
        for uri in (human, rules, rules):
            await request(types.SubscribeRequest, types.SubscribeRequestParams, uri)
        await result_of(client, "core_memory_append", label="human", content="Likes tea.")
        assert await reports.get() == human
        await request(types.UnsubscribeRequest, types.UnsubscribeRequestParams, human)
        await result_of(client, "core_memory_append", label="human", content="Likes milk.")
        block = await system.block(agent, "rules")
        await system.blocks.UpdateBlock(pb.UpdateBlockRequest(block_id=block.id, value="Be fair."))
        assert await reports.get() == rules
    assert reports.empty()


async def test_prompts_put_memory_into_a_conversation(system: System, ann: agent_pb.Agent) -> None:
    await system.passages.InsertPassage(
        passage_pb.InsertPassageRequest(
            agent_id=ann.id, passage=passage_pb.NewPassage(text="The boat is moored in Hallstatt.")
        )
    )
    async with serving(system, ann) as client:
        prompts = {
            name: await _prompt(client, name, **arguments)
            for name, arguments in {
                "memory": {},
                "recall": {"topic": "boat"},
                "remember": {"fact": "The boat is sold."},
            }.items()
        }
        for name, arguments in (
            ("recall", {}),
            ("recall", {"topic": " "}),
            ("recall", {"topic": "x" * 4_001}),
            # Recall refuses these.
            ("recall", {"topic": "x" * 4_000}),
            ("recall", {"topic": "\u200b"}),
            ("forget", {}),
        ):
            with pytest.raises(MCPError) as refused:
                await client.get_prompt(name, arguments)
            assert refused.value.code == types.INVALID_PARAMS
    assert "<memory_blocks>" in prompts["memory"]
    assert "moored in Hallstatt" in prompts["recall"]
    assert "The boat is sold." in prompts["remember"]
    async with serving(system, ann, read_only=True) as client:
        assert "remember" not in [one.name for one in (await client.list_prompts()).prompts]
        with pytest.raises(MCPError, match="no prompt 'remember', but memory, recall"):
            await client.get_prompt("remember", {"fact": "x"})


async def _prompt(client: Client, name: str, **arguments: str) -> str:
    [message] = (await client.get_prompt(name, arguments)).messages
    assert isinstance(message.content, types.TextContent)
    return message.content.text


async def test_two_agents_do_not_see_each_other(system: System) -> None:
    one, other = await ada(system), await ada(system)
    system.model.script(say("Noted."))
    await system.send(other, "The kestrel is a secret.")
    async with serving(system, one) as mine, serving(system, other) as theirs:
        await result_of(theirs, "archival_memory_insert", content="The kestrel nests in the tower.")
        await result_of(theirs, "core_memory_append", label="human", content="kestrel")
        await result_of(
            theirs, "memory_create", label="birds", description="Birds.", file_text="kestrel"
        )
        labels = [
            block["label"] for block in (await result_of(mine, "list_memory_blocks"))["blocks"]
        ]
        assert labels == ["human", "rules"]
        assert "kestrel" not in await result_of(mine, "view_memory")
        for tool in ("conversation_search", "archival_memory_search"):
            assert (await result_of(theirs, tool, query="kestrel"))["results"]
            assert (await result_of(mine, tool, query="kestrel"))["results"] == []


async def test_read_only_omits_tools_that_change_data(system: System, ann: agent_pb.Agent) -> None:
    made = await system.admin.CreateApiKey(
        admin_pb.CreateApiKeyRequest(project_id=system.project_id, name="reader", scopes=["read"])
    )
    async with (
        serving(system, ann, read_only=True) as asked,
        serving(system, ann, key=made.secret) as barred,
    ):
        for client in (asked, barred):
            tools = (await client.list_tools()).tools
            assert [tool.name for tool in tools] == [tool.name for tool in READING]
            assert all(tool.annotations and tool.annotations.read_only_hint for tool in tools)
            assert await result_of(client, "read_memory_block", label="human")
            with pytest.raises(MCPError, match="read-only"):
                await client.call_tool("core_memory_append", {"label": "human", "content": "x"})
    assert (await system.block(ann, "human")).revision == 1


async def test_every_tool_declares_its_effect_on_memory(
    system: System, ann: agent_pb.Agent
) -> None:
    async with serving(system, ann) as client:
        tools = (await client.list_tools()).tools
        with pytest.raises(MCPError, match="no tool 'memory_forget'"):
            await client.call_tool("memory_forget", {})
    hints = {
        tool.name: (
            tool.annotations.read_only_hint,
            tool.annotations.destructive_hint,
            tool.annotations.idempotent_hint,
            tool.annotations.open_world_hint,
        )
        for tool in tools
        if tool.annotations
    }
    assert {name for name, (reads, *_) in hints.items() if reads} == {e.name for e in READING}
    assert {name: hint for name, hint in hints.items() if not hint[0]} == {
        "core_memory_append": (False, False, False, False),
        "memory_insert": (False, False, False, False),
        "memory_replace": (False, True, False, False),
        "memory_rethink": (False, True, True, False),
        "memory_create": (False, False, False, False),
        "archival_memory_insert": (False, False, True, False),
    }


async def test_tools_have_the_arguments_of_the_agents_own(system: System) -> None:
    for tool in READING + CHANGING:
        if tool.name in OURS:
            continue
        response = await system.tools.GetTool(tool_pb.GetToolRequest(name=tool.name))
        own = json.loads(response.tool.parameters_json)["properties"]
        here = dict(tool.input_schema["properties"])
        here.pop("revision", None)
        assert {name: _shape(parameter) for name, parameter in here.items()} == {
            name: _shape(parameter) for name, parameter in own.items()
        }, tool.name


async def test_tools_work_again_after_the_gateway_was_unreachable(
    system: System, ann: agent_pb.Agent
) -> None:
    async with (
        TcpRelay(system.address) as relay,
        serving(system, ann, address=relay.address) as client,
    ):
        assert await result_of(client, "read_memory_block", label="human")
        await relay.close()
        refusal = await refused(client, "core_memory_append", label="human", content="Lost.")
        assert refusal == f"No gateway answers at {relay.address}. Start it with: strata up"
        with pytest.raises(MCPError, match="No gateway answers"):
            await client.list_resources()
        await relay.open()
        await result_of(client, "core_memory_append", label="human", content="Found.")
    value = (await system.block(ann, "human")).value
    assert value.endswith("Found.")
    assert "Lost." not in value


def _shape(schema: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in schema.items() if name != "description"}
