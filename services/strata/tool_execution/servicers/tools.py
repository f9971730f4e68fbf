"""gRPC servicer of ToolService: the registry of a project's tools."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from strata.api.common.v1 import message_pb2 as common
from strata.api.tool_execution.v1 import tool_service_pb2 as pb
from strata.api.tool_execution.v1 import tool_service_pb2_grpc as pb_grpc
from strata.protocol.errors import FieldViolation, InvalidArgumentError, invalid_field
from strata.shared.checks import Checks
from strata.shared.clock import Clock
from strata.shared.context import require_caller, require_scope
from strata.shared.convert.messages import STATUSES
from strata.shared.db import Page, decode_page_token, page_limit, rows_that_fit
from strata.shared.ids import check_id
from strata.shared.messages import ToolStatus
from strata.shared.sandbox import Isolation, RunStatus
from strata.shared.settings import KIB, MIB
from strata.shared.tool_catalogue import CATALOGUE
from strata.shared.tool_returns import pack_on_thread
from strata.tool_execution.convert import execution as convert
from strata.tool_execution.convert import tools as convert_registry
from strata.tool_execution.custom.executor import (
    SandboxOutput,
    ToolRunners,
    takes_agent_state,
)
from strata.tool_execution.custom.secrets import SecretBox
from strata.tool_execution.domain.arguments import read_arguments
from strata.tool_execution.domain.registry import (
    SecretStore,
    ToolStore,
    check_secrets,
    name_taken,
    tool_missing,
)
from strata.tool_execution.domain.tools import Output, Tool, ToolError, ToolType
from strata.tool_execution.registry.search import ToolSearch
from strata.tool_execution.schema.derive import AGENT_STATE

Context = Any
MAX_PAGE_SIZE = 500
DEFAULT_HITS = 5
MAX_HITS = 50
MAX_QUERY = 1_000
MAX_RESPONSE_BYTES = 4 * MIB - 64 * KIB
"""Size of the response to RunTool: by default a gRPC client receives at most 4 MiB.

