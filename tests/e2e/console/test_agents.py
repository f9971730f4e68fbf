"""The pages of agents: list, search, create, clone, delete."""

from __future__ import annotations

import pytest

from console_client import HOSTILE, ConsoleClient, shown
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.common.v1 import message_pb2
from strata.api.core_memory.v1 import block_service_pb2 as block_pb
from strata.protocol.errors import NotFoundError
from whole_system import System

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def agent_named(system: System, name: str) -> agent_pb.Agent:
    agent: agent_pb.Agent = (
        await system.agents.GetAgent(agent_pb.GetAgentRequest(name=name))
    ).agent
    return agent


async def test_agent_is_created_with_type_tools_and_blocks(
    system: System, ann: ConsoleClient
) -> None:
    response = await ann.post(
        "/agents",
        {
            "name": "made in the console",
            "description": "For a test.",
            "type": "memgpt_v2_agent",
            "model": "openai/test-model",
            "tags": "green, blue",
            "with_blocks": "on",
            "block-persona": "I am terse.\r\nVery.",
            "block-human": "",
            "label": ["projects", ""],
            "value": ["Strata.", ""],
            "tool": ["run_code", "fetch_webpage"],
        },
    )
    assert response.status_code == 303, response.text
    agent = await agent_named(system, "made in the console")
    assert response.headers["location"] == f"/console/agents/{agent.id}/chat"
    assert agent.type == agent_pb.AGENT_TYPE_MEMGPT_V2
    assert agent.model.handle == "openai/test-model"
    assert list(agent.tags) == ["blue", "green"]
    assert {"run_code", "fetch_webpage", "send_message"} <= set(agent.tools)
    blocks = await system.blocks.ListBlocks(block_pb.ListBlocksRequest(agent_id=agent.id))
    assert {block.label: block.value for block in blocks.blocks} == {
        "persona": "I am terse.\nVery.",
        "human": "",
        "projects": "Strata.",
    }


async def test_refused_agent_is_explained(system: System, ann: ConsoleClient) -> None:
    agent = await system.make_agent()
    page = await ann.post("/agents", {"name": agent.name, "with_blocks": "on"})
    assert (page.status_code, "NAME_TAKEN" in page.text) == (409, True)
    part = await ann.post("/agents", {"name": agent.name}, headers={"hx-request": "true"})
    assert part.headers["hx-retarget"] == "#notices"
    assert "<html" not in part.text
    unknown = await ann.post("/agents", {"name": "x", "type": "robot"})
    assert (unknown.status_code, "robot" in unknown.text) == (400, True)


async def test_list_finds_agents_by_name_and_tag(system: System, ann: ConsoleClient) -> None:
    await system.make_agent(name="heron one", tags=["bird"])
    await system.make_agent(name="heron two")
    page = (await ann.get("/agents", params={"name": "heron"})).text
    assert ("heron one" in page, "heron two" in page) == (True, True)
    page = (await ann.get("/agents", params={"name": "heron", "tag": "bird"})).text
    assert ("heron one" in page, "heron two" in page) == (True, False)
    part = (await ann.get("/agents", params={"name": "heron"}, headers={"hx-request": "true"})).text
    assert part.strip().startswith('<div id="agents"')
    assert "No agent matches" in (await ann.get("/agents", params={"name": "stork"})).text


async def test_clone_has_settings_and_copies_of_blocks(system: System, ann: ConsoleClient) -> None:
    agent = await system.make_agent(
        name="original",
        description="For a test.",
        tags=["copied"],
        timezone="Europe/Lisbon",
        system="Be brief.",
        blocks=[
            block_pb.NewBlock(label="persona", value="I am first.", limit=321, read_only=True),
            block_pb.NewBlock(label="notes", value="Empty."),
        ],
    )
    await system.blocks.EditBlock(
        block_pb.EditBlockRequest(
            agent_id=agent.id,
            label="notes",
            append=block_pb.AppendEdit(content="From a page."),
            origin=block_pb.EditOrigin(taint=[message_pb2.PROVENANCE_WEB]),
        )
    )
    response = await ann.post(f"/agents/{agent.id}/clone", {"name": "clone of it"})
    assert response.status_code == 303, response.text
    clone = await agent_named(system, "clone of it")
    assert clone.id != agent.id
    for field in ("description", "tags", "timezone", "system", "tools", "type"):
        assert getattr(clone, field) == getattr(agent, field)
    copies = await system.blocks.ListBlocks(block_pb.ListBlocksRequest(agent_id=clone.id))
    persona, notes = copies.blocks
    assert (persona.value, persona.limit, persona.read_only) == ("I am first.", 321, True)
    assert notes.value == "Empty.\nFrom a page."
    assert list(notes.taint) == [message_pb2.PROVENANCE_WEB]
    assert list(persona.agent_ids) == [clone.id]


async def test_agent_is_deleted(system: System, ann: ConsoleClient) -> None:
    agent = await system.make_agent()
    response = await ann.post(f"/agents/{agent.id}/delete", headers={"hx-request": "true"})
    assert response.headers["hx-redirect"] == "/console/agents"
    with pytest.raises(NotFoundError):
        await system.agents.GetAgent(agent_pb.GetAgentRequest(agent_id=agent.id))


async def test_hostile_texts_of_an_agent_are_escaped(system: System, ann: ConsoleClient) -> None:
    agent = await system.make_agent(
        name="<b onclick=alert(1)>agent", description=HOSTILE, system=HOSTILE, tags=["<i>"]
    )
    for path in (f"/agents/{agent.id}/settings", "/agents"):
        page = (await ann.get(path)).text
        assert shown(HOSTILE)[:60] in page
        assert "<script>alert" not in page
        assert "<img src=x" not in page
        assert "<b onclick" not in page
        assert "\u202e" not in page
