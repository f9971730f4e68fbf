"""Models behind Anthropic's messages API, at Anthropic or at any compatible server."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

import httpx2
from anthropic import (
    AnthropicError,
    APIConnectionError,
    APIStatusError,
    APITimeoutError,
    AsyncAnthropic,
    AsyncStream,
)
from anthropic.types import RawContentBlockDelta, RawMessageStreamEvent

from strata.agent_loop.models import anthropic_wire
from strata.agent_loop.models.domain import (
    EndpointType,
    FinishReason,
    ModelEvent,
    ModelReply,
    ModelRequest,
    ModelSettings,
    Part,
    ReasoningDelta,
    ReasoningPart,
    TextDelta,
    TextPart,
    ToolCall,
    ToolCallDelta,
    Usage,
    UsageEvent,
)
from strata.agent_loop.models.errors import (
    ModelError,
    ModelErrorKind,
    classify,
    retry_after_seconds,
)
from strata.agent_loop.models.streaming import RetryPolicy, StreamLimits, retrying
from strata.agent_loop.models.tokens import estimate_usage

OFFICIAL_BASE_URL = "https://api.anthropic.com"
_NO_KEY = "none"
_LENGTH_REASONS = frozenset({"max_tokens", "model_context_window_exceeded"})


def open_client(base_url: str, api_key: str) -> AsyncAnthropic:
    """Opens a client with its connection pool. Repetition is ours, so the SDK's is off."""
    return AsyncAnthropic(
        api_key=api_key or _NO_KEY, base_url=base_url or OFFICIAL_BASE_URL, max_retries=0
    )


async def list_models(client: AsyncAnthropic) -> list[tuple[str, int | None]]:
    """Names of the endpoint's models with their context window, where the server tells it.

    Raises:
        ModelError: The endpoint did not answer.
    """
    try:
        page = await client.models.list(limit=1000)
    except (AnthropicError, httpx2.HTTPError) as error:
        raise to_model_error(error) from error
    return [(model.id, model.max_input_tokens) for model in page.data]


def to_model_error(error: Exception, *, streaming: bool = False) -> ModelError:
    """Translates what the SDK and its HTTP library raise. `streaming`: the reply had begun."""
    cause = error.__cause__ if isinstance(error, APIConnectionError) else error
    if isinstance(cause, (httpx2.ConnectTimeout, httpx2.PoolTimeout)):
        return ModelError(ModelErrorKind.UNAVAILABLE, "No connection within the time limit.")
    if isinstance(error, (APITimeoutError, httpx2.TimeoutException)):
        return ModelError(ModelErrorKind.TIMEOUT, "The model did not answer in time.")
    if isinstance(error, APIStatusError):
        return _from_status_error(error)
    if isinstance(error, ValueError):
        return ModelError(ModelErrorKind.CUT_OFF, "The stream broke off inside an event.")
    if streaming:
        # The SDK lets the HTTP library's errors through once the stream has begun.
        return ModelError(ModelErrorKind.CUT_OFF, f"The stream broke off: {cause}")
    return ModelError(ModelErrorKind.UNAVAILABLE, f"The endpoint cannot be reached: {cause}")


