"""The Python client with a complete Strata."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

import strata.client
from doubles.script import Call, Reply, say
from e2e.client.toolbox import bill, unfit, with_discount
from image_samples import png
from run_events import RunEvents
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.common.v1 import message_pb2, run_event_pb2, tool_pb2
from strata.api.gateway.v1 import admin_service_pb2 as admin_pb
from strata.api.gateway.v1 import run_service_pb2 as run_pb
from strata.api.tool_execution.v1 import tool_service_pb2 as tool_api
from strata.client import (
    AlreadyExistsError,
    BackOff,
    Client,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    Reason,
    ToolSourceError,
    UnauthenticatedError,
    connect,
    returned,
    tool_source,
)
from tcp_relay import TcpRelay
from whole_system import System

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_function_is_tried_stored_and_used_by_an_agent(
    system: System, client: Client
) -> None:
    lines = [{"fruit": "apple", "count": 2}, {"fruit": "pear"}]
    tried = await client.run_tool(bill, {"lines": lines, "tip": 1})
    assert returned(tried) == {"total": 11}
    assert tried.tool_return.status == message_pb2.TOOL_STATUS_OK
    with pytest.raises(NotFoundError) as missing:
        await client.run_tool("bill", {})
    assert missing.value.reason is Reason.TOOL_NOT_FOUND

    tool = await client.upsert_tool(
        bill, effect="read-only", tags=["shop"], requires_approval=False, parallel=True
    )
    assert tool.source_code == tool_source(bill)
    assert (tool.name, tool.description) == ("bill", "Adds up a bill.")
    assert tool.effect == tool_pb2.TOOL_EFFECT_READ_ONLY
    assert list(tool.tags) == ["shop"]
    assert tool.enable_parallel_execution
    assert (
        await client.upsert_tool(bill, effect="read-only", tags=["shop"], parallel=True)
    ).version == tool.version
    stored = await client.upsert_tool(bill, description="Adds.", requires_approval=True)
    assert (stored.id, stored.description) == (tool.id, "Adds.")
    assert stored.default_requires_approval
    await client.upsert_tool(bill, effect="read-only")

    request = agent_pb.CreateAgentRequest(name="a waiter", tools=["bill"])
    agent = (await client.agents.CreateAgent(request)).agent
    system.model.script(Reply(calls=(Call("bill", {"lines": lines}),)), say("Ten."))
    ran = RunEvents([event async for event in client.send(agent.id, "The bill, please.")])
    assert ran.text == "Ten."
    [returned_to_model] = ran.tool_returns
    assert json.loads(returned_to_model.content)["message"] == {"total": 10}

    assert returned(await client.run_tool("bill", {"lines": lines, "tip": 2})) == {"total": 12}
    failed = await client.run_tool("bill", {"lines": [{"fruit": "stone"}]})
    assert failed.tool_return.status == message_pb2.TOOL_STATUS_FAILED
    assert "stone" in returned(failed)


async def test_a_function_that_uses_values_of_its_enclosing_function_can_be_a_tool(
    client: Client,
) -> None:
    assert returned(await client.run_tool(with_discount(20), {"price": 50})) == "40.0"


async def test_a_function_that_is_not_self_contained_is_not_sent(client: Client) -> None:
    with pytest.raises(ToolSourceError, match="uses nowhere, which toolbox"):
        await client.upsert_tool(unfit)
    with pytest.raises(NotFoundError):
        await client.tools.GetTool(tool_api.GetToolRequest(name="unfit"))
    with pytest.raises(InvalidArgumentError, match="effect must be"):
        await client.upsert_tool(bill, effect="none")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="arguments are not valid JSON"):
        await client.run_tool(bill, {"lines": object()})


async def test_errors_have_a_type_a_reason_and_the_wrong_fields(client: Client) -> None:
    with pytest.raises(InvalidArgumentError) as wrong:
        await client.upsert_tool(bill, secret_names=["LD_PRELOAD"], tags=[""])
    assert wrong.value.reason is Reason.INVALID_FIELD
    assert {violation.field.partition("[")[0] for violation in wrong.value.violations} == {
        "secret_names",
        "tags",
    }
    source = "def web_search(x: int) -> int:\n    'Does.'\n    return x\n"
    with pytest.raises(AlreadyExistsError) as taken:
        await client.tools.UpsertTool(tool_api.UpsertToolRequest(source_code=source))
    assert taken.value.reason is Reason.NAME_TAKEN
    assert taken.value.metadata
    stored = await client.upsert_tool(bill)
    mixed = tool_api.RunToolRequest(tool_id=stored.id, function_name="bill")
    with pytest.raises(InvalidArgumentError) as both:
        await client.tools.RunTool(mixed)
    assert [violation.field for violation in both.value.violations] == ["function_name"]
    other = tool_api.RunToolRequest(source_code=source, function_name="bill")
    with pytest.raises(InvalidArgumentError, match=r"public function of the source: web_search"):
        await client.tools.RunTool(other)
    with pytest.raises(NotFoundError):
        async for _ in client.send("agent-00000000-0000-7000-8000-000000000000", "Hi"):
            pass


async def test_a_key_of_another_project_is_refused_if_the_project_is_named(
    system: System, client: Client
) -> None:
    me = await client.admin.WhoAmI(admin_pb.WhoAmIRequest())
    for name in (me.project.name, me.project.id):
        async with connect(system.address, api_key=system.key, project=name):
            pass
    with pytest.raises(PermissionDeniedError, match="belongs to the project"):
        async with connect(system.address, api_key=system.key, project="elsewhere"):
            pass


async def test_two_connections_can_use_different_keys(system: System, client: Client) -> None:
    async with connect(system.address, api_key="not-a-key") as stranger:
        with pytest.raises(UnauthenticatedError):
            await stranger.admin.WhoAmI(admin_pb.WhoAmIRequest())
        await client.admin.WhoAmI(admin_pb.WhoAmIRequest())
    await client.admin.WhoAmI(admin_pb.WhoAmIRequest())


async def test_stream_resumes_after_the_last_event_before_the_connection_broke(
    system: System,
) -> None:
    text = "The road is long, and it is broken in the middle, and it goes on to its end."
    held = asyncio.Event()
    agent = await system.make_agent()
    system.model.script(Reply(text=text, held=held))
    events = []
    async with (
        TcpRelay(system.address) as relay,
        connect(relay.address, api_key=system.key) as client,
    ):
        async for event in client.send(agent.id, "Go!", back_off=BackOff(first_s=0.05)):
            events.append(event)
            if event.HasField("text_delta") and not held.is_set():
                relay.cut()
                held.set()
        assert relay.count > 1
    stored = [event.sequence for event in RunEvents(events).stored_events]
    assert stored == sorted(set(stored))
    ran = RunEvents(events)
    assert ran.finished.stop_reason == run_event_pb2.STOP_REASON_END_TURN
    assert ran.text == text
    listed = await system.runs.ListRuns(run_pb.ListRunsRequest(agent_id=agent.id))
    assert [run.id for run in listed.runs] == [ran.run_id]


async def test_a_run_resumed_after_its_last_event_yields_nothing(
    system: System, client: Client
) -> None:
    agent = await system.make_agent()
    system.model.script(say("Done."))
    ran = RunEvents([event async for event in client.send(agent.id, "Go!")])
    last = ran.stored_events[-1].sequence
    impatient = BackOff(first_s=0.01, patience_s=0.1)
    resumed = client.resume(ran.run_id, after_sequence=last, back_off=impatient)
    assert [event async for event in resumed] == []
    resumed = client.resume(ran.run_id, after_sequence=last - 1, back_off=impatient)
    assert [event.sequence async for event in resumed] == [last]


async def test_a_message_sent_again_after_a_broken_connection_starts_one_run(
    system: System,
) -> None:
    agent = await system.make_agent()
    system.model.script(say("Once."))
    async with connect(system.address, api_key=system.key) as client:
        first = [event async for event in client.send(agent.id, "Hi", request_id="the-same")]
        again = [event async for event in client.send(agent.id, "Hi", request_id="the-same")]
    assert RunEvents(first).run_id == RunEvents(again).run_id
    assert len(system.model.requests) == 1


async def test_images_are_sent_as_bytes_files_and_parts(
    system: System, client: Client, tmp_path: Path
) -> None:
    agent = await system.make_agent()
    file = tmp_path / "photo.png"
    file.write_bytes(png(2, 2))
    system.model.script(say("Three images."))
    large = strata.client.image(png(3, 3), alt_text="Large.")
    async for event in client.send(agent.id, "Look.", images=[png(), file, large]):
        assert not event.HasField("step_restarted")
    assert [data for _, data in system.model.requests[-1].images] == [png(), png(2, 2), png(3, 3)]
    with pytest.raises(InvalidArgumentError):
        async for _ in client.send(agent.id, "Look.", images=[b"none"]):
            pass
    with pytest.raises(InvalidArgumentError, match=r"messages\[0\]"):
        async for _ in client.send(agent.id, " \u200b"):
            pass
