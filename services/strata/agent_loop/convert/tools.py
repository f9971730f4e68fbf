"""Converts tools, tool calls and results."""

from __future__ import annotations

import json
from dataclasses import asdict

from strata.agent_loop.convert.messages import tool_return_from_proto
from strata.agent_loop.domain.model.chat import ToolSchema
from strata.agent_loop.domain.tools import (
    CallFinished,
    CallStarted,
    CodeAnswer,
    CodeCall,
    CodeToolAccess,
    Tool,
    ToolBatch,
    ToolEvent,
    ToolResult,
    ToolSet,
)
from strata.api.common.v1 import tool_pb2
from strata.api.tool_execution.v1 import execution_service_pb2 as pb
from strata.api.tool_execution.v1 import tool_service_pb2
from strata.shared.convert.memory_edits import edits_from_proto
from strata.shared.convert.messages import labels_from_proto, labels_to_proto
from strata.shared.convert.tools import EFFECTS
from strata.shared.tool_catalogue import CATALOGUE, ToolEffect
from strata.shared.tool_returns import FUNCTION_RETURN_CHAR_LIMIT

_OF_PROJECT = frozenset(
    {tool_pb2.TOOL_TYPE_CUSTOM, tool_pb2.TOOL_TYPE_CLIENT, tool_pb2.TOOL_TYPE_MCP}
)


def toolset_from_proto(response: pb.ResolveToolsResponse) -> ToolSet:
    """Returns the domain form of resolved tools."""
    return ToolSet(tuple(_tool(wire) for wire in response.tools), left_out_of(response))


def left_out_of(response: pb.ResolveToolsResponse) -> tuple[str, ...]:
    """Returns the names of tools of whole MCP servers for which there is no space."""
    return tuple(name for server in response.servers for name in server.left_out)


def _tool(wire: tool_service_pb2.Tool) -> Tool:
    parameters = json.loads(wire.parameters_json) if wire.parameters_json else {}
    if parameters.get("type") != "object":
        parameters = {"type": "object", "properties": {}, **parameters}
    builtin = CATALOGUE.get(wire.name) if wire.type not in _OF_PROJECT else None
    return Tool(
        ToolSchema(wire.name, wire.description, parameters, strict=True),
        effect=EFFECTS.from_proto.get(wire.effect, ToolEffect.UNDECLARED),
        keyed=builtin is not None and builtin.keyed,
        requires_approval=wire.default_requires_approval,
        version=wire.version,
        returns_from=next(iter(labels_from_proto([wire.returns_from])), None),
        by_client=wire.type == tool_pb2.TOOL_TYPE_CLIENT,
        return_char_limit=wire.return_char_limit or FUNCTION_RETURN_CHAR_LIMIT,
    )


def batch_to_proto(batch: ToolBatch) -> pb.ExecuteToolsRequest:
    """Returns the request that runs the calls of one reply."""
    older = batch.older_lines
    group = batch.group
    return pb.ExecuteToolsRequest(
        agent_id=batch.agent_id,
        conversation_id=batch.conversation_id,
        run_id=batch.run_id,
        step_id=batch.step_id,
        model=batch.model,
        timezone=batch.timezone,
        calls=[
            pb.ToolCall(
                tool_call_id=call.id,
                name=call.name,
                arguments=call.arguments,
                idempotency_key=batch.idempotency_keys[call.id],
            )
            for call in batch.calls
        ],
        allowed_tools=batch.allowed,
        agent_type=batch.agent_type,
        block_revisions=batch.snapshot.block_revisions,
        max_files_open=batch.snapshot.max_files_open,
        per_file_view_window_char_limit=batch.snapshot.file_view_chars,
        max_memory_bytes=batch.snapshot.max_memory_bytes,
        max_search_bytes=batch.snapshot.max_search_bytes,
        message_id=batch.message_id,
        taint=labels_to_proto(batch.snapshot.taint),
        older_lines=pb.OlderLines(**asdict(older)) if older is not None else None,
        group=None
        if group is None
        else pb.CallingGroup(
            group_id=group.id,
            members=[
                pb.CallingGroupMember(agent_id=member.agent_id, name=member.name)
                for member in group.members
            ],
        ),
    )


def code_batch_to_proto(
    batch: ToolBatch, code_access: CodeToolAccess
) -> pb.ExecuteToolsWithCallsRequest:
    """Returns the first message of a stream for calls whose code calls tools."""
    tools = [
        pb.NestedTool(name=tool.name, parameters=list(tool.schema.parameters.get("properties", {})))
        for tool in code_access.tools.tools
    ]
    return pb.ExecuteToolsWithCallsRequest(
        request=pb.NestingRequest(request=batch_to_proto(batch), tools=tools)
    )


def code_call_from_proto(wire: pb.NestedCall) -> CodeCall:
    """Returns a tool call that code makes."""
    return CodeCall(wire.parent_call_id, wire.name, wire.arguments)


def code_answer_to_proto(number: int, answer: CodeAnswer) -> pb.ExecuteToolsWithCallsRequest:
    """Returns the message that answers a call of code."""
    nested_answer = pb.NestedAnswer(number=number)
    if answer.error is not None:
        nested_answer.error = answer.error
    else:
        nested_answer.value_json = answer.value_json
    return pb.ExecuteToolsWithCallsRequest(answer=nested_answer)


def tool_event_from_proto(response: pb.ExecuteToolsResponse) -> ToolEvent | None:
    """Returns an event of the executor; None for a kind of a newer release."""
    match response.WhichOneof("event"):
        case "started":
            started = response.started
            return CallStarted(started.tool_call_id, started.name, started.arguments)
        case "finished":
            return CallFinished(_result(response.finished))
        case _:
            return None


def _result(wire: pb.FinishedCall) -> ToolResult:
    return ToolResult(
        tool_return=tool_return_from_proto(wire.tool_return),
        duration_ms=wire.duration_ms,
        memory_edits=edits_from_proto(wire.memory_edits),
        archival_changed=wire.archival_changed,
        files_changed=wire.files_changed,
    )