class AnthropicChatModel:
    """One model of one endpoint."""

    def __init__(
        self, client: AsyncAnthropic, settings: ModelSettings, retry: RetryPolicy | None = None
    ) -> None:
        self._client = client
        self._settings = settings
        self._retry = retry or RetryPolicy()
        official = urlsplit(str(client.base_url)).hostname == "api.anthropic.com"
        # Compatible servers know the older header; the SDK sends the newer one.
        self._headers = {} if official else {"x-api-key": client.api_key or _NO_KEY}

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """See `ChatModel.stream`."""
        return retrying(lambda: self._attempt(request), self._retry)

    async def _attempt(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        limits = StreamLimits(self._settings.timeouts)
        try:
            raw = await limits.wait(self._send(request))
        except (AnthropicError, httpx2.HTTPError) as error:
            raise to_model_error(error) from error
        reply = _ReplyBuilder()
        try:
            while (event := await _next(raw, limits)) is not None:
                limits.mark_started()
                if (seen := reply.take(event)) is not None:
                    yield seen
        finally:
            await raw.close()
        final = self._finish(reply, request)
        yield UsageEvent(final.usage)
        yield final

    async def _send(self, request: ModelRequest) -> AsyncStream[RawMessageStreamEvent]:
        body = anthropic_wire.build(request, self._settings)
        timeouts = self._settings.timeouts
        # See the OpenAI model: the SDK sends extra body as it is, without walking through it.
        large = {name: body.pop(name) for name in ("messages", "tools") if name in body}
        response = await self._client.messages.create(
            messages=[],
            extra_body=large,
            **body,
            stream=True,
            timeout=httpx2.Timeout(timeouts.total, connect=timeouts.connect),
            extra_headers=self._headers,
        )
        return cast("AsyncStream[RawMessageStreamEvent]", response)

    def _finish(self, reply: _ReplyBuilder, request: ModelRequest) -> ModelReply:
        reason = reply.finish_reason()
        usage = reply.usage()
        return ModelReply(
            content=reply.content(),
            tool_calls=reply.tool_calls(),
            finish_reason=reason,
            usage=usage or estimate_usage(request, reply.everything(), EndpointType.ANTHROPIC),
            model=reply.model or self._settings.model,
        )


async def _next(
    raw: AsyncStream[RawMessageStreamEvent], limits: StreamLimits
) -> RawMessageStreamEvent | None:
    try:
        return await limits.wait(raw.__anext__())
    except StopAsyncIteration:
        return None
    except (AnthropicError, httpx2.HTTPError, ValueError) as error:
        raise to_model_error(error, streaming=True) from error


@dataclass(slots=True)
class _Block:
    """A content block in the making."""

    type: str
    text: str = ""
    signature: str = ""
    redacted: str = ""
    id: str = ""
    name: str = ""
    whole_input: str = ""
    call_index: int = 0

    @property
    def arguments(self) -> str:
        """The raw JSON of a call: streamed, or given whole at the start."""
        return self.text or self.whole_input or "{}"


class _ReplyBuilder:
    """Puts the events of a reply together."""

    def __init__(self) -> None:
        self.model = ""
        self._blocks: dict[int, _Block] = {}
        self._counts: dict[str, int] = {}
        self._reasoning_tokens = 0
        self._stop_reason: str | None = None
        self._refusal = ""
        self._stopped = False

    def take(self, event: RawMessageStreamEvent) -> ModelEvent | None:
        """Adds an event and returns what it means to the caller."""
        if event.type == "message_start":
            self.model = event.message.model
            self._count(event.message.usage)
        elif event.type == "content_block_start":
            return self._start(event.index, event.content_block)
        elif event.type == "content_block_delta":
            return self._extend(event.index, event.delta)
        elif event.type == "message_delta":
            self._stop_reason = event.delta.stop_reason or self._stop_reason
            details = event.delta.stop_details
            self._refusal = (details.explanation if details else None) or ""
            self._count(event.usage)
        elif event.type == "message_stop":
            self._stopped = True
        return None

    def _start(self, index: int, content: Any) -> ModelEvent | None:
        block = self._blocks[index] = _Block(content.type)
        if content.type == "text" and content.text:
            block.text = content.text
            return TextDelta(content.text)
        if content.type == "thinking":
            block.text, block.signature = content.thinking or "", content.signature or ""
            return ReasoningDelta(block.text) if block.text else None
        if content.type == "redacted_thinking":
            block.redacted = content.data
        if content.type == "tool_use":
            block.id, block.name = content.id, content.name
            block.call_index = len(self._calls()) - 1
            block.whole_input = (
                json.dumps(content.input, ensure_ascii=False) if content.input else ""
            )
            return ToolCallDelta(block.call_index, block.id, block.name, block.whole_input)
        return None

    def _extend(self, index: int, delta: RawContentBlockDelta) -> ModelEvent | None:
        block = self._blocks[index]
        if delta.type == "text_delta":
            block.text += delta.text
            return TextDelta(delta.text) if delta.text else None
        if delta.type == "thinking_delta":
            block.text += delta.thinking
            return ReasoningDelta(delta.thinking) if delta.thinking else None
        if delta.type == "signature_delta":
            block.signature += delta.signature
        if delta.type == "input_json_delta" and delta.partial_json:
            block.text += delta.partial_json
            return ToolCallDelta(block.call_index, block.id, block.name, delta.partial_json)
        return None

    def _count(self, usage: Any) -> None:
        """Takes the latest figure of each count: they are cumulative, and the last may be null."""
        if usage is None:
            return
        for name in (
            "input_tokens",
            "output_tokens",
            "cache_read_input_tokens",
            "cache_creation_input_tokens",
        ):
            value = getattr(usage, name, None)
            if value is not None:
                self._counts[name] = value
        details = getattr(usage, "output_tokens_details", None)
        if details is not None:
            self._reasoning_tokens = details.thinking_tokens or 0

    def _ordered(self) -> list[_Block]:
        return [self._blocks[index] for index in sorted(self._blocks)]

    def _calls(self) -> list[_Block]:
        return [block for block in self._ordered() if block.type == "tool_use"]

    def content(self) -> tuple[Part, ...]:
        """Reasoning and text, in order."""
        parts: list[Part] = []
        for block in self._ordered():
            if block.type == "text" and block.text:
                parts.append(TextPart(block.text))
            elif block.type in ("thinking", "redacted_thinking"):
                parts.append(ReasoningPart(block.text, block.signature, block.redacted))
        return tuple(parts)

    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls, in order."""
        return tuple(ToolCall(b.id, b.name, b.arguments) for b in self._calls())

    def everything(self) -> str:
        """All that the model wrote, for an estimate of its size."""
        return "".join(block.name + block.text for block in self._ordered())

    def finish_reason(self) -> FinishReason:
        """Why the model stopped.

        Raises:
            ModelError: CUT_OFF if the stream has no proper end, REFUSED for a refusal.
        """
        if not self._stopped or self._stop_reason is None:
            raise ModelError(ModelErrorKind.CUT_OFF, "The stream ended without a stop reason.")
        if self._stop_reason == "refusal":
            raise ModelError(
                ModelErrorKind.REFUSED, self._refusal or "The model declined to answer."
            )
        if self._stop_reason in _LENGTH_REASONS:
            return FinishReason.LENGTH
        return FinishReason.TOOL_CALLS if self._calls() else FinishReason.STOP

    def usage(self) -> Usage | None:
        """What the server reported; None if nothing."""
        if not self._counts.get("input_tokens") and not self._counts.get("output_tokens"):
            return None
        cached = self._counts.get("cache_read_input_tokens", 0)
        written = self._counts.get("cache_creation_input_tokens", 0)
        return Usage(
            # The API counts cached tokens apart from the rest of the prompt.
            prompt_tokens=self._counts.get("input_tokens", 0) + cached + written,
            completion_tokens=self._counts.get("output_tokens", 0),
            cached_input_tokens=cached,
            cache_write_tokens=written,
            reasoning_tokens=self._reasoning_tokens,
        )


def _from_status_error(error: APIStatusError) -> ModelError:
    message = error.api_message or error.message
    # An `error` event in mid-stream comes with the status of the stream, which is 200.
    status = error.status_code if error.status_code >= 400 else None
    return ModelError(
        classify(status, (error.type,), message),
        message,
        status=status,
        code=error.type,
        retry_after=retry_after_seconds(error.response.headers),
    )