A larger response would be refused after the tool ran.
"""


class ToolServicer(pb_grpc.ToolServiceServicer):
    """The registry of the project's own tools and the built-in ones.

    Args:
        builtin: The built-in tools by name.
        store: The project's own tools.
        secrets: Secrets of the project.
        box: Encrypts secrets.
        runners: Runs the project's own tools.
        search: Searches tools.
        clock: Measures durations.
        check_runner: Requests the isolation of the tool runner; raises if it does not answer.
    """

    def __init__(
        self,
        builtin: Mapping[str, Tool],
        store: ToolStore,
        *,
        secrets: SecretStore,
        box: SecretBox,
        runners: ToolRunners,
        search: ToolSearch,
        clock: Clock,
        check_runner: Callable[[], Awaitable[Isolation]],
    ) -> None:
        self._builtin = builtin
        self._builtin_by_id = {tool.id: tool for tool in builtin.values()}
        self._store = store
        self._secrets = secrets
        self._box = box
        self._runners = runners
        self._search = search
        self._clock = clock
        self._check_runner = check_runner

    async def UpsertTool(
        self, request: pb.UpsertToolRequest, context: Context
    ) -> pb.UpsertToolResponse:
        """Creates a tool or a new version of it."""
        # On a thread: a large schema takes half a second to check.
        schema = await asyncio.to_thread(convert_registry.read_parameters, request.parameters_json)
        tool, request_key = convert_registry.to_tool(request, schema)
        if tool.name in CATALOGUE:
            raise name_taken(tool.name, "a built-in tool")
        check_secrets(tool, require_caller())
        if tool.type is ToolType.CUSTOM:
            await self._runners.sandbox.prepare(tool)
        stored_tool = await self._store.upsert(tool, request_key)
        return pb.UpsertToolResponse(tool=convert.tool_to_proto(stored_tool))

    async def GetTool(self, request: pb.GetToolRequest, context: Context) -> pb.GetToolResponse:
        """Returns a tool by id or name."""
        checks = Checks()
        checks.exactly_one(request, "tool_id", "name")
        checks.done()
        tool = await self._find(request.tool_id, request.name)
        return pb.GetToolResponse(tool=convert.tool_to_proto(tool))

    async def ListTools(
        self, request: pb.ListToolsRequest, context: Context
    ) -> pb.ListToolsResponse:
        """Lists tools by name."""
        limit = page_limit(request.page_size, maximum=MAX_PAGE_SIZE)
        scope = f"ListTools {sorted(request.types)}"
        cursor = decode_page_token(scope, request.page_token, (str,))
        after = str(cursor[0]) if cursor else ""
        types = convert.types_to_domain(request.types)
        tools: dict[str, Tool] = {}
        if types or not request.types:
            page = await self._store.page(types, after, limit + 1)
            tools = {tool.name: tool for tool in page}
        for name, tool in self._builtin.items():
            if name > after and (not request.types or tool.type in types):
                tools[name] = tool
        sorted_tools = [tools[name] for name in sorted(tools)]
        cut = Page.cut(sorted_tools[: limit + 1], limit, scope, lambda tool: (tool.name,))
        return pb.ListToolsResponse(
            tools=[convert.tool_to_proto(tool) for tool in cut.rows],
            next_page_token=cut.next_page_token,
        )

    async def DeleteTool(
        self, request: pb.DeleteToolRequest, context: Context
    ) -> pb.DeleteToolResponse:
        """Deletes a tool of the project."""
        check_id(request.tool_id, "tool", field="tool_id")
        if request.tool_id in self._builtin_by_id:
            raise _not_for_builtin("deleted")
        if not await self._store.delete(request.tool_id):
            if await self._store.get(tool_id=request.tool_id) is not None:
                raise _not_for_builtin("deleted")
            raise tool_missing(request.tool_id)
        return pb.DeleteToolResponse()

    async def SearchTools(
        self, request: pb.SearchToolsRequest, context: Context
    ) -> pb.SearchToolsResponse:
        """Finds tools by text and meaning, best first."""
        checks = Checks()
        checks.query(request.query, "query", most=MAX_QUERY)
        checks.not_negative(request.limit, "limit")
        checks.done()
        limit = min(request.limit or DEFAULT_HITS, MAX_HITS)
        hits = await self._search.search(request.query, limit)
        hits = hits[: rows_that_fit(hits)]
        return pb.SearchToolsResponse(
            hits=[pb.ToolHit(tool=convert.tool_to_proto(hit.tool), score=hit.score) for hit in hits]
        )

    async def RunTool(self, request: pb.RunToolRequest, context: Context) -> pb.RunToolResponse:
        """Runs a tool once, in the sandbox or on its MCP server; a failure is a normal response."""
        if request.agent_id:
            check_id(request.agent_id, "agent", field="agent_id")
        tool, sealed = await self._to_run(request)
        of_server = tool.type is ToolType.MCP
        if of_server:
            # The same scope as for giving the tool to an agent: a key with only "run" can call the
            # tools that agents have.
            require_scope("write")
        began = self._clock.monotonic()
        try:
            arguments = await read_arguments(tool, request.arguments_json)
            state = None
            if takes_agent_state(tool):
                state = await self._runners.memory.read(_agent_of(request))
            if of_server:
                ran = SandboxOutput(await self._runners.mcp.run(tool, arguments))
            else:
                ran = await self._runners.sandbox.run(tool, arguments, sealed, state)
            output, blocks = ran.output, ran.blocks
            status, value = ToolStatus.OK, output.value
            end: RunStatus | None = RunStatus.OK
        except ToolError as error:
            status, value, blocks, end = error.status, str(error), {}, error.end
            output = Output(None, printed=error.printed)
        content, _ = await pack_on_thread(status, value, self._clock.now(), tool.return_char_limit)
        response = pb.RunToolResponse(
            tool_return=common.ToolReturnPart(
                name=tool.name,
                status=STATUSES.to_proto[status],
                content=content,
                provenance=convert.returns_from(tool) or common.PROVENANCE_TOOL,
                images=[convert.image_to_proto(image) for image in output.images],
                stdout=output.printed.stdout,
                stderr=output.printed.stderr,
            ),
            duration_ms=round((self._clock.monotonic() - began) * 1000),
            isolation="" if of_server else self._runners.sandbox.isolation,
            changed_blocks=blocks,
            end=convert.ENDS.to_proto[end] if end is not None else pb.RUN_TOOL_END_UNSPECIFIED,
        )
        _drop_image_bytes(response, MAX_RESPONSE_BYTES)
        return response

    async def GetToolRunner(
        self, request: pb.GetToolRunnerRequest, context: Context
    ) -> pb.GetToolRunnerResponse:
        """Returns the state of the tool runner, if that answers."""
        return pb.GetToolRunnerResponse(isolation=(await self._check_runner()).label)

    async def PutSecret(
        self, request: pb.PutSecretRequest, context: Context
    ) -> pb.PutSecretResponse:
        """Stores a secret, or deletes it if the value is empty."""
        convert_registry.check_secret(request)
        if request.value:
            await self._secrets.put(request.name, self._box.seal(request.name, request.value))
        else:
            await self._secrets.delete(request.name)
        return pb.PutSecretResponse()

    async def _find(self, tool_id: str, name: str = "") -> Tool:
        if tool_id:
            check_id(tool_id, "tool", field="tool_id")
        elif "\0" in name:
            raise tool_missing("of this name")
        builtin = self._builtin_by_id.get(tool_id) if tool_id else self._builtin.get(name)
        tool = builtin or await self._store.get(tool_id=tool_id, name=name)
        if tool is None:
            raise tool_missing(tool_id or name)
        return tool

    async def _to_run(self, request: pb.RunToolRequest) -> tuple[Tool, Mapping[str, bytes]]:
        checks = Checks()
        checks.exactly_one(request, "tool_id", "source_code")
        checks.done()
        if request.source_code:
            return convert_registry.to_dry_run(request.source_code, request.function_name), {}
        name = (await self._find(request.tool_id)).name
        if request.function_name:
            raise invalid_field("function_name", "must be empty with tool_id")
        runnable = await self._store.runnable([name])
        tool = runnable.tools.get(name)
        if tool is None or tool.type not in (ToolType.CUSTOM, ToolType.MCP):
            raise _not_for_builtin(
                "run without an agent",
                "it is built in, or the client's",
                "a custom tool or a tool of an MCP server",
            )
        return tool, runnable.sealed


def _drop_image_bytes(response: pb.RunToolResponse, most: int) -> None:
    """Removes the bytes of the last images until the response has at most `most` bytes."""
    for image in reversed(response.tool_return.images):
        if response.ByteSize() <= most:
            return
        image.ClearField("data")


def _agent_of(request: pb.RunToolRequest) -> str:
    if not request.agent_id:
        raise invalid_field("agent_id", f"must be set: the tool takes {AGENT_STATE}")
    # The method needs only "run", but the tool can return the memory that it reads.
    require_scope("read")
    return request.agent_id


def _not_for_builtin(
    what: str,
    kinds: str = "it is built in, an MCP server's, or the client's",
    allowed: str = "a custom tool of the project",
) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"This tool cannot be {what}: {kinds}.",
        violations=[FieldViolation("tool_id", f"must be the id of {allowed}")],
    )
