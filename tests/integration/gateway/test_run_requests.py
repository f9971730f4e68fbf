"""RunService: invalid requests, lists and details of runs."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2

from integration.gateway.scripted_services import Gateway, ScriptedServices, message
from rpc_errors import reason, status_of
from run_events import collect
from strata.api.common.v1 import message_pb2
from strata.api.gateway.v1 import run_service_pb2 as pb
from strata.protocol.status import from_rpc_error
from strata.shared.ids import new_id

AGENT = "agent-01890a5d-ac96-774b-bcce-b302099a8057"


def text(value: str) -> message_pb2.Part:
    return message_pb2.Part(text=message_pb2.TextPart(text=value))


def wrong_requests() -> list[tuple[str, dict[str, Any], str]]:
    tool_return = message_pb2.Part(tool_return=message_pb2.ToolReturnPart())
    image = message_pb2.Part(image=message_pb2.ImagePart(media_type="text/html", url="http://x"))
    return [
        ("no message", {"messages": []}, "messages"),
        ("65 messages", {"messages": [message("x")] * 65}, "messages"),
        ("200,001 characters", {"messages": [message("x" * 200_001)]}, "messages"),
        ("no part", {"messages": [message_pb2.MessageInput()]}, "messages[0].parts"),
        ("no text", {"messages": [message("")]}, "messages[0].parts"),
        ("white space", {"messages": [message("x"), message(" \n\u3000")]}, "messages[1].parts"),
        ("zero-width characters", {"messages": [message("\u200b\u2060")]}, "messages[0].parts"),
        (
            "several blank texts",
            {"messages": [message_pb2.MessageInput(parts=[text(" "), text("\ufeff")])]},
            "messages[0].parts",
        ),
        ("NUL", {"messages": [message("a\0b")]}, "messages[0].parts[0].text.text"),
        (
            "a tool's role",
            {"messages": [message_pb2.MessageInput(role=message_pb2.ROLE_TOOL, parts=[text("x")])]},
            "messages[0].role",
        ),
        (
            "an unknown role",
            {"messages": [message_pb2.MessageInput(role=99, parts=[text("x")])]},  # type: ignore[arg-type]
            "messages[0].role",
        ),
        (
            "a forged tool return",
            {"messages": [message("x"), message_pb2.MessageInput(parts=[tool_return])]},
            "messages[1].parts[0]",
        ),
        (
            "an image that is none",
            {"messages": [message_pb2.MessageInput(parts=[image])]},
            "messages[0].parts[0].image.url",
        ),
        ("max_steps", {"max_steps": 201}, "max_steps"),
        ("negative max_steps", {"max_steps": -1}, "max_steps"),
        ("request_id", {"request_id": "x" * 257}, "request_id"),
        ("on_busy", {"on_busy": 9}, "on_busy"),
    ]


@pytest.mark.parametrize(
    ("fields", "field"),
    [case[1:] for case in wrong_requests()],
    ids=[case[0] for case in wrong_requests()],
)
async def test_wrong_messages_are_refused_by_field(
    socket_services: ScriptedServices, fields: dict[str, Any], field: str
) -> None:
    gateway = await socket_services.gateway()
    agent = socket_services.new_agent()
    base = {"agent_id": agent, "messages": [message("Hi")], **fields}
    for call in (
        collect(gateway.runs.SendMessage(pb.SendMessageRequest(**base), metadata=gateway.metadata)),
        gateway.runs.StartRun(pb.StartRunRequest(**base), metadata=gateway.metadata),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await call
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert reason(raised.value) == "INVALID_FIELD"
        bad = error_details_pb2.BadRequest()
        details = status_of(raised.value.trailing_metadata()).details
        assert any(detail.Unpack(bad) for detail in details)
        assert field in [violation.field for violation in bad.field_violations]
    assert await listed(gateway) == []


async def test_ids_are_checked_and_unknown_ones_not_found(services: ScriptedServices) -> None:
    gateway = await services.gateway()
    known = services.new_agent()
    other = new_id("conversation")
    for agent, conversation, code, why in (
        ("", "", grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ID"),
        (new_id("block"), "", grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ID"),
        (known, "agent-1", grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ID"),
        (AGENT, "", grpc.StatusCode.NOT_FOUND, "AGENT_NOT_FOUND"),
        (known, other, grpc.StatusCode.NOT_FOUND, "CONVERSATION_NOT_FOUND"),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await collect(gateway.send(agent, conversation_id=conversation))
        assert (raised.value.code(), reason(raised.value)) == (code, why)
    assert await listed(gateway) == []
    services.agents.conversations.add(other)
    await collect(gateway.send(known, conversation_id=other))
    assert services.turns.requests[0].conversation_id == other


async def test_runs_that_do_not_exist_are_not_found(services: ScriptedServices) -> None:
    gateway = await services.gateway()
    for run_id, why in ((new_id("run"), "RUN_NOT_FOUND"), ("run-1", "INVALID_ID")):
        for call in (
            gateway.run(run_id),
            gateway.cancel(run_id),
            collect(gateway.stream(run_id)),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await call
            assert reason(raised.value) == why
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await collect(gateway.stream(new_id("run"), -1))
    assert reason(raised.value) == "INVALID_FIELD"


async def test_runs_are_listed_by_page(services: ScriptedServices) -> None:
    gateway = await services.gateway()
    agent = services.new_agent()
    made = []
    for _ in range(3):
        run = await gateway.start_run(agent)
        await collect(gateway.stream(run.id))
        made.append(run.id)
    await collect(gateway.send(services.new_agent()))
    ids: list[str] = []
    token = ""
    while True:
        request = pb.ListRunsRequest(agent_id=agent, page_size=2, page_token=token)
        page = await gateway.runs.ListRuns(request, metadata=gateway.metadata)
        ids += [run.id for run in page.runs]
        assert all(run.kind == pb.RUN_KIND_BACKGROUND for run in page.runs)
        token = page.next_page_token
        if not token:
            break
    assert ids == made[::-1]
    assert len(await listed(gateway, states=[pb.RUN_STATE_COMPLETED])) == 4
    assert await listed(gateway, states=[pb.RUN_STATE_QUEUED]) == []
    foreign = await gateway.runs.ListRuns(
        pb.ListRunsRequest(page_size=1), metadata=gateway.metadata
    )
    for wrong in (
        pb.ListRunsRequest(page_size=-1),
        pb.ListRunsRequest(page_token="x"),
        pb.ListRunsRequest(agent_id=agent, page_token=foreign.next_page_token),
        pb.ListRunsRequest(agent_id="x"),
        pb.ListRunsRequest(states=[77]),  # type: ignore[list-item]
    ):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await gateway.runs.ListRuns(wrong, metadata=gateway.metadata)
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_many_concurrent_clients_get_every_event(services: ScriptedServices) -> None:
    gateway = await services.gateway()
    agents = [services.new_agent() for _ in range(10)]

    async def talk(agent: str) -> None:
        for number in range(5):
            events = await collect(gateway.send(agent, f"{number}"))
            assert events[-1].HasField("run_finished")

    await asyncio.gather(*map(talk, agents))
    assert len(services.turns.requests) == 50
    runs = await listed(gateway)
    assert len(runs) == 50
    assert {run.state for run in runs} == {pb.RUN_STATE_COMPLETED}
    for agent in agents:
        texts = [
            request.messages[0].parts[0].text.text
            for request in services.turns.requests
            if request.agent_id == agent
        ]
        assert texts == ["0", "1", "2", "3", "4"]


async def listed(gateway: Gateway, **fields: Any) -> list[pb.Run]:
    request = pb.ListRunsRequest(page_size=500, **fields)
    return list((await gateway.runs.ListRuns(request, metadata=gateway.metadata)).runs)


async def test_a_run_starts_later_and_is_listed_and_cancelled_until_then(
    services: ScriptedServices,
) -> None:
    gateway = await services.gateway()
    agent_id = services.new_agent()
    start = {"seconds": int(time.time()) + 3600}
    run = await gateway.start_run(agent_id, request_id="later", start_time=start)
    assert run.state == pb.RUN_STATE_QUEUED
    assert run.not_before_time.seconds == start["seconds"]
    again = await gateway.start_run(agent_id, request_id="later", start_time=start)
    assert again.id == run.id
    other = {"seconds": start["seconds"] + 1}
    with pytest.raises(Exception, match="was used before for another request"):
        await gateway.start_run(agent_id, request_id="later", start_time=other)
    # It does not block other runs; a run without a start time has no run_at.
    events = await collect(gateway.send(agent_id))
    assert events[-1].HasField("run_finished")
    assert not (await gateway.run(events[0].run_id)).HasField("not_before_time")
    assert (await gateway.cancel(run.id)).state == pb.RUN_STATE_CANCELLED


@pytest.mark.parametrize(
    ("fields", "violation"),
    [
        ({"start_time": {"seconds": 2**62}}, "start_time"),
        ({"start_time": {"seconds": 32_503_680_000}}, "start_time"),
        ({"start_time": {}, "on_busy": pb.ON_BUSY_INTERRUPT}, "on_busy"),
        ({"start_time": {}, "on_busy": pb.ON_BUSY_REJECT}, "on_busy"),
        ({"start_time": {}, "on_approval": pb.ON_APPROVAL_DENY}, "on_approval"),
    ],
)
async def test_a_start_time_that_cannot_be_kept_is_refused(
    socket_services: ScriptedServices, fields: dict[str, Any], violation: str
) -> None:
    gateway = await socket_services.gateway()
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await gateway.start_run(socket_services.new_agent(), **fields)
    error = from_rpc_error(raised.value)
    assert (error.status, error.violations[0].field) == ("INVALID_ARGUMENT", violation)
