"""Converts execution requests and events between the wire and the domain; checks the requests."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from strata.api.common.v1 import message_pb2 as common
from strata.api.common.v1 import run_event_pb2 as event_pb
from strata.api.common.v1 import tool_pb2
from strata.api.tool_execution.v1 import execution_service_pb2 as execution_pb
from strata.api.tool_execution.v1 import tool_service_pb2 as tool_pb
from strata.protocol.images import image_id
from strata.shared.checks import Checks
from strata.shared.convert.enums import EnumTable
from strata.shared.convert.memory_edits import edits_to_proto
from strata.shared.convert.messages import STATUSES, labels_to_proto, taint_from_proto
from strata.shared.convert.tools import EFFECTS
from strata.shared.ids import check_id
from strata.shared.sandbox import RunStatus
from strata.tool_execution.domain.tools import (
    CallingAgent,
    CallingGroup,
    CallOutcome,
    OlderLines,
    ReturnedImage,
    Tool,
    ToolCall,
    ToolType,
)
from strata.tool_execution.execution.engine import Started

_TYPES = EnumTable(tool_pb2.ToolType, ToolType)
ENDS = EnumTable(
    tool_pb.RunToolEnd,
    RunStatus,
    renamed={RunStatus.OK: "RETURNED", RunStatus.TOOL_ERROR: "RAISED"},
)


def tool_to_proto(tool: Tool) -> tool_pb.Tool:
    """Returns the wire form of a tool."""
    wire = tool_pb.Tool(
        id=tool.id,
        name=tool.name,
        description=tool.description,
        type=_TYPES.to_proto[tool.type],
        parameters_json=json.dumps(tool.parameters, ensure_ascii=False),
        tags=tool.tags,
        return_char_limit=tool.return_char_limit,
        enable_parallel_execution=tool.parallel,
        effect=EFFECTS.to_proto[tool.effect],
        version=tool.version,
        returns_from=returns_from(tool),
    )
    own = tool.own
    if own is not None:
        wire.source_code = own.source_code
        wire.default_requires_approval = own.requires_approval
        wire.pip_requirements.extend(own.pip_requirements)
        wire.secret_names.extend(own.secret_names)
        wire.allowed_hosts.extend(own.allowed_hosts)
        wire.mcp_server_id = own.mcp.server_id if own.mcp is not None else ""
        if own.create_time is not None and own.update_time is not None:
            wire.create_time.FromDatetime(own.create_time)
            wire.update_time.FromDatetime(own.update_time)
    return wire


def types_to_domain(values: Iterable[tool_pb2.ToolType.ValueType]) -> frozenset[ToolType]:
    """Returns the domain types of wire values; unknown values are ignored."""
    types = set(values)
    return frozenset(name for name, value in _TYPES.to_proto.items() if value in types)


def to_calls(request: execution_pb.ExecuteToolsRequest) -> tuple[list[ToolCall], CallingAgent]:
    """Returns the calls to run, and the caller on whose behalf they run.

    Raises:
        InvalidArgumentError: An id is malformed, a call has no id or idempotency key, or two calls
            have the same id.
    """
    checks = Checks()
    checks.id(request.agent_id, "agent", "agent_id")
    checks.id(request.conversation_id, "conversation", "conversation_id")
    checks.id(request.run_id, "run", "run_id")
    if request.HasField("group"):
        checks.id(request.group.group_id, "group", "group.group_id")
        for index, member in enumerate(request.group.members):
            checks.id(member.agent_id, "agent", f"group.members[{index}].agent_id")
    checks.id(request.message_id, "message", "message_id", optional=True)
    seen: set[str] = set()
    for index, call in enumerate(request.calls):
        path = f"calls[{index}]"
        is_new = bool(call.tool_call_id) and call.tool_call_id not in seen
        checks.unless(is_new, f"{path}.tool_call_id", "must be set and unique")
        checks.unless(bool(call.idempotency_key), f"{path}.idempotency_key", "must be set")
        seen.add(call.tool_call_id)
    checks.unless(bool(request.calls), "calls", "must not be empty")
    checks.done()
    calls = [
        ToolCall(call.tool_call_id, call.name, call.arguments, call.idempotency_key)
        for call in request.calls
    ]
    caller = CallingAgent(
        agent_id=request.agent_id,
        conversation_id=request.conversation_id,
        run_id=request.run_id,
        step_id=request.step_id,
        model=request.model,
        timezone=request.timezone,
        agent_type=request.agent_type or "letta_v1_agent",
        block_revisions=dict(request.block_revisions),
        max_files_open=request.max_files_open,
        file_view_chars=request.per_file_view_window_char_limit,
        max_memory_bytes=request.max_memory_bytes,
        max_search_bytes=request.max_search_bytes,
        message_id=request.message_id,
        taint=taint_from_proto(request.taint),
        older_lines=_older_lines(request),
        group=CallingGroup(
            request.group.group_id,
            tuple(member.agent_id for member in request.group.members),
            tuple(member.name for member in request.group.members),
        ),
    )
    return calls, caller


def _older_lines(request: execution_pb.ExecuteToolsRequest) -> OlderLines | None:
    if not request.HasField("older_lines"):
        return None
    wire = request.older_lines
    check_id(wire.agent_id, "agent", field="older_lines.agent_id")
    return OlderLines(wire.agent_id, wire.range_key, tuple(wire.lines))


def nested_tools_to_domain(tools: Iterable[execution_pb.NestedTool]) -> dict[str, list[str]]:
    """Returns the tools that code can call as functions: parameter names by tool name."""
    return {tool.name: list(tool.parameters) for tool in tools}


def event_to_proto(
    event: Started | CallOutcome, tools: Mapping[str, Tool]
) -> execution_pb.ExecuteToolsResponse:
    """Returns the wire form of the start or the end of a call."""
    if isinstance(event, Started):
        call = event.call
        return execution_pb.ExecuteToolsResponse(
            started=event_pb.ToolStarted(
                tool_call_id=call.id, name=call.name, arguments=call.arguments
            )
        )
    return execution_pb.ExecuteToolsResponse(finished=_finished(event, tools))


def _finished(outcome: CallOutcome, tools: Mapping[str, Tool]) -> execution_pb.FinishedCall:
    return execution_pb.FinishedCall(
        tool_return=common.ToolReturnPart(
            tool_call_id=outcome.call.id,
            name=outcome.call.name,
            status=STATUSES.to_proto[outcome.status],
            content=outcome.content,
            provenance=_provenance(outcome, tools),
            taint=labels_to_proto(outcome.output.taint),
            images=[image_to_proto(image) for image in outcome.output.images],
            stdout=outcome.output.printed.stdout,
            stderr=outcome.output.printed.stderr,
        ),
        duration_ms=round(outcome.duration * 1000),
        memory_edits=edits_to_proto(outcome.output.memory_edits),
        archival_changed=outcome.output.archival_changed,
        truncated=outcome.truncated,
        files_changed=outcome.output.files_changed,
    )


def image_to_proto(image: ReturnedImage) -> common.ImagePart:
    """Returns the wire form of an image, with its bytes."""
    return common.ImagePart(
        media_type=image.header.media_type,
        data=image.data,
        image_id=image_id(image.data),
        width=image.header.width,
        height=image.header.height,
        size_bytes=len(image.data),
    )


def _provenance(outcome: CallOutcome, tools: Mapping[str, Tool]) -> common.Provenance.ValueType:
    """Returns the provenance of a tool return; errors of built-in web tools are our own text."""
    tool = tools.get(outcome.call.name)
    if tool is None:
        return common.PROVENANCE_SYSTEM
    if tool.own is not None:
        # Errors are labelled, too: their text comes from the tool.
        return returns_from(tool) or common.PROVENANCE_TOOL
    if tool.from_web:
        return common.PROVENANCE_WEB if outcome.ok else common.PROVENANCE_SYSTEM
    return common.PROVENANCE_MEMORY


def returns_from(tool: Tool) -> common.Provenance.ValueType:
    """Returns the label of the untrusted content that a tool returns.

    UNSPECIFIED if it returns none, such as a custom tool without network access. No other code
    decides which tools return untrusted content.
    """
    if tool.type is ToolType.MCP:
        return common.PROVENANCE_MCP
    return common.PROVENANCE_WEB if tool.reads_web else common.PROVENANCE_UNSPECIFIED
