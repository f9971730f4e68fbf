"""Models behind OpenAI's chat completions API, at OpenAI or at any compatible server."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

import httpx2
from openai import (
    APIConnectionError,
    APIError,
    APIStatusError,
    APITimeoutError,
    AsyncOpenAI,
    AsyncStream,
    OpenAIError,
)

from strata.agent_loop.models import openai_wire
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
from strata.agent_loop.models.ids import new_call_id
from strata.agent_loop.models.schema import drop_invented_nulls
from strata.agent_loop.models.streaming import RetryPolicy, StreamLimits, retrying
from strata.agent_loop.models.tokens import estimate_usage

OFFICIAL_BASE_URL = "https://api.openai.com/v1"
_PATH = "/chat/completions"
# Servers on one's own machine ask for no key, the SDK insists on one.
_NO_KEY = "none"


# A chunk as it came; what is in it is the server's business, so nothing is taken for granted.
_Json = Mapping[str, Any]


def open_client(base_url: str, api_key: str) -> AsyncOpenAI:
    """Opens a client with its connection pool. Repetition is ours, so the SDK's is off."""
    return AsyncOpenAI(
        api_key=api_key or _NO_KEY, base_url=base_url or OFFICIAL_BASE_URL, max_retries=0
    )


async def list_models(client: AsyncOpenAI) -> list[tuple[str, int | None]]:
    """Names of the endpoint's models with their context window, where the server tells it.

    Raises:
        ModelError: The endpoint did not answer.
    """
    try:
        page = await client.models.list()
    except (OpenAIError, httpx2.HTTPError) as error:
        raise to_model_error(error) from error
    return [(model.id, _window(model.model_extra or {})) for model in page.data]


def to_model_error(error: Exception, *, streaming: bool = False) -> ModelError:
    """Translates what the SDK raises. `streaming` says that the reply had begun."""
    if isinstance(error, APITimeoutError):
        if isinstance(error.__cause__, (httpx2.ConnectTimeout, httpx2.PoolTimeout)):
            return ModelError(ModelErrorKind.UNAVAILABLE, "No connection within the time limit.")
        return ModelError(ModelErrorKind.TIMEOUT, "The model did not answer in time.")
    if isinstance(error, APIConnectionError):
        cause = str(error.__cause__ or error)
        if streaming:
            return ModelError(ModelErrorKind.CUT_OFF, f"The stream broke off: {cause}")
        return ModelError(ModelErrorKind.UNAVAILABLE, f"The endpoint cannot be reached: {cause}")
    if isinstance(error, APIError):
        return _from_api_error(error)
    if isinstance(error, ValueError):
        return ModelError(ModelErrorKind.CUT_OFF, "The stream broke off inside an event.")
    return ModelError(ModelErrorKind.UNAVAILABLE, str(error) or type(error).__name__)


