"""Tools that the client runs, through the whole system."""

from __future__ import annotations

import json
from typing import Any

import pytest

from chat_messages import roles
from doubles.script import Call, Reply, call, say
from run_events import RunEvents, RunStream
from strata.api.common.v1 import message_pb2, tool_pb2
from strata.api.gateway.v1 import run_service_pb2 as run_pb
from strata.api.tool_execution.v1 import tool_service_pb2 as tool_api
from strata.protocol.errors import FailedPreconditionError, InvalidArgumentError, Reason
from whole_system import System

pytestmark = pytest.mark.asyncio(loop_scope="session")

SCHEMA = {
    "type": "object",
    "properties": {"place": {"type": "string"}, "zoom": {"type": "integer"}},
    "required": ["place"],
}


async def show_map(system: System, name: str, **fields: Any) -> tool_api.Tool:
    request = tool_api.UpsertToolRequest(
        type=tool_pb2.TOOL_TYPE_CLIENT,
        name=name,
        description="Shows a place on the user's map.",
        parameters_json=json.dumps(SCHEMA),
        **fields,
    )
    return (await system.tools.UpsertTool(request)).tool


async def answer(
    system: System, asked: message_pb2.ApprovalRequestPart, *decisions: dict[str, Any]
) -> RunEvents:
    """Answers an approval; decisions are in the order of the calls."""
    answers = [
        message_pb2.ApprovalDecision(tool_call_id=call.tool_call_id, **fields)
        for call, fields in zip(asked.tool_calls, decisions, strict=True)
    ]
    request = run_pb.RespondToApprovalRequest(approval_id=asked.approval_id, decisions=answers)
    return await RunStream(system.runs.RespondToApproval(request)).rest()


@pytest.mark.parametrize("model", ["openai/test-model", "anthropic/test-model"])
async def test_the_client_makes_the_call_and_the_agent_continues(
    system: System, model: str
) -> None:
    name = f"show_map_{model[:6]}"
    await show_map(system, name)
    agent = await system.make_agent(model, tools=[name])
    calls = (
        Call("conversation_search", {"query": "Rome"}),
        Call(name, {"place": "Rome", "zoom": "3"}),
    )
    system.model.script(Reply(calls=calls), say("There it is."))
    asked = (await system.send(agent, "Show me Rome.")).approval

    [shows] = asked.tool_calls
    assert (shows.name, json.loads(shows.arguments)) == (name, {"place": "Rome", "zoom": 3})
    assert [bound.by_client for bound in asked.bindings] == [False, True]
    listed = await system.runs.ListApprovals(run_pb.ListApprovalsRequest(agent_id=agent.id))
    assert [approval.request for approval in listed.approvals] == [asked]

    ran = await answer(
        system, asked, {"client_return": "Shown.", "client_taint": ["PROVENANCE_WEB"]}
    )
    assert ran.text == "There it is."
    searched, shown = ran.tool_returns
    assert (searched.name, shown.name) == ("conversation_search", name)
    assert json.loads(shown.content)["message"] == "Shown."
    assert shown.provenance == message_pb2.PROVENANCE_TOOL
    assert list(shown.taint) == [message_pb2.PROVENANCE_WEB]
    log = await system.log(agent)
    assert roles(log)[1:] == ["user", "approval", "approval", "assistant", "tool", "assistant"]
    assert log[2].parts[-1].approval_request == asked
    [stored] = log[3].parts[0].approval_response.decisions
    assert (stored.client_return, list(stored.client_taint)) == (
        "Shown.",
        [message_pb2.PROVENANCE_WEB],
    )


