"""The response format of a message: passed to the agent loop, kept by attempts and schedules."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from integration.gateway.approvals import asks, read_approval, respond
from integration.gateway.members import Members
from integration.gateway.schedule_calls import Schedules
from integration.gateway.scripted_runs import reply
from integration.gateway.scripted_services import ScriptedServices, message
from polling import eventually
from run_events import collect, kinds
from strata.api.agent_loop.v1 import group_service_pb2 as group_pb
from strata.api.common.v1 import response_format_pb2 as format_pb
from strata.api.gateway.v1 import run_service_pb2 as pb
from strata.protocol.status import from_rpc_error
from strata.shared.ids import new_id

WEATHER = format_pb.ResponseFormat(
    json_schema=format_pb.JsonSchemaFormat(
        name="weather", schema_json='{"properties": {"city": {"type": "string"}}}'
    )
)
OBJECT = format_pb.ResponseFormat(json_object=format_pb.JsonObjectFormat())


async def violations(call: Any) -> list[str]:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    return [violation.field for violation in from_rpc_error(raised.value).violations]


async def test_every_attempt_of_a_run_has_the_format_of_its_message(
    services: ScriptedServices,
) -> None:
    gateway = await services.gateway()
    agent = services.new_agent()
    await collect(gateway.send(agent, response_format=WEATHER))
    await collect(gateway.send(agent))
    mine = [request for request in services.turns.requests if request.agent_id == agent]
    assert mine[0].response_format == WEATHER
    assert not mine[1].HasField("response_format")


@pytest.mark.parametrize("by_default", [False, True], ids=["answered", "by default"])
async def test_run_that_continues_after_an_approval_keeps_the_format(
    services: ScriptedServices, by_default: bool
) -> None:
    gateway = await services.gateway()
    services.tools.versions["pay"] = "v1"
    agent, approval_id = services.new_agent(), new_id("approval")
    services.turns.script = asks(approval_id, approved_in=1 if by_default else 0)
    await collect(gateway.send(agent, response_format=WEATHER))
    assert (await read_approval(gateway, approval_id)).request.response_format == WEATHER
    again = new_id("approval")
    services.turns.script = asks(again)
    if by_default:

        async def decided() -> bool:
            return bool((await read_approval(gateway, approval_id)).answer_run_id)

        await eventually(decided)
        run_id = (await read_approval(gateway, approval_id)).answer_run_id
        assert kinds(await collect(gateway.stream(run_id)))[-1] == "run_finished"
    else:
        await collect(respond(gateway, approval_id, approve=True))
    services.turns.script = reply("Done.")
    await collect(respond(gateway, again, approve=True))
    answers = [r for r in services.turns.requests if r.agent_id == agent and r.HasField("approval")]
    assert [answer.response_format for answer in answers] == [WEATHER, WEATHER]


async def test_hostile_format_of_a_message_is_refused_by_field(
    socket_services: ScriptedServices,
) -> None:
    gateway = await socket_services.gateway()
    agent = socket_services.new_agent()
    hostile = format_pb.ResponseFormat(
        json_schema=format_pb.JsonSchemaFormat(name="a", schema_json='{"$ref": "http://x"}')
    )
    fields = ["response_format.json_schema.schema_json"]
    assert await violations(collect(gateway.send(agent, response_format=hostile))) == fields
    assert await violations(gateway.start_run(agent, response_format=hostile)) == fields
    unset = format_pb.ResponseFormat()
    assert await violations(gateway.start_run(agent, response_format=unset)) == ["response_format"]
    schedules = Schedules(gateway)
    assert await violations(schedules.create(agent, response_format=hostile)) == fields


async def test_a_message_to_a_group_cannot_have_a_format_and_managers_answer_in_text(
    services: ScriptedServices,
) -> None:
    gateway = await services.gateway()
    members = Members(services)
    group = members.group("Ada", "Bo", manager="Max", type=group_pb.MANAGER_TYPE_DYNAMIC)
    members.says["Max"] = lambda: "Ada"
    request = pb.SendMessageRequest(group_id=group.id, messages=[message("Hi")])
    request.response_format.CopyFrom(OBJECT)
    call = gateway.runs.SendMessage(request, metadata=gateway.metadata, timeout=60)
    assert await violations(collect(call)) == ["response_format"]
    request.ClearField("response_format")
    await collect(gateway.runs.SendMessage(request, metadata=gateway.metadata, timeout=60))
    formats = {
        members.names.get(turn.agent_id, ""): turn.response_format.WhichOneof("format")
        for turn in services.turns.requests
        if turn.group_id == group.id
    }
    assert formats["Max"] == "text"
    assert formats["Ada"] is None


async def test_schedule_keeps_its_format(socket_services: ScriptedServices) -> None:
    schedules = Schedules(await socket_services.gateway())
    made = await schedules.create(socket_services.new_agent(), response_format=WEATHER)
    assert made.response_format == WEATHER
    assert (await schedules.update(made.id, max_steps=3)).response_format == WEATHER
    changed = await schedules.update(made.id, response_format=OBJECT)
    assert changed.response_format == OBJECT
    assert (await schedules.get(made.id)).response_format == OBJECT
