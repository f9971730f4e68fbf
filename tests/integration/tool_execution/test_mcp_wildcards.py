"""Agents that have all tools of an MCP server under one name, such as ``files__*``."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from doubles.script import Call, Reply, rate_limited, say
from mcp_support import Mcp, names, tool
from mortal_loop import Died, Mortal
from polling import eventually
from strata.agent_loop.domain.tools import ToolEvent
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.common.v1 import message_pb2, tool_pb2
from strata.api.tool_execution.v1 import execution_service_pb2 as pb
from strata.api.tool_execution.v1 import mcp_service_pb2 as mcp_pb
from strata.protocol.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    Reason,
)
from strata.shared.ids import new_id
from strata.shared.tool_catalogue import MAX_AGENT_TOOLS, MAX_OFFERED_TOOLS

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def resolve(mcp: Mcp, *wanted: str, run_id: str = "") -> pb.ResolveToolsResponse:
    """Resolves the tools of an agent."""
    request = pb.ResolveToolsRequest(names=wanted, run_id=run_id, skip_missing=True)
    response: pb.ResolveToolsResponse = await mcp.execution.ResolveTools(request)
    return response


async def test_an_agent_with_a_whole_server_can_call_its_tools(mcp: Mcp) -> None:
    await mcp.program("weather", tool("echo"), tool("odd", schema="none"))
    agent = await mcp.services.make_agent(tools=["weather__*"], include_base_tools=False)
    assert list(agent.tools) == ["weather__*"]
    mcp.services.model.script(Reply(calls=(Call("weather__echo", {"a": 1}),)), say("Done."))
    ran = await mcp.services.run(agent, "Echo.")
    offered = [request.tool_names for request in mcp.services.model.requests[-2:]]
    assert offered == [["weather__echo"]] * 2
    [returned] = ran.tool_returns
    assert json.loads(returned.content)["status"] == "OK"
    assert returned.provenance == message_pb2.PROVENANCE_MCP
    assert list(ran.finished.taint) == [message_pb2.PROVENANCE_MCP]


async def test_tools_added_and_removed_by_a_server_during_a_turn_apply_from_the_next_turn(
    mcp: Mcp,
) -> None:
    server, listed = await mcp.program("pets", tool("change"), tool("feed"))
    agent = await mcp.services.make_agent(tools=["pets__*"], include_base_tools=False)
    listed.write(tool("change"), tool("new"))
    mcp.services.model.script(Reply(calls=(Call("pets__change", {}),)), say("Done."), say("And?"))
    await mcp.services.run(agent, "Change.")

    async def seen() -> bool:
        return "new" in await mcp.states(server)

    await eventually(seen)
    await mcp.services.run(agent, "What now?")
    before, after = ["pets__change", "pets__feed"], ["pets__change", "pets__new"]
    offered = [request.tool_names for request in mcp.services.model.requests[-3:]]
    assert offered == [before, before, after]


async def test_a_turn_that_another_process_continues_keeps_its_tools(
    mcp: Mcp, mortal: Mortal
) -> None:
    server, listed = await mcp.program("pets", tool("echo"), tool("feed"))
    agent = await mcp.services.make_agent(tools=["pets__*"], include_base_tools=False)
    request = mortal.request(agent, "Echo.")
    mcp.services.model.script(Reply(calls=(Call("pets__echo", {}),)), say("Done."))

    def die(_event: ToolEvent) -> None:
        raise Died

    mortal.tools.at = die
    with pytest.raises(Died):
        await mortal.run(request)
    listed.write(tool("echo"), tool("new"))
    await mcp.refresh(server)
    mortal.tools.at = lambda _event: None
    await mortal.run(replace(request, attempt=2))
    offered = [request.tool_names for request in mcp.services.model.requests[-2:]]
    assert offered == [["pets__echo", "pets__feed"]] * 2
    run_id = new_id("run")
    assert names((await resolve(mcp, "pets__*", run_id=run_id)).tools) == [
        "pets__echo",
        "pets__new",
    ]


async def test_the_revision_is_the_same_while_nothing_changed(mcp: Mcp) -> None:
    server, listed = await mcp.program("pets", tool("a"), tool("b"))
    first, second = [await resolve(mcp, "pets__*", run_id=new_id("run")) for _ in range(2)]
    assert first.revision == second.revision
    listed.write(tool("a"))
    await mcp.refresh(server)
    assert (await resolve(mcp, "pets__*")).revision != first.revision


async def test_tools_of_an_unavailable_server_are_missing_until_it_is_back(
    mcp: Mcp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strata.tool_execution.mcp.manager._FIRST_PAUSE_S", 0.05)
    _, listed = await mcp.program("pets", tool("echo"), tool("die"))
    agent = await mcp.services.make_agent(tools=["conversation_search", "pets__*"])
    listed.file.unlink()
    await mcp.unknown("pets__die")
    assert "was not run" in await mcp.refused("pets__echo")
    [note] = (await resolve(mcp, "pets__*")).servers
    assert (note.name, note.tools) == ("pets__*", 0)
    assert "the MCP server cannot be reached" in note.problem
    mcp.services.model.script(say("Without them."))
    ran = await mcp.services.run(agent, "Hello.")
    assert ran.text == "Without them."
    assert not [
        name for name in mcp.services.model.requests[-1].tool_names if name.startswith("pets")
    ]
    listed.write(tool("echo"))

    async def back() -> bool:
        return names((await resolve(mcp, "pets__*")).tools) == ["pets__echo"]

    await eventually(back)


async def test_a_tool_named_singly_and_by_its_server_is_offered_once(mcp: Mcp) -> None:
    await mcp.program("pets", tool("a"), tool("b"))
    resolved = await resolve(mcp, "pets__b", "conversation_search", "pets__*")
    assert names(resolved.tools) == ["pets__b", "conversation_search", "pets__a"]
    assert [(server.name, server.tools) for server in resolved.servers] == [("pets__*", 1)]


async def test_the_number_of_tools_of_whole_servers_is_bounded(mcp: Mcp) -> None:
    await mcp.program("many", *(tool(f"t{number:03}") for number in range(100)))
    await mcp.program("more", *(tool(f"t{number:03}") for number in range(100)))
    resolved = await resolve(mcp, "many__*", "more__*")
    assert len(resolved.tools) == MAX_OFFERED_TOOLS
    assert [server.tools for server in resolved.servers] == [100, MAX_OFFERED_TOOLS - 100]
    assert "72 of 100 tools are left out" in resolved.servers[1].problem


async def test_a_model_is_offered_no_more_tools_than_openai_accepts(mcp: Mcp) -> None:
    await mcp.program("large", *(tool(f"t{number:03}") for number in range(130)))
    agent = await mcp.services.make_agent(tools=["large__*"])
    mcp.services.model.script(say("Hello."))
    ran = await mcp.services.run(agent, "Hello.")
    assert ran.text == "Hello."
    offered = mcp.services.model.requests[-1].tool_names
    assert "conversation_search" in offered
    # The three file tools are counted, although the agent has no folder.
    assert len(offered) == MAX_OFFERED_TOOLS - 3


async def test_an_agent_with_too_many_tools_is_refused_with_its_base_tools_counted(
    mcp: Mcp,
) -> None:
    names_of_tools = [f"tool_{number}" for number in range(MAX_AGENT_TOOLS - 1)]
    with pytest.raises(InvalidArgumentError) as caught:
        await mcp.services.make_agent(tools=names_of_tools)
    assert f"at most {MAX_AGENT_TOOLS}" in caught.value.message


async def test_rules_of_single_tools_hold_for_tools_of_whole_servers(mcp: Mcp) -> None:
    await mcp.program("pets", tool("feed"))
    rule = tool_pb2.ToolRule(type=tool_pb2.TOOL_RULE_TYPE_REQUIRES_APPROVAL, tool_name="pets__feed")
    agent = await mcp.services.make_agent(tools=["pets__*"], tool_rules=[rule])
    mcp.services.model.script(Reply(calls=(Call("pets__feed", {}),)))
    ran = await mcp.services.run(agent, "Feed.")
    assert "approval_requested" in ran.kinds
    other = tool_pb2.ToolRule(type=rule.type, tool_name="pets__none")
    with pytest.raises(InvalidArgumentError):
        await mcp.services.make_agent(tools=["pets__*"], tool_rules=[other])


async def test_a_server_that_does_not_exist_is_refused_at_creation_and_update(mcp: Mcp) -> None:
    with pytest.raises(NotFoundError) as caught:
        await mcp.services.make_agent(tools=["nowhere__*"])
    assert caught.value.reason is Reason.TOOL_NOT_FOUND
    await mcp.program("pets", tool("feed"))
    agent = await mcp.services.make_agent(include_base_tools=False)
    update = agent_pb.UpdateAgentRequest(agent_id=agent.id)
    update.tools.names.append("pets__*")
    changed = (await mcp.services.agents.UpdateAgent(update)).agent
    assert list(changed.tools) == ["pets__*"]
    update.tools.names[:] = ["pets*"]
    with pytest.raises(InvalidArgumentError):
        await mcp.services.agents.UpdateAgent(update)


async def test_a_disabled_server_has_no_tools_and_is_not_contacted(mcp: Mcp) -> None:
    server, _ = await mcp.program("pets", tool("feed"))
    server.disabled = True
    update = mcp_pb.UpdateMcpServerRequest(mcp_server_id=server.id, server=server)
    disabled = (await mcp.servers.UpdateMcpServer(update)).server
    [note] = (await resolve(mcp, "pets__*")).servers
    assert (note.tools, note.problem) == (0, "the MCP server is disabled")
    get = mcp_pb.GetMcpServerRequest(mcp_server_id=server.id)
    after = (await mcp.servers.GetMcpServer(get)).server
    assert after.last_contact_time == disabled.last_contact_time


async def test_removing_a_server_removes_its_tools_from_agents(mcp: Mcp) -> None:
    server, _ = await mcp.program("pets", tool("feed"))
    agent = await mcp.services.make_agent(tools=["pets__*"], include_base_tools=False)
    await mcp.remove(server.id)
    mcp.added.remove(server.id)
    mcp.services.model.script(say("Without."))
    assert (await mcp.services.run(agent, "Hello.")).text == "Without."
    assert mcp.services.model.requests[-1].tool_names == []


async def test_a_server_that_grows_leaves_a_small_context_window_usable(mcp: Mcp) -> None:
    first = [tool("zebra", "First. " * 20), tool("yak", "First. " * 20)]
    server, listed = await mcp.program("zoo", *first)
    agent = await mcp.services.make_agent(
        tools=["zoo__*"],
        model={"handle": "test/test-model", "context_window": 8192},
        include_base_tools=False,
    )
    later = [tool(f"a{number:02}", "Later. " * 150) for number in range(60)]
    listed.write(*later, *first)
    await mcp.refresh(server)
    mcp.services.model.script(say("Hello."))
    ran = await mcp.services.run(agent, "Hello.")
    assert ran.text == "Hello."
    offered = mcp.services.model.requests[-1].tool_names
    # The tools that were there before are kept, although their names come last.
    assert offered[-2:] == ["zoo__yak", "zoo__zebra"]
    assert 5 < len(offered) < 30
    window = await mcp.services.agents.GetContextWindow(
        agent_pb.GetContextWindowRequest(agent_id=agent.id)
    )
    [shown] = [part.count for part in window.parts if part.name == "tools"]
    assert shown + len(window.tools_left_out) == 62
    assert "zoo__a59" in window.tools_left_out
    assert window.used_tokens < 0.9 * 8192
    run_id = new_id("run")
    request = pb.ResolveToolsRequest(names=["zoo__*"], run_id=run_id, max_schema_bytes=3_000)
    chosen = await mcp.execution.ResolveTools(request)
    [note] = chosen.servers
    assert note.problem.startswith("58 of 62 tools are left out: ")
    assert "3000 bytes" in note.problem
    # Another attempt of the run is offered the same tools, whatever space it has.
    request.max_schema_bytes = 0
    again = await mcp.execution.ResolveTools(request)
    assert names(again.tools) == names(chosen.tools)


async def test_a_fallback_model_of_a_smaller_window_is_offered_fewer_tools_of_a_server(
    mcp: Mcp,
) -> None:
    tools = [tool(f"t{number:03}", "Does it. " * 60) for number in range(100)]
    await mcp.program("zoo", *tools)
    agent = await mcp.services.make_agent(
        tools=["zoo__*", "zoo__t098", "conversation_search"],
        model={
            "handle": "claude/test-model",
            "context_window": 128_000,
            "fallback_models": ["blind/test-model"],
        },
    )
    last = Reply(calls=(Call("zoo__t099", {}),))
    first = Reply(calls=(Call("zoo__t000", {}),))
    mcp.services.model.script(last, rate_limited(3600), first, say("Done."), say("Hello."))
    ran = await mcp.services.run(agent, "Do it.")
    assert ran.text == "Done."
    await mcp.services.run(agent, "Hello.")
    own, refused, *to_fallback, next_run = (
        request.tool_names for request in mcp.services.model.requests[-5:]
    )
    assert own == refused == next_run
    assert len(own) >= 100
    assert to_fallback[0] == to_fallback[1]
    # Single tools and those that the conversation has used are kept.
    assert {"conversation_search", "zoo__t098", "zoo__t099", "zoo__t000"} <= {*to_fallback[0]}
    assert 5 < len(to_fallback[0]) < 30


async def test_a_run_taken_over_at_a_fallback_model_is_offered_tools_that_fit_it(
    mcp: Mcp, mortal: Mortal
) -> None:
    await mcp.program("zoo", *(tool(f"t{number:03}", "Does it. " * 60) for number in range(100)))
    agent = await mcp.services.make_agent(
        tools=["zoo__*"],
        model={
            "handle": "claude/test-model",
            "context_window": 128_000,
            "fallback_models": ["blind/test-model"],
        },
    )
    request = mortal.request(agent, "Do it.")
    call = Reply(calls=(Call("zoo__t000", {}),))
    mcp.services.model.script(rate_limited(3600), call, say("Done."))

    def die(_event: ToolEvent) -> None:
        raise Died

    mortal.tools.at = die
    with pytest.raises(Died):
        await mortal.run(request)
    mortal.tools.at = lambda _event: None
    await mortal.run(replace(request, attempt=2))
    to_fallback = [request.tool_names for request in mcp.services.model.requests[-2:]]
    assert all("zoo__t000" in offered for offered in to_fallback)
    assert all(5 < len(offered) < 30 for offered in to_fallback)


async def test_an_agent_of_a_small_window_is_made_with_a_large_server(mcp: Mcp) -> None:
    await mcp.program("zoo", *(tool(f"t{number:03}", "Does it. " * 60) for number in range(100)))
    small = {"handle": "test/test-model", "context_window": 8192}
    agent = await mcp.services.make_agent(tools=["zoo__*"], model=small)
    mcp.services.model.script(say("Hello."))
    assert (await mcp.services.run(agent, "Hello.")).text == "Hello."
    offered = mcp.services.model.requests[-1].tool_names
    assert "conversation_search" in offered
    assert "zoo__t000" in offered
    single = [f"zoo__t{number:03}" for number in range(100)]
    with pytest.raises(FailedPreconditionError) as caught:
        await mcp.services.make_agent(tools=single, model=small)
    assert caught.value.reason is Reason.CONTEXT_WINDOW_EXCEEDED
