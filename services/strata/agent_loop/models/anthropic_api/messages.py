"""Chat models with Anthropic's messages API, at Anthropic or any compatible server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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
    DefaultAsyncHttpxClient,
    NotFoundError,
)
from anthropic.types import RawContentBlockDelta, RawMessageStreamEvent

from strata.agent_loop.domain.model.chat import (
    ChatModel,
    FinishReason,
    ModelEvent,
    ModelReply,
    ModelRequest,
    ModelSettings,
    ReasoningDelta,
    ReasoningPart,
    ReplyPart,
    TextDelta,
    TextPart,
    ToolCall,
    ToolCallDelta,
)
from strata.agent_loop.domain.model.errors import (
    ModelError,
    ModelErrorKind,
    classify,
    retry_after_seconds,
    too_deep_event,
)
from strata.agent_loop.models.anthropic_api import messages_wire as anthropic_wire
from strata.agent_loop.models.ids import usable_call_id
from strata.agent_loop.models.json_fields import count_in
from strata.agent_loop.models.refused_parameters import RefusalMemory, Refusals, log_refusal
from strata.agent_loop.models.reply_forms import ReplyForms
from strata.agent_loop.models.response_limits import bounded_client
from strata.agent_loop.models.streaming import (
    EventStream,
    ReplyBuilder,
    RetryPolicy,
    StreamedModel,
    StreamLimits,
)
from strata.agent_loop.models.tokens import estimate_usage
from strata.shared.redaction import Redactor, key_redactor
from strata.shared.usage import Usage

OFFICIAL_BASE_URL = "https://api.anthropic.com"
_NO_KEY = "none"
_LENGTH_REASONS = frozenset({"max_tokens", "model_context_window_exceeded"})


def open_client(base_url: str, api_key: str) -> AsyncAnthropic:
    """Opens a client with its connection pool. Retries of the SDK are off: `streaming` retries."""
    return AsyncAnthropic(
        api_key=api_key or _NO_KEY,
        base_url=base_url or OFFICIAL_BASE_URL,
        max_retries=0,
        http_client=bounded_client(DefaultAsyncHttpxClient),
    )


async def list_models(client: AsyncAnthropic) -> list[tuple[str, int | None]]:
    """Returns the endpoint's models with their context window, None if it is not reported.

    Raises:
        ModelError: The endpoint did not answer.
    """
    try:
        page = await client.models.list(limit=1000)
    except (AnthropicError, httpx2.HTTPError) as error:
        raise to_model_error(error) from error
    return [(model.id, model.max_input_tokens) for model in page.data]


async def has_model(client: AsyncAnthropic, name: str) -> bool:
    """Returns whether the endpoint answers for a model, which need not be in its list.

    Raises:
        ModelError: The endpoint did not answer.
    """
    try:
        await client.models.retrieve(name)
    except NotFoundError:
        return False
    except (AnthropicError, httpx2.HTTPError) as error:
        raise to_model_error(error) from error
    return True


def to_model_error(error: Exception, *, streaming: bool = False) -> ModelError:
    """Translates an exception of the SDK or its HTTP library. `streaming`: the reply had begun."""
    cause = error.__cause__ if isinstance(error, APIConnectionError) else error
    if isinstance(cause, (httpx2.ConnectTimeout, httpx2.PoolTimeout)):
        return ModelError(ModelErrorKind.UNAVAILABLE, "No connection within the time limit.")
    if isinstance(error, (APITimeoutError, httpx2.TimeoutException)):
        return ModelError(ModelErrorKind.TIMEOUT, "The model did not answer in time.")
    if isinstance(error, APIStatusError):
        return _from_status_error(error)
    if isinstance(error, RecursionError):
        return too_deep_event()
    if isinstance(error, ValueError):
        return ModelError(ModelErrorKind.CUT_OFF, "The stream broke off inside an event.")
    if streaming:
        # During a stream the SDK does not wrap exceptions of the HTTP library.
        return ModelError(ModelErrorKind.CUT_OFF, f"The stream broke off: {cause}")
    return ModelError(ModelErrorKind.UNAVAILABLE, f"The endpoint cannot be reached: {cause}")


class AnthropicConnection:
    """The connections to one server. See `EndpointConnection`."""

    def __init__(self, base_url: str) -> None:
        self._client = open_client(base_url, "")
        self._refusals: RefusalMemory[Refusals] = RefusalMemory()
        self._reply_forms: RefusalMemory[ReplyForms] = RefusalMemory()

    def chat_model(self, settings: ModelSettings, retry: RetryPolicy) -> ChatModel:
        """See `EndpointConnection.chat_model`."""
        return AnthropicChatModel(
            self._with_key(settings.api_key),
            settings,
            retry,
            refusals=self._refusals,
            reply_forms=self._reply_forms,
        )

    async def list_models(self, api_key: str) -> list[tuple[str, int | None]]:
        """See `EndpointConnection.list_models`."""
        return await list_models(self._with_key(api_key))

    async def has_model(self, api_key: str, name: str) -> bool:
        """See `EndpointConnection.has_model`."""
        return await has_model(self._with_key(api_key), name)

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.close()

    def _with_key(self, api_key: str) -> AsyncAnthropic:
        return self._client.with_options(api_key=api_key) if api_key else self._client


def connect(base_url: str) -> AnthropicConnection:
    """See `Adapter.connect`."""
    return AnthropicConnection(base_url)


def _older_key(client: AsyncAnthropic) -> dict[str, str]:
    """Returns the key in the older header, which compatible servers expect."""
    if urlsplit(str(client.base_url)).hostname == "api.anthropic.com":
        return {}
    return {"x-api-key": client.api_key or _NO_KEY}


class AnthropicChatModel(StreamedModel[RawMessageStreamEvent]):
    """One model of one endpoint.

    Args:
        client: Client of the endpoint.
        settings: The model and its settings.
        retry: When a failed request is repeated.
        headers: Additional headers; by default the key in the older header, for
            servers that know no other.
        redactor: Removes keys from errors; by default the client's key.
        refusals: Parameters that the models at this address refused.
        reply_forms: Forms of JSON requests that they refused.
    """

    def __init__(
        self,
        client: AsyncAnthropic,
        settings: ModelSettings,
        retry: RetryPolicy | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        redactor: Redactor | None = None,
        refusals: RefusalMemory[Refusals] | None = None,
        reply_forms: RefusalMemory[ReplyForms] | None = None,
    ) -> None:
        redactor = redactor or key_redactor(client.api_key or "", str(client.base_url))
        super().__init__(settings, retry or RetryPolicy(), redactor)
        self._client = client
        self._headers = _older_key(client) if headers is None else dict(headers)
        self._refusals = refusals or RefusalMemory()
        self._reply_forms = reply_forms or RefusalMemory()

    def _new_reply(self) -> ReplyBuilder[RawMessageStreamEvent]:
        return _ReplyBuilder()

    async def _next(self, raw: EventStream, limits: StreamLimits) -> RawMessageStreamEvent | None:
        try:
            event: RawMessageStreamEvent = await limits.wait(raw.__anext__())
        except StopAsyncIteration:
            return None
        except (AnthropicError, httpx2.HTTPError, ValueError, RecursionError) as error:
            raise to_model_error(error, streaming=True) from error
        return event

    async def _open(
        self, request: ModelRequest, limits: StreamLimits
    ) -> AsyncStream[RawMessageStreamEvent]:
        refusals = self._refusals.learnt(self._settings, Refusals)
        forms = self._reply_forms.learnt(self._settings, ReplyForms)
        reply = request.response_format
        while True:
            form = anthropic_wire.reply_form(request, self._settings, forms)
            body = anthropic_wire.build(request, self._settings, forms, refusals)
            try:
                return await limits.wait(self._send(body))
            except (AnthropicError, httpx2.HTTPError) as error:
                model_error = to_model_error(error)
                if self._leave_out(model_error, refusals, body):
                    continue
                if (
                    reply is not None
                    and model_error.kind is ModelErrorKind.BAD_REQUEST
                    and forms.weaken(reply, form, "", model_error.message)
                ):
                    continue
                raise model_error from error

    def _leave_out(self, error: ModelError, refusals: Refusals, body: dict[str, Any]) -> bool:
        """Leaves out a setting that the model refused; returns False if the error is about none."""
        if error.kind is not ModelErrorKind.BAD_REQUEST or error.status not in (400, 422):
            return False
        name = anthropic_wire.refused_setting(error.message, body)
        value = anthropic_wire.sent(body, name)
        # The error may be about the value only, so other values are tried. Forced calls are refused
        # regardless of their type.
        only_value = name != anthropic_wire.FORCED_CALL
        if not name or not refusals.add(name, value, only_value=only_value):
            return False
        log_refusal(self._settings, name, value, error.redacted(self._redactor).message)
        return True

    async def _send(self, body: dict[str, Any]) -> AsyncStream[RawMessageStreamEvent]:
        timeouts = self._settings.timeouts
        # As for OpenAI's models: the SDK sends an extra body without validating it.
        large = {name: body[name] for name in ("messages", "tools") if name in body}
        small = {name: value for name, value in body.items() if name not in large}
        response = await self._client.messages.create(
            messages=[],
            extra_body=large,
            **small,
            stream=True,
            timeout=httpx2.Timeout(timeouts.total, connect=timeouts.connect),
            extra_headers=self._headers,
        )
        return cast("AsyncStream[RawMessageStreamEvent]", response)

    def _finish(
        self, reply: ReplyBuilder[RawMessageStreamEvent], request: ModelRequest
    ) -> ModelReply:
        reason = reply.finish_reason()
        usage = reply.usage()
        if usage is None or reply.size.full:
            estimate = estimate_usage(request, reply.everything(), self._settings.endpoint_type)
            # For a reply that was not read to its end, only the prompt was counted.
            prompt = estimate.prompt_tokens if usage is None else usage.prompt_tokens
            usage = replace(estimate, prompt_tokens=prompt)
        return ModelReply(
            content=reply.content(),
            tool_calls=reply.tool_calls(),
            finish_reason=reason,
            usage=usage,
            model=reply.model or self._settings.model,
        )


@dataclass(slots=True)
class _Block:
    """A content block that is being received."""

    type: str
    pieces: list[str] = field(default_factory=list)
    proof: list[str] = field(default_factory=list)
    redacted: str = ""
    id: str = ""
    name: str = ""
    whole_input: str = ""
    call_index: int = 0

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self.pieces)

    @property
    def signature(self) -> str:
        """The provider's proof of origin."""
        return "".join(self.proof)

    @property
    def arguments(self) -> str:
        """The raw JSON arguments of a call: streamed, or complete in the first event."""
        return self.text or self.whole_input or "{}"


