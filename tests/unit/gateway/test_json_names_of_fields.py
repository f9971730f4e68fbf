"""Fields of a JSON body are refused if they are repeated, or are text that is no number."""

from __future__ import annotations

import json

import grpc.aio
import pytest
from connectrpc.errors import ConnectError
from google.protobuf.message import Message

from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.gateway.v1 import run_service_pb2 as run_pb
from strata.api.gateway.v1 import schedule_service_pb2 as schedule_pb
from strata.gateway.http.json_messages import JsonMessages, LargeBodies


async def parsed(body: bytes, kind: type[Message]) -> Message:
    # Bodies as small as these make no call.
    async with grpc.aio.insecure_channel("127.0.0.1:1") as channel:
        return kind.FromString(await JsonMessages(LargeBodies(channel)).to_binary(body, kind, ()))


@pytest.mark.parametrize(
    ("body", "kind", "field"),
    [
        (b'{"page_size": 1, "pageSize": 2}', agent_pb.ListAgentsRequest, "pageSize"),
        (b'{"pageSize": 2, "page_size": null}', agent_pb.ListAgentsRequest, "pageSize"),
        (
            b'{"blocks": [{"label": "a"}, {"label": "b", "readOnly": true, "read_only": false}]}',
            agent_pb.CreateAgentRequest,
            "readOnly",
        ),
        (
            b'{"messages": [{"parts": [], "clientMessageId": "1", "client_message_id": "2"}]}',
            run_pb.StartRunRequest,
            "clientMessageId",
        ),
    ],
)
async def test_field_under_both_of_its_names_is_refused(
    body: bytes, kind: type[Message], field: str
) -> None:
    with pytest.raises(ConnectError, match=f"the field {field} is repeated"):
        await parsed(body, kind)


async def test_either_name_of_a_field_is_accepted() -> None:
    one = await parsed(b'{"page_size": 2, "name_contains": "x"}', agent_pb.ListAgentsRequest)
    other = await parsed(b'{"pageSize": 2, "nameContains": "x"}', agent_pb.ListAgentsRequest)
    assert one == other == agent_pb.ListAgentsRequest(page_size=2, name_contains="x")


async def test_keys_of_a_map_may_look_like_names_of_one_field() -> None:
    body = b'{"metadata": {"page_size": "1", "pageSize": "2"}}'
    agent = await parsed(body, agent_pb.CreateAgentRequest)
    assert agent == agent_pb.CreateAgentRequest(metadata={"page_size": "1", "pageSize": "2"})


@pytest.mark.parametrize(
    "text", ["1_0", "\u0661\u0660", "\t10", "10 ", "", "ten", "0x10", "\uff11"]
)
async def test_text_that_json_does_not_have_as_number_is_refused(text: str) -> None:
    body = json.dumps({"pageSize": text}).encode()
    with pytest.raises(ConnectError, match="the field pageSize has"):
        await parsed(body, agent_pb.ListAgentsRequest)
    config = json.dumps({"model": {"temperature": text}}).encode()
    with pytest.raises(ConnectError, match="the field temperature has"):
        await parsed(config, agent_pb.CreateAgentRequest)


@pytest.mark.parametrize("time", ["2026-01-01T00:00:00.1_0Z", "\u0662026-01-01T00:00:00Z"])
async def test_time_with_other_characters_is_refused(time: str) -> None:
    body = json.dumps({"startTime": time}).encode()
    with pytest.raises(ConnectError, match="the field startTime has"):
        await parsed(body, schedule_pb.CreateScheduleRequest)
    good = await parsed(
        b'{"startTime": "2026-01-01T00:00:00.5Z"}', schedule_pb.CreateScheduleRequest
    )
    assert isinstance(good, schedule_pb.CreateScheduleRequest)
    assert good.start_time.nanos == 500_000_000


async def test_numbers_may_be_text() -> None:
    for text in ("10", "1e1", "10.0"):
        body = json.dumps({"pageSize": text}).encode()
        assert await parsed(body, agent_pb.ListAgentsRequest) == agent_pb.ListAgentsRequest(
            page_size=10
        )
    model = agent_pb.ModelConfig(temperature=0.5)
    body = b'{"model": {"temperature": "0.5"}}'
    assert await parsed(body, agent_pb.CreateAgentRequest) == agent_pb.CreateAgentRequest(
        model=model
    )
