"""Runs the tools: validates the arguments, calls the gateway, returns the result."""

from __future__ import annotations

import json
import re
from typing import Any

import mcp_types as types
from jsonschema import Draft202012Validator
from mcp.server import ServerRequestContext
from mcp.shared.exceptions import MCPError

from strata.api.core_memory.v1 import block_service_pb2 as block_pb
from strata.api.core_memory.v1 import file_service_pb2 as file_pb
from strata.protocol.errors import FieldViolation, InvalidArgumentError, StrataError
from strata.shared.agent_mcp.blocks import attached_block, blocks_of
from strata.shared.agent_mcp.definitions import CHANGING, READING
from strata.shared.agent_mcp.edit_tools import EDITS, Arguments, edit_block
from strata.shared.agent_mcp.memory import ConnectedAgent, MemoryServices
from strata.shared.agent_mcp.results import ToolReturn, editor_of, failure_of, result_of
from strata.shared.agent_mcp.search_tools import (
    insert_passage,
    search_conversations,
    search_passages,
)
from strata.shared.one_line import clipped

_PROBLEM_CHARS = 300
_MAX_INT32 = 2**31 - 1
_SURROGATE = re.compile("[\ud800-\udfff]")


class AgentMemoryTools:
    """The tools of one agent's memory.

    Args:
        memory: The agent.
        read_only: Leave out the tools that change the memory.
    """

    def __init__(self, memory: ConnectedAgent, *, read_only: bool) -> None:
        self._memory = memory
        self._offered = {tool.name: tool for tool in (READING if read_only else READING + CHANGING)}
        self._validators = {
            name: Draft202012Validator(tool.input_schema) for name, tool in self._offered.items()
        }

    async def list_tools(
        self, _: ServerRequestContext, __: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        """Lists the tools."""
        return types.ListToolsResult(tools=[*self._offered.values()])

    def schema(self, name: str) -> dict[str, Any] | None:
        """Returns the schema of a tool's arguments; None if there is no such tool."""
        tool = self._offered.get(name)
        return None if tool is None else tool.input_schema

    async def call_tool(
        self, context: ServerRequestContext, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        """Runs a tool; an error becomes a result with ``is_error`` for the client's model.

        Raises:
            MCPError: There is no such tool here.
        """
        if params.name not in self._offered:
            raise MCPError(types.INVALID_PARAMS, _unknown(params.name))
        try:
            arguments = self._validated(params.name, params.arguments or {})
            async with self._memory.connected() as client:
                tool_return = await self._run(
                    client,
                    params.name,
                    arguments,
                    editor_of(context.session.client_params, self._memory.editor),
                )
        except StrataError as error:
            return failure_of(self._memory.explained(error))
        return result_of(tool_return)

    def _validated(self, name: str, sent: Arguments) -> Arguments:
        """Validates arguments against the schema, and returns them with integers as `int`.

        Raises:
            InvalidArgumentError: They do not fit the schema (``INVALID_FIELD``).
        """
        problems = [
            FieldViolation(error.json_path, clipped(error.message, _PROBLEM_CHARS))
            for error in self._validators[name].iter_errors(sent)
        ]
        # In JSON Schema, 2.0 is an integer.
        arguments = {
            field: int(value) if isinstance(value, float) else value
            for field, value in (() if problems else sent.items())
        }
        problems += [
            FieldViolation(f"$.{field}", "is too large or too small")
            for field, value in arguments.items()
            if isinstance(value, int) and not -_MAX_INT32 <= value <= _MAX_INT32
        ]
        problems += [
            FieldViolation(f"$.{field}", "has half of a surrogate pair, which is not valid text")
            for field, value in arguments.items()
            if _SURROGATE.search(json.dumps(value, ensure_ascii=False))
        ]
        if problems:
            raise InvalidArgumentError(
                f"The arguments of {name} are wrong. Nothing was done.", violations=problems
            )
        return arguments

    async def _run(
        self, client: MemoryServices, name: str, arguments: Arguments, editor: str
    ) -> ToolReturn:
        memory = self._memory
        if name in EDITS:
            return await edit_block(client, memory.agent_id, name, arguments, editor)
        match name:
            case "list_memory_blocks":
                blocks = await blocks_of(client, memory.agent_id)
                return {"blocks": [_listed(block) for block in blocks]}
            case "read_memory_block":
                block = await attached_block(client, memory.agent_id, arguments["label"])
                return {**_listed(block), "value": block.value}
            case "view_memory":
                return await rendered(client, memory.agent_id)
            case "conversation_search":
                return await search_conversations(client, memory, arguments)
            case "archival_memory_search":
                return await search_passages(client, memory, arguments)
            case "archival_memory_insert":
                return await insert_passage(client, memory, arguments, editor)
            case "grep_files":
                return await _grep(client, memory.agent_id, arguments)
            case _:
                return await _search_files(client, memory.agent_id, arguments)


async def rendered(client: MemoryServices, agent_id: str) -> str:
    """Returns core memory as the agent's model sees it.

    Raises:
        StrataError: Core memory refuses.
    """
    request = block_pb.RenderMemoryRequest(agent_id=agent_id)
    return (await client.blocks.RenderMemory(request)).text


def _listed(block: block_pb.Block) -> dict[str, Any]:
    return {
        "label": block.label,
        "description": block.description,
        "revision": block.revision,
        "characters": len(block.value),
        "limit": block.limit,
        "read_only": block.read_only,
    }


async def _grep(client: MemoryServices, agent_id: str, arguments: Arguments) -> str:
    request = file_pb.GrepFilesRequest(
        agent_id=agent_id,
        pattern=arguments["pattern"],
        include=arguments.get("include", ""),
        context_lines=arguments.get("context_lines"),
        offset=arguments.get("offset", 0),
    )
    return (await client.files.GrepFiles(request)).message


async def _search_files(client: MemoryServices, agent_id: str, arguments: Arguments) -> str:
    request = file_pb.SearchFilesRequest(
        agent_id=agent_id, query=arguments["query"], limit=arguments.get("limit", 0)
    )
    return (await client.files.SearchFiles(request)).message


def _unknown(name: str) -> str:
    if any(name == tool.name for tool in CHANGING):
        return f"This server is read-only: {name} is not offered."
    return f"There is no tool {clipped(name, _PROBLEM_CHARS)!r}."
