"""Errors of invalid arguments name the arguments of the tool, not fields of requests."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor

from integration.tool_execution.conftest import Tools
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.archival.v1 import passage_service_pb2 as passage_pb
from strata.api.core_memory.v1 import block_service_pb2 as block_pb
from strata.api.core_memory.v1 import file_service_pb2 as file_pb
from strata.api.gateway.v1 import run_service_pb2 as run_pb
from strata.api.recall.v1 import message_service_pb2 as message_pb
from strata.shared.ids import new_id
from strata.tool_execution.builtin.agents import AGENT_TOOLS
from strata.tool_execution.builtin.code import CODE_TOOLS
from strata.tool_execution.builtin.definitions import BUILTIN_TOOLS
from strata.tool_execution.builtin.web import WEB_TOOLS

pytestmark = pytest.mark.asyncio(loop_scope="session")

# These make no request to a service, or only to the gateway, which is not one of these services.
OTHERS = {tool.name for tool in (*WEB_TOOLS, *CODE_TOOLS, *AGENT_TOOLS)}
TOOLS = sorted(BUILTIN_TOOLS.keys() - OTHERS)
FITTING: dict[str, Any] = {
    "label": "human",
    "path": "human",
    "old_path": "human",
    "new_path": "renamed",
    "old_str": "Ada",
    "old_content": "Ada",
    "patch": "@@ -1 +1 @@\n-Name: Ada\n+Name: Eve\n",
    "other_agent_id": new_id("agent"),
    "pattern": "x",
    "query": "city",
    "file_requests": [{"file_name": "docs/a.md"}],
    "match_all": ["nobody"],
    "match_some": [],
}
LONG = "word " * 60_000
STRINGS = (
    "",
    " ",
    "\u200b",
    "a\nb",
    "../..",
    "/",
    "a/b/c",
    "x" * 300,
    LONG,
    "\x07",
    '{"a": [',
    "(",
    new_id("agent"),
    new_id("passage"),
)
DATES = ("0001-01-01", "9999-12-31", "9999-12-31T23:59:59.999999", "2026-13-45", "soon", "")
INTEGERS = (-(2**63), -1, 0, 10**6, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 1e300)


def hostile(name: str, schema: dict[str, Any]) -> Iterator[Any]:
    """Yields values that do not fit, or nearly do not."""
    yield None
    match schema["type"]:
        case "string":
            yield from DATES if "date" in name else STRINGS
        case "integer":
            yield from INTEGERS
        case "boolean":
            yield from ("yes", 2, "")
        case "array":
            yield from ([], [None], "", ["a"] * 200)
            for value in hostile(name, schema["items"]):
                yield [value]
        case "object":
            fitting = {"file_name": "docs/a.md"}
            for member, inner in schema["properties"].items():
                for value in hostile(member, inner):
                    yield {**fitting, member: value}


def calls(name: str) -> Iterator[dict[str, Any]]:
    """Yields arguments of a tool, one of them hostile."""
    properties = BUILTIN_TOOLS[name].parameters["properties"]
    required = BUILTIN_TOOLS[name].parameters["required"]
    commands = properties.get("command", {}).get("enum", [None])
    for command in commands:
        fitting = {
            argument: FITTING.get(argument, "fitting")
            for argument in (properties if command else required)
            if properties[argument]["type"] != "integer"
        } | ({"command": command} if command else {})
        for argument, schema in properties.items():
            for value in hostile(argument, schema):
                yield {**fitting, argument: value}
    for first, last in (("start_date", "end_date"), ("start_datetime", "end_datetime")):
        if last in properties:
            yield {"query": "x", first: "2026-02-01", last: "2026-01-01"}


def fields(*messages: Descriptor) -> Iterator[str]:
    """Yields the names of the fields of requests, and of what they hold."""
    seen: set[str] = set()
    waiting = list(messages)
    while waiting:
        message = waiting.pop()
        if message.full_name in seen or message.full_name.startswith("google."):
            continue
        seen.add(message.full_name)
        for field in message.fields:
            yield field.name
            if field.message_type is not None:
                waiting.append(field.message_type)


FILE_REQUEST = {"file_name", "offset", "length"}
REQUEST_FIELDS = {
    field
    for module in (agent_pb, block_pb, file_pb, message_pb, passage_pb, run_pb)
    for field in fields(
        *(
            message_type
            for message_type in module.DESCRIPTOR.message_types_by_name.values()
            if message_type.name.endswith("Request")
        )
    )
    # One word is a word of prose as often as a name.
    if "_" in field
}


def foreign_names(name: str, message: str) -> set[str]:
    """Returns the names in a text that stand for fields of requests, not for arguments."""
    properties = BUILTIN_TOOLS[name].parameters["properties"]
    known = {*properties, *FILE_REQUEST, name}
    words = set(re.findall(r"[a-z]+(?:_[a-z]+)+", message))
    dotted = set(
        re.findall(r"\b(?:passage|append|replace|insert|create|rename|patch)\.\w+", message)
    )
    return (words & REQUEST_FIELDS) - known | dotted


@pytest.mark.parametrize("name", TOOLS)
async def test_a_refusal_names_the_arguments_for_every_kind_of_error(
    tools: Tools, name: str
) -> None:
    refused = 0
    for arguments in calls(name):
        (ended,) = await tools.run((name, arguments))
        packed = json.loads(ended.tool_return.content)
        if packed["status"] == "OK":
            continue
        refused += 1
        message = packed["message"]
        shown = {key: str(value)[:80] for key, value in arguments.items()}
        assert "internal error" not in message, (shown, message)
        assert not foreign_names(name, message), (shown, message)
        assert "127.0.0.1" not in message, (shown, message)
    assert refused or name in {"memory_finish_edits", "finish_rethinking_memory"}
