"""Spans of model calls, by OpenTelemetry's semantic conventions for generative AI.

They hold names and numbers. Messages, instructions, schemas of tools and replies are left out.
"""

from __future__ import annotations

from strata.agent_loop.domain.model.chat import ModelReply, ModelRequest, ModelSettings
from strata.shared.tracing.spans import AttributeValue, Span, SpanKind

_OPERATION = "chat"


def begin_chat_span(
    parent: Span | None, settings: ModelSettings, request: ModelRequest
) -> Span | None:
    """Begins the span of a call; returns None if the call is not traced.

    Args:
        parent: The span of the work that calls the model.
        settings: Settings of the model.
        request: The request.
    """
    if parent is None:
        return None
    attributes: dict[str, AttributeValue] = {
        "gen_ai.operation.name": _OPERATION,
        "gen_ai.provider.name": settings.handle.partition("/")[0],
        "gen_ai.request.model": settings.model,
        "strata.model.messages": len(request.messages),
        "strata.model.tools": len(request.tools),
    }
    max_tokens = request.max_tokens or settings.max_tokens
    if max_tokens is not None:
        attributes["gen_ai.request.max_tokens"] = max_tokens
    if settings.temperature is not None:
        attributes["gen_ai.request.temperature"] = settings.temperature
    if request.response_format is not None:
        attributes["gen_ai.output.type"] = "json"
    return parent.child(f"{_OPERATION} {settings.model}", SpanKind.CLIENT, attributes)


def note_reply(span: Span | None, reply: ModelReply) -> None:
    """Adds the attributes of a reply."""
    if span is None:
        return
    usage = reply.usage
    span.attributes["gen_ai.response.finish_reasons"] = [reply.finish_reason.value]
    if reply.model:
        span.attributes["gen_ai.response.model"] = reply.model
    span.attributes["gen_ai.usage.input_tokens"] = usage.prompt_tokens
    span.attributes["gen_ai.usage.output_tokens"] = usage.completion_tokens
    span.attributes["gen_ai.usage.cache_read.input_tokens"] = usage.cached_input_tokens
    span.attributes["gen_ai.usage.cache_creation.input_tokens"] = usage.cache_write_tokens
    span.attributes["strata.model.tool_calls"] = len(reply.tool_calls)


def end_chat_span(span: Span | None, error_type: str) -> None:
    """Ends the span of a call.

    Args:
        span: The span; None if the call is not traced.
        error_type: The kind of the error that it ended with; empty for none.
    """
    if span is None:
        return
    if error_type:
        span.fail(error_type)
    span.end()
