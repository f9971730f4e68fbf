"""From the loop's request to the body of OpenAI's chat completions. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from strata.agent_loop.models.domain import (
    ChatMessage,
    ModelRequest,
    ModelSettings,
    Role,
    ToolChoice,
    ToolChoiceMode,
    ToolSchema,
)
from strata.agent_loop.models.schema import to_strict
from strata.agent_loop.models.wire import legal_arguments, repair

# Parameters that a model may refuse without being unusable: they are left out on refusal.
OPTIONAL_PARAMETERS = frozenset(
    {"temperature", "parallel_tool_calls", "reasoning_effort", "stream_options"}
)


def build(
    request: ModelRequest,
    settings: ModelSettings,
    *,
    official: bool,
    without: Collection[str] = (),
) -> dict[str, Any]:
    """The request body.

    Args:
        request: What to ask.
        settings: Of whom.
        official: Whether the endpoint is OpenAI's own. Only that one is known to honour strict
            schemas and to want `max_completion_tokens`; compatible servers get the older form.
        without: Names of optional parameters that this model has refused before.
    """
    body: dict[str, Any] = {
        "model": settings.model,
        "messages": [_message(message) for message in repair(request.messages)],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    limit = request.max_tokens or settings.max_tokens
    if limit:
        body["max_completion_tokens" if official else "max_tokens"] = limit
    if settings.temperature is not None:
        body["temperature"] = settings.temperature
    if settings.reasoning_effort is not None:
        body["reasoning_effort"] = settings.reasoning_effort
    if request.response_schema is not None:
        named = {"name": "reply", "schema": request.response_schema}
        body["response_format"] = {"type": "json_schema", "json_schema": named}
    if request.tools:
        parallel = request.parallel_tool_calls
        body["tools"] = [_tool(tool, official) for tool in request.tools]
        body["tool_choice"] = _tool_choice(request.tool_choice)
        body["parallel_tool_calls"] = settings.parallel_tool_calls if parallel is None else parallel
    return {name: value for name, value in body.items() if name not in without}


def strict_tools(request: ModelRequest, *, official: bool) -> dict[str, ToolSchema]:
    """The tools that go out strict, by name."""
    return {
        tool.name: tool
        for tool in request.tools
        if official and tool.strict and to_strict(tool.parameters) is not None
    }


def _message(message: ChatMessage) -> dict[str, Any]:
    if message.role is Role.TOOL:
        return {"role": "tool", "tool_call_id": message.tool_call_id, "content": message.text}
    wire: dict[str, Any] = {"role": message.role.value, "content": message.text}
    if message.tool_calls:
        # Some servers take an empty text for an answer and stop looking at the calls.
        wire["content"] = message.text or None
        wire["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": legal_arguments(call.arguments)},
            }
            for call in message.tool_calls
        ]
    return wire


def _tool(tool: ToolSchema, official: bool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name, "description": tool.description}
    strict = to_strict(tool.parameters) if official and tool.strict else None
    function["parameters"] = strict or dict(tool.parameters)
    if strict:
        function["strict"] = True
    return {"type": "function", "function": function}


def _tool_choice(choice: ToolChoice) -> str | dict[str, Any]:
    if choice.mode is ToolChoiceMode.NAMED:
        return {"type": "function", "function": {"name": choice.name}}
    return choice.mode.value
