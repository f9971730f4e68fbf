"""Refusals of services name the arguments that the model passed, for every built-in tool."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any, cast

import pytest
from google.protobuf.message import Message

from strata.api.agent_loop.v1 import agent_service_pb2_grpc as agent_grpc
from strata.api.archival.v1 import passage_service_pb2_grpc as passage_grpc
from strata.api.common.v1 import run_event_pb2 as events
from strata.api.core_memory.v1 import block_service_pb2_grpc as block_grpc
from strata.api.core_memory.v1 import file_service_pb2_grpc as file_grpc
from strata.api.gateway.v1 import run_service_pb2 as run_pb
from strata.api.gateway.v1 import run_service_pb2_grpc as run_grpc
from strata.api.recall.v1 import message_service_pb2_grpc as message_grpc
from strata.protocol.errors import FieldViolation, InvalidArgumentError
from strata.shared.clock import ManualClock
from strata.shared.ids import new_id
from strata.tool_execution.builtin.agents import AgentTools
from strata.tool_execution.builtin.code import CODE_TOOLS
from strata.tool_execution.builtin.definitions import BUILTIN_TOOLS
from strata.tool_execution.builtin.files import FileTools
from strata.tool_execution.builtin.memory import MemoryTools
from strata.tool_execution.builtin.retrieval import ArchivalTools, ConversationSearch
from strata.tool_execution.builtin.summaries import ExpandSummary
from strata.tool_execution.builtin.voice_search import SearchMemory
from strata.tool_execution.builtin.web import WEB_TOOLS
from strata.tool_execution.domain.arguments import parse_arguments
from strata.tool_execution.domain.memory_command import COMMANDS
from strata.tool_execution.domain.tools import CallingAgent, CallingGroup, ToolCall
from strata.tool_execution.execution.argument_names import argument_of, in_argument_names

# Their arguments are not sent to a service.
WITHOUT_REQUEST = {tool.name for tool in (*WEB_TOOLS, *CODE_TOOLS)} | {
    "current_time",
    "finish_rethinking_memory",
    "hand_over",
    "memory_finish_edits",
    "send_message",
    # Its arguments count lines that it stores.
    "store_memories",
}
GROUP = CallingGroup(new_id("group"), (new_id("agent"),), ("Bob",))
CALLER = CallingAgent(
    new_id("agent"),
    new_id("conversation"),
    new_id("run"),
    "step-1",
    "openai/x",
    "UTC",
    group=GROUP,
)
OTHERS = [new_id("agent"), new_id("agent")]


class RecordingChannel:
    """Records requests; answers with empty responses, and runs that have ended."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, Message]] = []

    def unary_unary(self, path: str, *, response_deserializer: Any, **_: Any) -> Any:
        async def call(request: Message, **_: Any) -> Any:
            self.requests.append((path, request))
            response = response_deserializer(b"")
            if path.endswith("/ListAgents"):
                response.agents.add(id=OTHERS[0], name="other")
            return response

        return call

    def unary_stream(self, path: str, *_: Any, **__: Any) -> Any:
        def call(request: Message, **_: Any) -> Any:
            self.requests.append((path, request))
            return EndedRun()

        return call

    def stream_unary(self, *_: Any, **__: Any) -> Any:
        return None

    stream_stream = stream_unary


class EndedRun:
    """The stream of a run that has ended."""

    async def __aiter__(self) -> AsyncIterator[run_pb.SendMessageResponse]:
        end = events.RunFinished(stop_reason=events.STOP_REASON_END_TURN)
        yield run_pb.SendMessageResponse(event=events.RunEvent(run_finished=end))

    def cancel(self) -> None:
        pass

    def done(self) -> bool:
        return True


def executors(channel: Any) -> list[Any]:
    messages = message_grpc.MessageServiceStub(channel)
    passages = passage_grpc.PassageServiceStub(channel)
    return [
        ConversationSearch(messages, ManualClock()),
        ArchivalTools(passages),
        ExpandSummary(messages),
        SearchMemory(messages, passages, ManualClock()),
        MemoryTools(block_grpc.BlockServiceStub(channel)),
        FileTools(file_grpc.FileServiceStub(channel)),
        AgentTools(
            run_grpc.RunServiceStub(channel), agent_grpc.AgentServiceStub(channel), wait_s=5
        ),
    ]


