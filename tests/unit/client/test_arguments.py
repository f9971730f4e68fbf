"""Short forms of arguments, and generated methods."""

from __future__ import annotations

import datetime as dt
import runpy
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from strata.api.agent_loop.v1.agent_service_pb2 import AgentType, ModelConfig, NameList
from strata.api.common.v1.message_pb2 import ROLE_USER, MessageInput
from strata.api.core_memory.v1.block_service_pb2 import AppendEdit, Block, NewBlock
from strata.api.recall.v1.message_service_pb2 import ListOrder
from strata.client import InvalidArgumentError
from strata.client.calls import arguments
from strata.gateway.registry import public_services

_GENERATOR = Path(__file__).parents[3] / "clients" / "generate_python.py"


def test_an_object_can_be_passed_in_place_of_its_id() -> None:
    assert arguments.id_of("block-1") == arguments.id_of(Block(id="block-1")) == "block-1"
    assert arguments.ids_of(["block-1", Block(id="block-2")], "block_ids") == ["block-1", "block-2"]


def test_blocks_can_be_passed_as_texts_by_label() -> None:
    whole = NewBlock(label="human", value="Ann")
    assert arguments.blocks_of({"human": "Ann"}) == arguments.blocks_of([whole]) == [whole]


def test_a_text_can_be_passed_as_one_user_message() -> None:
    [message] = arguments.messages_of("Hello!")
    assert message.role == ROLE_USER
    assert [part.text.text for part in message.parts] == ["Hello!"]
    assert arguments.messages_of("") == arguments.messages_of(()) == []
    assert arguments.messages_of([MessageInput(name="ann")]) == [MessageInput(name="ann")]


def test_a_model_can_be_passed_as_its_handle() -> None:
    config = ModelConfig(handle="openai/gpt-5")
    assert arguments.model_of("openai/gpt-5") == arguments.model_of(config) == config
    assert arguments.model_of(None) is None


def test_times_need_a_time_zone() -> None:
    noon = dt.datetime(2030, 1, 1, 13, tzinfo=dt.timezone(dt.timedelta(hours=1)))
    timestamp = arguments.time_of(noon, "start_time")
    assert timestamp is not None
    assert timestamp.ToJsonString() == "2030-01-01T12:00:00Z"
    assert arguments.time_of(timestamp, "start_time") == timestamp
    assert arguments.time_of(None, "start_time") is None
    assert arguments.time_of(Timestamp(seconds=1), "start_time") == Timestamp(seconds=1)
    with pytest.raises(InvalidArgumentError, match="start_time must have a time zone"):
        arguments.time_of(dt.datetime(2030, 1, 1), "start_time")  # noqa: DTZ001


def test_values_of_enumerations_have_short_names() -> None:
    number = ListOrder.Value("LIST_ORDER_NEWEST_FIRST")
    for value in ("newest_first", "newest-first", number):
        assert arguments.enum_of(ListOrder, value, "order") == number
    assert arguments.enum_of(AgentType, None, "type") == 0
    assert arguments.enums_of(ListOrder, ["newest_first"], "order") == [number]
    with pytest.raises(InvalidArgumentError) as refused:
        arguments.enum_of(ListOrder, "newest", "order")
    assert refused.value.message == "order must be one of: oldest_first, newest_first."


def test_a_value_can_be_passed_for_a_message_with_one_field() -> None:
    names = NameList(names=["a", "b"])
    assert arguments.message_of(NameList, "names", ["a", "b"]) == names
    assert arguments.message_of(NameList, "names", []) == NameList()
    assert arguments.message_of(NameList, "names", names) is names
    assert arguments.message_of(NameList, "names", None) is None
    assert arguments.message_of(AppendEdit, "content", "x") == AppendEdit(content="x")


@pytest.mark.parametrize(
    "convert",
    [
        lambda text: arguments.texts_of(text, "tags"),
        lambda text: arguments.ids_of(text, "tags"),
        lambda text: arguments.enums_of(ListOrder, text, "tags"),
        lambda text: arguments.message_of(NameList, "names", text),
    ],
)
def test_a_text_in_place_of_a_list_is_refused(convert: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="must be a list, not a text"):
        convert("travel")


def test_the_generator_refuses_a_response_without_a_known_result_field() -> None:
    generator = runpy.run_path(str(_GENERATOR))
    service = next(one for one in public_services() if one.name == "AgentService")
    assert "async def create(" in generator["module_of"](service)
    generator["_RETURNED"].pop("CreateAgentResponse")
    with pytest.raises(generator["ContractError"], match="CreateAgentResponse has several fields"):
        generator["module_of"](service)