async def test_invalid_answers_are_refused_and_change_nothing(system: System) -> None:
    await show_map(system, "show_map")
    agent = await system.make_agent(tools=["show_map"])
    system.model.script(call("show_map", {"place": "Oslo"}), say("I see."))
    asked = (await system.send(agent, "Show me Oslo.")).approval
    for wrong, field in (
        ({"approve": True}, "decisions[0].client_return"),
        ({"client_taint": ["PROVENANCE_WEB"]}, "decisions[0].client_taint"),
        ({"client_return": "x", "client_taint": ["PROVENANCE_USER"]}, "decisions[0].client_taint"),
    ):
        with pytest.raises(InvalidArgumentError) as raised:
            await answer(system, asked, wrong)
        assert [violation.field for violation in raised.value.violations] == [field]
    with pytest.raises(FailedPreconditionError) as busy:
        await system.send(agent, "Hello?")
    assert busy.value.reason is Reason.APPROVAL_PENDING
    ran = await answer(system, asked, {"client_return": "No map here.", "client_status": 2})
    assert ran.tool_returns[0].status == message_pb2.TOOL_STATUS_FAILED
    assert ran.text == "I see."


async def test_an_agent_that_is_asked_reports_that_it_waits_for_a_client(system: System) -> None:
    await show_map(system, "show_map")
    other = await system.make_agent(tools=["show_map"])
    agent = await system.make_agent(tools=["send_message_to_agent_and_wait_for_reply"])
    system.model.script(
        call(
            "send_message_to_agent_and_wait_for_reply",
            {"other_agent_id": other.id, "message": "Show Rome."},
        ),
        call("show_map", {"place": "Rome"}),
        say("It waits."),
    )
    ran = await system.send(agent, "Ask it.")
    assert '"status": "waiting"' in ran.tool_returns[0].content
    assert ran.text == "It waits."


async def test_a_clients_tool_is_described_by_a_schema_or_by_source(system: System) -> None:
    tool = await show_map(system, "show_map", effect=tool_pb2.TOOL_EFFECT_READ_ONLY)
    source = (
        "import tkinter\n\n\n"
        "def pick(title: str, many: bool = False) -> str:\n"
        '    """Lets the user pick a file.\n\n    Args:\n        title: What for.\n    """\n'
        "    return tkinter.filedialog()\n"
    )
    upsert = tool_api.UpsertToolRequest(source_code=source, type=tool_pb2.TOOL_TYPE_CLIENT)
    picked = (await system.tools.UpsertTool(upsert)).tool
    assert tool.type == picked.type == tool_pb2.TOOL_TYPE_CLIENT
    assert (picked.name, picked.description) == ("pick", "Lets the user pick a file.")
    assert picked.source_code == ""
    schema = json.loads(picked.parameters_json)
    assert schema["required"] == ["title"]
    assert schema["properties"]["title"]["description"] == "What for."
    response = await system.tools.GetTool(tool_api.GetToolRequest(name="pick"))
    assert response.tool == picked
    with pytest.raises(InvalidArgumentError, match="or the client's"):
        await system.tools.RunTool(tool_api.RunToolRequest(tool_id=picked.id))


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"default_requires_approval": True}, ["default_requires_approval"]),
        ({"enable_parallel_execution": True}, ["enable_parallel_execution"]),
        ({"pip_requirements": ["x"], "secret_names": ["X"]}, ["secret_names", "pip_requirements"]),
        ({"name": ""}, ["name", "name"]),
        ({"parameters_json": ""}, ["parameters_json"]),
        (
            {"source_code": "def f(agent_state: 'AgentState') -> str:\n    'Does.'\n"},
            ["source_code"],
        ),
    ],
)
async def test_invalid_fields_of_client_tools_are_refused(
    system: System, fields: dict[str, Any], wrong: list[str]
) -> None:
    schema = {"name": "shown", "description": "Shows.", "parameters_json": '{"properties": {}}'}
    if "source_code" in fields:
        schema = {}
    request = tool_api.UpsertToolRequest(**{"type": "TOOL_TYPE_CLIENT", **schema, **fields})
    with pytest.raises(InvalidArgumentError) as raised:
        await system.tools.UpsertTool(request)
    assert [violation.field for violation in raised.value.violations] == wrong
