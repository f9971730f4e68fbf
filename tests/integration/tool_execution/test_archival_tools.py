"""``archival_memory_insert`` against the real archival memory."""

from __future__ import annotations

import json

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from integration.tool_execution.conftest import Tools
from strata.api.archival.v1 import passage_service_pb2 as pb
from strata.api.archival.v1 import passage_service_pb2_grpc as pb_grpc
from strata.api.common.v1.message_pb2 import TOOL_STATUS_FAILED
from strata.protocol.errors import InvalidArgumentError

pytestmark = pytest.mark.asyncio(loop_scope="session")

GREEN = "Ada's favourite colour is green, and she lives in Lisbon near the river."


async def test_an_insert_reports_near_duplicates(tools: Tools) -> None:
    assert await tools.call("archival_memory_insert", content=GREEN, tags=["taste"]) == "None"
    (again,) = await tools.run(("archival_memory_insert", {"content": GREEN}))
    assert "holds this very text already" in again.tool_return.content
    assert not again.archival_changed
    (tagged,) = await tools.run(("archival_memory_insert", {"content": GREEN, "tags": ["tea"]}))
    assert json.loads(tagged.tool_return.content)["message"]["tags"] == ["taste", "tea"]
    assert tagged.archival_changed
    blue = GREEN.replace("green", "blue")
    (near,) = await tools.run(("archival_memory_insert", {"content": blue}))
    assert near.archival_changed
    message = json.loads(near.tool_return.content)["message"]
    message = json.loads(message) if isinstance(message, str) else message
    assert [duplicate["content"] for duplicate in message["near_duplicates"]] == [GREEN]
    assert await tools.call("archival_memory_insert", content="Taxes are due in May.") == "None"


async def test_an_inserted_passage_has_its_origin(tools: Tools) -> None:
    await tools.call("archival_memory_insert", content=GREEN)
    passages = pb_grpc.PassageServiceStub(tools.services.channel("archival"))
    request = pb.ListPassagesRequest(agent_id=tools.agent.id, run_id=tools.run_id)
    (passage,) = (await passages.ListPassages(request)).passages
    assert passage.origin == pb.PassageOrigin(
        agent_id=tools.agent.id,
        run_id=tools.run_id,
        tool_call_id="call-1-0",
        message_id=tools.message_id,
    )


@pytest.mark.parametrize(
    ("seconds", "timezone", "shown"),
    [
        (-62_135_596_800, "America/New_York", "0001-01-01T00:00:00+00:00"),
        (253_402_300_799, "Asia/Tokyo", "9999-12-31T23:59:59+00:00"),
    ],
)
async def test_a_passage_from_either_end_of_the_calendar_is_found(
    tools: Tools, seconds: int, timezone: str, shown: str
) -> None:
    """The zero time of programs is before the start of the calendar in New York."""
    passages = pb_grpc.PassageServiceStub(tools.services.channel("archival"))
    passage = pb.NewPassage(text=GREEN, create_time=Timestamp(seconds=seconds))
    await passages.InsertPassage(pb.InsertPassageRequest(agent_id=tools.agent.id, passage=passage))
    tools.timezone = timezone
    assert shown in await tools.call("archival_memory_search", query="favourite colour")


async def test_the_message_id_is_optional_but_must_be_valid(tools: Tools) -> None:
    tools.message_id = ""
    await tools.call("archival_memory_insert", content=GREEN)
    passages = pb_grpc.PassageServiceStub(tools.services.channel("archival"))
    request = pb.ListPassagesRequest(agent_id=tools.agent.id)
    (passage,) = (await passages.ListPassages(request)).passages
    assert (passage.origin.message_id, passage.origin.run_id) == ("", tools.run_id)
    tools.message_id = "call-1"
    with pytest.raises(InvalidArgumentError) as refused:
        await tools.call("archival_memory_insert", content="Something else.")
    assert [violation.field for violation in refused.value.violations] == ["message_id"]


async def test_a_refusal_names_the_arguments_of_the_tool(tools: Tools) -> None:
    backwards = {"query": "x", "start_date": "2026-02-01", "end_date": "2026-01-01"}
    for name, arguments, says in (
        ("archival_memory_insert", {"content": "  "}, "'content' must not be blank"),
        ("archival_memory_search", {"query": " "}, "'query' must not be blank"),
        ("conversation_search", {"query": "\u200b"}, "'query' must not be blank"),
        ("conversation_search", backwards, "'end_date' must be after start_date"),
    ):
        (refused,) = await tools.run((name, arguments))
        message = json.loads(refused.tool_return.content)
        assert message["status"] == "Failed"
        assert message["message"] == f"Invalid arguments for {name}: {says}."


async def test_empty_optional_arguments_count_as_missing(tools: Tools) -> None:
    await tools.call("archival_memory_insert", content=GREEN)
    results = await tools.call(
        "archival_memory_search",
        query="favourite colour",
        tags=[],
        tag_match_mode="",
        top_k=0,
        start_datetime="",
        end_datetime="",
    )
    assert "green" in results


@pytest.mark.parametrize("tag", ["two\nlines", "two\u2028lines", "x" * 129])
async def test_tag_that_cannot_be_stored_is_an_error_of_the_argument_tags(
    tools: Tools, tag: str
) -> None:
    (refused,) = await tools.run(
        ("archival_memory_insert", {"content": GREEN, "tags": ["taste", tag]})
    )
    assert refused.tool_return.status == TOOL_STATUS_FAILED
    assert not refused.archival_changed
    content = refused.tool_return.content
    assert "tags" in content
    assert "1 to 128 characters" in content
    assert "new_passages" not in content
    assert "passages[" not in content
    assert "colour" not in await tools.call("archival_memory_search", query="favourite colour")