class _ReplyBuilder(ReplyBuilder[RawMessageStreamEvent]):
    """Assembles a reply from its events."""

    def __init__(self) -> None:
        super().__init__()
        self._blocks: dict[int, _Block] = {}
        self._call_count = 0
        self._counts: dict[str, int] = {}
        self._reasoning_tokens = 0
        self._stop_reason: str | None = None
        self._refusal = ""
        self._stopped = False

    def take(self, event: RawMessageStreamEvent) -> list[ModelEvent]:
        model_event = None
        if event.type == "message_start":
            self.model = event.message.model
            self._count(event.message.usage)
        elif event.type == "content_block_start":
            model_event = self._start(event.index, event.content_block)
        elif event.type == "content_block_delta":
            model_event = self._extend(event.index, event.delta)
        elif event.type == "message_delta":
            self._stop_reason = event.delta.stop_reason or self._stop_reason
            details = event.delta.stop_details
            self._refusal = (details.explanation if details else None) or ""
            self._count(event.usage)
        elif event.type == "message_stop":
            self._stopped = True
        return [] if model_event is None else [model_event]

    def _start(self, index: int, content: Any) -> ModelEvent | None:
        replaced = self._blocks.get(index)
        self._call_count += content.type == "tool_use"
        self._call_count -= replaced is not None and replaced.type == "tool_use"
        block = self._blocks[index] = _Block(content.type)
        if content.type == "text" and (text := self.size.take(content.text)):
            block.pieces.append(text)
            return TextDelta(text)
        if content.type == "thinking":
            self._sign(block, content.signature or "")
            if thinking := self.size.take(content.thinking or ""):
                block.pieces.append(thinking)
                return ReasoningDelta(thinking)
        if content.type == "redacted_thinking":
            # An incomplete one would be refused.
            data = self.size.take(content.data)
            block.redacted = "" if self.size.full else data
        if content.type == "tool_use":
            self.size.take_call()
            block.id, block.name = usable_call_id(content.id), self.size.take(content.name)
            block.call_index = self._call_count - 1
            written = _written(content.input) if content.input else ""
            block.whole_input = self.size.take(written)
            return ToolCallDelta(block.call_index, block.id, block.name, block.whole_input)
        return None

    def _extend(self, index: int, delta: RawContentBlockDelta) -> ModelEvent | None:
        block = self._blocks[index]
        if delta.type == "text_delta" and (text := self.size.take(delta.text)):
            block.pieces.append(text)
            return TextDelta(text)
        if delta.type == "thinking_delta" and (thinking := self.size.take(delta.thinking)):
            block.pieces.append(thinking)
            return ReasoningDelta(thinking)
        if delta.type == "signature_delta":
            self._sign(block, delta.signature)
        if delta.type == "input_json_delta" and (text := self.size.take(delta.partial_json)):
            block.pieces.append(text)
            return ToolCallDelta(block.call_index, block.id, block.name, text)
        return None

    def _sign(self, block: _Block, piece: str) -> None:
        block.proof.append(self.size.take(piece))
        if self.size.full:
            # The API refuses incomplete signatures.
            block.proof.clear()

    def _count(self, usage: Any) -> None:
        """Keeps the latest value of each count: counts are cumulative, and the last may be null."""
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
                self._counts[name] = count_in(value)
        details = getattr(usage, "output_tokens_details", None)
        if details is not None:
            self._reasoning_tokens = count_in(details.thinking_tokens)

    def _ordered(self) -> list[_Block]:
        return [self._blocks[index] for index in sorted(self._blocks)]

    def _calls(self) -> list[_Block]:
        return [block for block in self._ordered() if block.type == "tool_use"]

    def content(self) -> tuple[ReplyPart, ...]:
        parts: list[ReplyPart] = []
        for block in self._ordered():
            if block.type == "text" and block.text:
                parts.append(TextPart(block.text))
            elif block.type in ("thinking", "redacted_thinking"):
                parts.append(ReasoningPart(block.text, block.signature, block.redacted))
        return tuple(parts)

    def tool_calls(self) -> tuple[ToolCall, ...]:
        return tuple(ToolCall(b.id, b.name, b.arguments) for b in self._calls())

    def everything(self) -> str:
        return "".join(block.name + block.text for block in self._ordered())

    def finish_reason(self) -> FinishReason:
        if self.size.full:
            return FinishReason.LENGTH
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
        if not self._counts.get("input_tokens") and not self._counts.get("output_tokens"):
            return None
        cached = self._counts.get("cache_read_input_tokens", 0)
        written = self._counts.get("cache_creation_input_tokens", 0)
        return Usage(
            # The API reports cached tokens separately from the rest of the prompt.
            prompt_tokens=self._counts.get("input_tokens", 0) + cached + written,
            completion_tokens=self._counts.get("output_tokens", 0),
            cached_input_tokens=cached,
            cache_write_tokens=written,
            reasoning_tokens=self._reasoning_tokens,
        )


def _written(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        raise too_deep_event() from None


def _from_status_error(error: APIStatusError) -> ModelError:
    message = error.api_message or error.message
    # An `error` event within a stream has the status of the stream, which is 200.
    status = error.status_code if error.status_code >= 400 else None
    return ModelError(
        classify(status, (error.type,), message),
        message,
        status=status,
        code=error.type,
        retry_after=retry_after_seconds(error.response.headers),
    )