class OpenAiChatModel:
    """One model of one endpoint.

    Parameters that the model refuses though it could do without (a reasoning model's
    temperature, say) are left out from then on.
    """

    def __init__(
        self, client: AsyncOpenAI, settings: ModelSettings, retry: RetryPolicy | None = None
    ) -> None:
        self._client = client
        self._settings = settings
        self._retry = retry or RetryPolicy()
        self._official = urlsplit(str(client.base_url)).hostname == "api.openai.com"
        self._refused: set[str] = set()

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """See `ChatModel.stream`."""
        return retrying(lambda: self._attempt(request), self._retry)

    async def _attempt(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        limits = StreamLimits(self._settings.timeouts)
        raw = await self._open(request, limits)
        reply = _ReplyBuilder()
        try:
            while (chunk := await _next(raw, limits)) is not None:
                limits.mark_started()
                for event in reply.take(chunk):
                    yield event
        finally:
            await raw.close()
        final = self._finish(reply, request)
        yield UsageEvent(final.usage)
        yield final

    async def _open(self, request: ModelRequest, limits: StreamLimits) -> AsyncStream[object]:
        while True:
            try:
                return await limits.wait(self._send(request))
            except (OpenAIError, httpx2.HTTPError) as error:
                if not self._learn(error):
                    raise to_model_error(error) from error

    async def _send(self, request: ModelRequest) -> AsyncStream[object]:
        body = openai_wire.build(
            request, self._settings, official=self._official, without=self._refused
        )
        timeouts = self._settings.timeouts
        # Not `chat.completions.create`: it walks every value of the request, and every chunk of
        # the reply, through its types, which takes 0.3 ms of CPU for each. Both are JSON already.
        return await self._client.post(
            _PATH,
            cast_to=object,
            body=body,
            options={"timeout": httpx2.Timeout(timeouts.total, connect=timeouts.connect)},
            stream=True,
            stream_cls=AsyncStream[object],
        )

    def _learn(self, error: Exception) -> bool:
        """Notes a refused optional parameter; false if that is not what happened."""
        if not isinstance(error, APIStatusError) or error.status_code != 400:
            return False
        if error.code not in ("unsupported_parameter", "unsupported_value"):
            return False
        parameter = (error.param or "").split(".")[0]
        if parameter not in openai_wire.OPTIONAL_PARAMETERS or parameter in self._refused:
            return False
        self._refused.add(parameter)
        return True

    def _finish(self, reply: _ReplyBuilder, request: ModelRequest) -> ModelReply:
        strict = openai_wire.strict_tools(request, official=self._official)
        calls = tuple(
            ToolCall(call.id, call.name, drop_invented_nulls(call.arguments, tool.parameters))
            if (tool := strict.get(call.name)) is not None
            else call
            for call in reply.tool_calls()
        )
        return ModelReply(
            content=reply.content(),
            tool_calls=calls,
            finish_reason=reply.finish_reason(),
            usage=reply.usage() or estimate_usage(request, reply.everything(), EndpointType.OPENAI),
            model=reply.model or self._settings.model,
        )


async def _next(raw: AsyncStream[object], limits: StreamLimits) -> _Json | None:
    try:
        return _object(await limits.wait(raw.__anext__()))
    except StopAsyncIteration:
        return None
    except (OpenAIError, httpx2.HTTPError, ValueError) as error:
        raise to_model_error(error, streaming=True) from error


@dataclass(slots=True)
class _Slot:
    """A tool call in the making."""

    wire_index: int | None
    wire_id: str
    id: str
    name: str = ""
    arguments: str = ""


class _ReplyBuilder:
    """Puts the chunks of a reply together, tolerant of what compatible servers get wrong."""

    def __init__(self) -> None:
        self.model = ""
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._refusal: list[str] = []
        self._slots: list[_Slot] = []
        self._finish: str | None = None
        self._usage: _Json = {}

    def take(self, chunk: _Json) -> list[ModelEvent]:
        """Adds a chunk and returns what it means to the caller."""
        self.model = _text(chunk, "model") or self.model
        self._usage = _object(chunk.get("usage")) or self._usage
        choices = _objects(chunk.get("choices"))
        if not choices:
            return []
        self._finish = _text(choices[0], "finish_reason") or self._finish
        # A few servers end with a choice that has no delta at all.
        return self._take_delta(_object(choices[0].get("delta")))

    def _take_delta(self, delta: _Json) -> list[ModelEvent]:
        events: list[ModelEvent] = []
        # The two fields in which compatible servers show reasoning; OpenAI itself shows none.
        if reasoning := _text(delta, "reasoning_content") or _text(delta, "reasoning"):
            self._reasoning.append(reasoning)
            events.append(ReasoningDelta(reasoning))
        if text := _text(delta, "content"):
            self._text.append(text)
            events.append(TextDelta(text))
        if refusal := _text(delta, "refusal"):
            self._refusal.append(refusal)
        events.extend(self._take_call(call) for call in _objects(delta.get("tool_calls")))
        return events

    def _take_call(self, delta: _Json) -> ToolCallDelta:
        function = _object(delta.get("function"))
        name, arguments = _text(function, "name"), _text(function, "arguments")
        slot = self._slot(delta, name)
        # A few servers repeat the whole name in every piece.
        if name and name != slot.name:
            slot.name += name
        slot.arguments += arguments
        return ToolCallDelta(self._slots.index(slot), slot.id, slot.name, arguments)

    def _slot(self, delta: _Json, name: str) -> _Slot:
        """The call that a piece belongs to: by index, unless the server does not count."""
        index = cast("int | None", delta.get("index"))
        wire_id = _text(delta, "id")
        for slot in reversed(self._slots):
            if index is None and not (wire_id or name):
                return slot
            if slot.wire_index == index and index is not None:
                if wire_id and slot.wire_id and wire_id != slot.wire_id:
                    break
                return slot
        taken = {slot.id for slot in self._slots}
        call_id = wire_id if wire_id and wire_id not in taken else new_call_id()
        # By identity: two slots may look the same.
        self._slots.append(_Slot(index, wire_id, call_id))
        return self._slots[-1]

    def content(self) -> tuple[Part, ...]:
        """Reasoning, then text."""
        parts: list[Part] = []
        if self._reasoning:
            parts.append(ReasoningPart("".join(self._reasoning)))
        if self._text:
            parts.append(TextPart("".join(self._text)))
        return tuple(parts)

    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls, in order of appearance."""
        return tuple(ToolCall(s.id, s.name, s.arguments or "{}") for s in self._slots)

    def everything(self) -> str:
        """All that the model wrote, for an estimate of its size."""
        return "".join(
            [*self._reasoning, *self._text, *(s.name + s.arguments for s in self._slots)]
        )

    def finish_reason(self) -> FinishReason:
        """Why the model stopped.

        Raises:
            ModelError: CUT_OFF without a reason, REFUSED for a refusal.
        """
        if self._refusal or self._finish == "content_filter":
            message = "".join(self._refusal) or "The provider's content filter stopped the reply."
            raise ModelError(ModelErrorKind.REFUSED, message)
        if self._finish is None:
            # The SDK takes the end of the connection for the end of the reply.
            raise ModelError(ModelErrorKind.CUT_OFF, "The stream ended without a finish reason.")
        if self._finish == "length":
            return FinishReason.LENGTH
        return FinishReason.TOOL_CALLS if self._slots else FinishReason.STOP

    def usage(self) -> Usage | None:
        """What the server reported; None if nothing."""
        if not self._usage:
            return None
        prompt = _object(self._usage.get("prompt_tokens_details"))
        completion = _object(self._usage.get("completion_tokens_details"))
        return Usage(
            prompt_tokens=_count(self._usage, "prompt_tokens"),
            completion_tokens=_count(self._usage, "completion_tokens"),
            cached_input_tokens=_count(prompt, "cached_tokens"),
            cache_write_tokens=_count(prompt, "cache_write_tokens"),
            reasoning_tokens=_count(completion, "reasoning_tokens"),
        )


def _object(value: object) -> _Json:
    return value if isinstance(value, Mapping) else {}


def _objects(value: object) -> list[_Json]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


def _text(holder: _Json, name: str) -> str:
    value = holder.get(name)
    return value if isinstance(value, str) else ""


def _count(holder: _Json, name: str) -> int:
    value = holder.get(name)
    return value if isinstance(value, int) else 0


def _from_api_error(error: APIError) -> ModelError:
    status = error.status_code if isinstance(error, APIStatusError) else None
    # Routers report the status of the provider behind them as the code of an event.
    if status is None and error.code is not None and error.code.isdecimal():
        status = int(error.code)
    message = _message(error)
    headers = error.response.headers if isinstance(error, APIStatusError) else {}
    return ModelError(
        classify(status, (error.code, error.type), message),
        message,
        status=status,
        code=error.code or error.type,
        retry_after=retry_after_seconds(headers),
    )


def _message(error: APIError) -> str:
    body = error.body
    if isinstance(body, dict) and isinstance(body.get("message"), str):
        return cast("str", body["message"])
    return error.message


def _window(extra: dict[str, Any]) -> int | None:
    """Context window in the words of vLLM, LM Studio, OpenRouter and llama.cpp."""
    meta = extra.get("meta")
    sources: list[dict[str, Any]] = [extra, meta if isinstance(meta, dict) else {}]
    for source in sources:
        for name in ("max_model_len", "max_context_length", "context_length", "n_ctx"):
            if isinstance(source.get(name), int):
                return cast("int", source[name])
    return None