def value_of(name: str, schema: dict[str, Any], variant: int) -> Any:
    """A valid value of an argument; another one for every variant."""
    if name == "other_agent_id":
        return OTHERS[variant]
    if "enum" in schema:
        return schema["enum"][variant]
    match schema["type"]:
        case "string":
            return f"200{variant + 1}-02-03" if "date" in name else f"{name}-{variant}"
        case "integer":
            return 60 - 20 * variant if name.startswith("start") else 3 + variant
        case "boolean":
            return bool(variant)
        case "array":
            return [value_of(name, schema["items"], variant)]
    members = schema["properties"].items()
    return {member: value_of(member, inner, variant) for member, inner in members}


def calls() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every built-in tool that makes requests, with all its arguments."""
    for tool in BUILTIN_TOOLS.values():
        if tool.name in WITHOUT_REQUEST:
            continue
        properties = tool.parameters["properties"]
        whole = {name: value_of(name, schema, 0) for name, schema in properties.items()}
        if tool.name != "memory":
            yield tool.name, whole
            continue
        for command in COMMANDS:
            unused = "path" if command == "rename" else "old_path"
            yield tool.name, {**whole, "command": command, unused: ""}


def leaves(message: Message, path: str = "") -> Iterator[tuple[str, Any]]:
    for field, value in message.ListFields():
        name = f"{path}.{field.name}".lstrip(".")
        values = list(value) if field.is_repeated else [value]
        for index, element in enumerate(values):
            place = f"{name}[{index}]" if field.is_repeated else name
            if isinstance(element, Message) and element.DESCRIPTOR.name != "Timestamp":
                yield from leaves(element, place)
            else:
                yield place, element


async def requested(name: str, arguments: dict[str, Any]) -> list[tuple[str, str, Any]]:
    channel = RecordingChannel()
    [executor] = [executor for executor in executors(channel) if name in executor.names]
    text = json.dumps(arguments)
    fitting = parse_arguments(BUILTIN_TOOLS[name], text)
    await executor.run(ToolCall("call-1", name, text, "run/1/1"), fitting, CALLER)
    return [
        (method, field, repr(value))
        for method, request in channel.requests
        for field, value in leaves(request)
    ]


def root(path: str) -> str:
    return re.split(r"[.\[]", path)[0]


@pytest.mark.parametrize(("name", "arguments"), list(calls()))
async def test_every_field_of_the_request_is_reported_as_its_argument(
    name: str, arguments: dict[str, Any]
) -> None:
    before = set(await requested(name, arguments))
    assert before
    reached = set()
    properties = BUILTIN_TOOLS[name].parameters["properties"]
    for argument, schema in properties.items():
        if argument == "command" or arguments[argument] == "":
            continue
        changed = {**arguments, argument: value_of(argument, schema, 1)}
        after = set(await requested(name, changed))
        for _, field, _ in before ^ after:
            reached.add(argument)
            if field == "request_id":
                continue
            named = argument_of(name, field, changed).split(" or ")
            assert argument in map(root, named), field
    assert name == "memory" or reached == set(properties)


def test_a_field_violation_is_reported_by_argument() -> None:
    error = InvalidArgumentError(
        "The request has wrong fields: passage.text must not be blank; passage.tags[1] is long.",
        violations=[
            FieldViolation("passage.text", "must not be blank"),
            FieldViolation("passage.tags[1]", "is long"),
        ],
    )
    assert in_argument_names("archival_memory_insert", error, {"content": " "}) == (
        "Invalid arguments for archival_memory_insert: 'content' must not be blank;"
        " 'tags[1]' is long."
    )


def test_field_names_in_descriptions_are_replaced() -> None:
    error = InvalidArgumentError(
        "The request has wrong fields: end_time must be after start_time.",
        violations=[FieldViolation("end_time", "must be after start_time")],
    )
    message = in_argument_names("conversation_search", error, cast("Any", {}))
    assert (
        message == "Invalid arguments for conversation_search: 'end_date' must be after start_date."
    )


def test_a_message_written_for_the_model_is_unchanged() -> None:
    error = InvalidArgumentError(
        "No label of a block is like this.", violations=[FieldViolation("label", "is wrong")]
    )
    assert in_argument_names("memory", error, {"path": "x"}) == error.message
