"""Chat models with OpenAI's chat completions API, at OpenAI or any compatible server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeGuard, cast
from urllib.parse import urlsplit

import httpx2
from openai import (
    APIStatusError,
    AsyncOpenAI,
    DefaultAsyncHttpxClient,
    NotFoundError,
    Omit,
    OpenAIError,
)

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
)
from strata.agent_loop.models.ids import new_call_id, usable_call_id
from strata.agent_loop.models.json_fields import (
    JsonFields,
    count_of,
    object_in,
    objects_in,
    text_of,
)
from strata.agent_loop.models.openai_api import chat_completions_wire as openai_wire
from strata.agent_loop.models.openai_api.errors import to_model_error
from strata.agent_loop.models.openai_api.json_events import JsonEvents, RepeatedRequest
from strata.agent_loop.models.refused_parameters import RefusalMemory, log_refusal
from strata.agent_loop.models.response_limits import bounded_client
from strata.agent_loop.models.streaming import (
    EventStream,
    ReplyBuilder,
    RetryPolicy,
    StreamedModel,
    StreamLimits,
)
from strata.agent_loop.models.strict_schema import drop_invented_nulls
from strata.agent_loop.models.tokens import estimate_usage
from strata.shared.redaction import key_redactor
from strata.shared.usage import Usage

OFFICIAL_BASE_URL = "https://api.openai.com/v1"
OWN_HEADERS = ("OpenAI-Organization", "OpenAI-Project")
# Local servers need no key, but the SDK requires one.
NO_KEY = "none"
# Tags of thoughts in Google's text; the closing tag begins the first piece of the answer.
_THOUGHT, _END_OF_THOUGHT = "<thought>", "</thought>"
# Beginnings of the finish reasons of a reply that a filter has stopped. Google names its filter, as
# in "content_filter: PROHIBITED_CONTENT" or "SAFETY"; Z.ai says "sensitive".
_FILTERED = (
    "content_filter",
    "safety",
    "recitation",
    "blocklist",
    "prohibited_content",
    "spii",
    "image_",
    "sensitive",
)


def open_client(base_url: str, api_key: str) -> AsyncOpenAI:
    """Opens a client with its connection pool. Retries of the SDK are off: `streaming` retries."""
    address = base_url or OFFICIAL_BASE_URL
    # The SDK reads them from OPENAI_ORG_ID and OPENAI_PROJECT_ID and would send them to any server.
    headers = {} if is_official(address) else dict.fromkeys(OWN_HEADERS, Omit())
    return AsyncOpenAI(
        api_key=api_key or NO_KEY,
        base_url=address,
        max_retries=0,
        http_client=bounded_client(DefaultAsyncHttpxClient),
        default_headers=cast("dict[str, str]", headers),
    )


def is_official(address: str) -> bool:
    """Returns whether an address is OpenAI's own."""
    return urlsplit(address).hostname == "api.openai.com"


async def list_models(client: AsyncOpenAI) -> list[tuple[str, int | None]]:
    """Returns the endpoint's models with their context window, None if it is not reported.

    Raises:
        ModelError: The endpoint did not answer.
    """
    try:
        page = await client.models.list()
    except (OpenAIError, httpx2.HTTPError) as error:
        raise to_model_error(error) from error
    return [(model.id, _window(model.model_extra or {})) for model in page.data]


async def has_model(client: AsyncOpenAI, name: str) -> bool:
    """Returns whether the endpoint answers for a model, which need not be in its list.

    Raises:
        ModelError: The endpoint did not answer.
    """
    try:
        await client.models.retrieve(name)
    except NotFoundError:
        return False
    except (OpenAIError, httpx2.HTTPError) as error:
        raise to_model_error(error) from error
    return True


class OpenAiConnection:
    """The connections to one server, and what its models refused. See `EndpointConnection`."""

    def __init__(self, base_url: str) -> None:
        self._client = self._open(base_url)
        self._adaptations: RefusalMemory[openai_wire.Adaptation] = RefusalMemory()

    def chat_model(self, settings: ModelSettings, retry: RetryPolicy) -> ChatModel:
        """See `EndpointConnection.chat_model`."""
        return OpenAiChatModel(self._with_key(settings.api_key), settings, retry, self._adaptations)

    async def list_models(self, api_key: str) -> list[tuple[str, int | None]]:
        """See `EndpointConnection.list_models`."""
        return await list_models(self._with_key(api_key))

    async def has_model(self, api_key: str, name: str) -> bool:
        """See `EndpointConnection.has_model`."""
        return await has_model(self._with_key(api_key), name)

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.close()

    def _open(self, base_url: str) -> AsyncOpenAI:
        """Opens the client; subclasses for variants of the API open another one."""
        return open_client(base_url, "")

    def _with_key(self, api_key: str) -> AsyncOpenAI:
        return self._client.with_options(api_key=api_key) if api_key else self._client


def connect(base_url: str) -> OpenAiConnection:
    """See `Adapter.connect`."""
    return OpenAiConnection(base_url)


class OpenAiModel(StreamedModel[JsonFields]):
    """One model of one endpoint; common part of OpenAI's two APIs.

    Args:
        client: Client of the endpoint.
        settings: The model and its settings.
        retry: When a failed request is repeated.
    """

    _path: ClassVar[str]

    def __init__(
        self, client: AsyncOpenAI, settings: ModelSettings, retry: RetryPolicy | None = None
    ) -> None:
        redactor = key_redactor(client.api_key or "", str(client.base_url))
        super().__init__(settings, retry or RetryPolicy(), redactor)
        self._client = client
        self._official = is_official(str(client.base_url))
        self._repeated: RepeatedRequest | None = None

    async def _send(self, body: dict[str, Any]) -> JsonEvents:
        if self._repeated is not None:
            return await self._repeated.send(body)
        timeouts = self._settings.timeouts
        # Not `chat.completions.create` or `responses.create`, which validate the request and each
        # chunk of the reply against their types: 0.3 ms of CPU each. Both are plain JSON here.
        events = await self._client.post(
            self._path,
            cast_to=object,
            body=body,
            options={"timeout": httpx2.Timeout(timeouts.total, connect=timeouts.connect)},
            stream=True,
            stream_cls=JsonEvents,
        )
        response = events.response
        first = response.history[0].request if response.history else response.request
        self._repeated = RepeatedRequest(self._client, first)
        return events

    async def _next(self, raw: EventStream, limits: StreamLimits) -> JsonFields | None:
        events = cast("JsonEvents", raw)
        try:
            # Events that have arrived together are read without a wait and its time limit.
            while not events.ready:
                await limits.wait(events.read())
            return object_in(events.pop())
        except StopAsyncIteration:
            return None
        except (OpenAIError, httpx2.HTTPError, ValueError, RecursionError) as error:
            raise to_model_error(error, streaming=True) from error

    def _has_arrived(self, raw: EventStream) -> bool:
        return cast("JsonEvents", raw).ready

    def _finish(self, reply: ReplyBuilder[JsonFields], request: ModelRequest) -> ModelReply:
        reason = reply.finish_reason()
        strict = openai_wire.strict_tools(request, official=self._official)
        calls = tuple(
            ToolCall(call.id, call.name, drop_invented_nulls(call.arguments, tool.parameters))
            if (tool := strict.get(call.name)) is not None
            else call
            for call in reply.tool_calls()
        )
        usage = reply.usage()
        if usage is None:
            usage = estimate_usage(request, reply.everything(), self._settings.endpoint_type)
        return ModelReply(
            reply.content(), calls, reason, usage, reply.model or self._settings.model
        )


class OpenAiChatModel(OpenAiModel):
    """A model with the chat completions API.

    Optional parameters that the model refuses (such as the temperature of a reasoning model) are
    left out for an hour, and the output limit is sent under the name that the model accepts.

    Args:
        client: Client of the endpoint.
        settings: The model and its settings.
        retry: When a failed request is repeated.
        adaptations: Adaptations learnt for the models at this address.
    """

    _path = "/chat/completions"

    def __init__(
        self,
        client: AsyncOpenAI,
        settings: ModelSettings,
        retry: RetryPolicy | None = None,
        adaptations: RefusalMemory[openai_wire.Adaptation] | None = None,
    ) -> None:
        super().__init__(client, settings, retry)
        self._adaptations = adaptations or RefusalMemory()

    def _new_reply(self) -> ReplyBuilder[JsonFields]:
        return _ReplyBuilder()

    async def _open(self, request: ModelRequest, limits: StreamLimits) -> JsonEvents:
        adaptation, renamed = self._adaptations.learnt(self._settings, self._assumed), None
        limited = bool(request.max_tokens or self._settings.max_tokens)
        while True:
            limit_name, reply = adaptation.limit_name, request.response_format
            body = openai_wire.build(
                request, self._settings, official=self._official, adaptation=adaptation
            )
            form = openai_wire.reply_form(
                request, self._settings.quirks, adaptation.reply_forms, official=self._official
            )
            try:
                return await limits.wait(self._send(body))
            except (OpenAIError, httpx2.HTTPError) as error:
                model_error = to_model_error(error)
                if refuses_parameter(error, model_error):
                    if name := adaptation.leave_out(
                        error.code, error.param or "", model_error.message, body
                    ):
                        refusal = model_error.redacted(self._redactor).message
                        log_refusal(self._settings, name, body.get(name), refusal)
                        continue
                    if reply is not None and adaptation.reply_forms.weaken(
                        reply, form, error.param or "", model_error.message
                    ):
                        continue
                    if renamed is not None:
                        # If both names are refused, the value is wrong.
                        adaptation.limit_name, model_error, error = renamed
                    elif limited and adaptation.rename_limit(
                        limit_name, error.param or "", model_error.message
                    ):
                        renamed = limit_name, model_error, error
                        continue
                raise model_error from error

    def _assumed(self) -> openai_wire.Adaptation:
        return openai_wire.Adaptation.first(
            self._settings.model, official=self._official, quirks=self._settings.quirks
        )


def refuses_parameter(error: Exception, model_error: ModelError) -> TypeGuard[APIStatusError]:
    """Returns whether an error may be about an optional parameter."""
    return (
        isinstance(error, APIStatusError)
        and error.status_code in (400, 422)
        and model_error.kind is ModelErrorKind.BAD_REQUEST
    )


@dataclass(slots=True)
class _Slot:
    """A tool call that is being received."""

    wire_index: float | str | None
    wire_id: str
    id: str
    index: int = 0
    name: str = ""
    pieces: list[str] = field(default_factory=list)
    signature: str = ""

    @property
    def arguments(self) -> str:
        """The arguments so far."""
        return "".join(self.pieces)


class _ReplyBuilder(ReplyBuilder[JsonFields]):
    """Assembles a reply from its chunks, and tolerates deviations of compatible servers."""

    def __init__(self) -> None:
        super().__init__()
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._refusal: list[str] = []
        self._slots: list[_Slot] = []
        # The latest call of each index, and the ids in use: a reply can hold thousands of calls.
        self._slot_by_wire_index: dict[float | str, _Slot] = {}
        self._call_ids: set[str] = set()
        self._finish: str | None = None
        self._thinking = False
        self._usage: JsonFields = {}

    def take(self, chunk: JsonFields) -> list[ModelEvent]:
        self.model = text_of(chunk, "model") or self.model
        self._usage = object_in(chunk.get("usage")) or self._usage
        choices = objects_in(chunk.get("choices"))
        if not choices:
            return []
        self._finish = text_of(choices[0], "finish_reason") or self._finish
        # A few servers end with a choice that has no delta at all.
        return self._take_delta(object_in(choices[0].get("delta")))

    def _take_delta(self, delta: JsonFields) -> list[ModelEvent]:
        if len(delta) == 1 and not self._thinking and type(delta.get("content")) is str:
            # Nearly every piece of a text.
            piece = self.size.take(delta["content"])
            if not piece:
                return []
            self._text.append(piece)
            return [TextDelta(piece)]
        if len(delta) == 1 and "tool_calls" in delta:
            # Nearly every piece of a call.
            return [self._take_call(call) for call in objects_in(delta["tool_calls"])]
        events: list[ModelEvent] = []
        thoughts, content = _thoughts_and_text(delta.get("content"))
        # The two fields in which most compatible servers show reasoning; OpenAI itself shows none.
        thoughts = text_of(delta, "reasoning_content") or text_of(delta, "reasoning") or thoughts
        if reasoning := self.size.take(thoughts):
            self._reasoning.append(reasoning)
            events.append(ReasoningDelta(reasoning))
        if _google(delta).get("thought") is True:
            self._thinking = True
            thoughts, content = content.removeprefix(_THOUGHT).removesuffix(_END_OF_THOUGHT), ""
            if thought := self.size.take(thoughts):
                self._reasoning.append(thought)
                events.append(ReasoningDelta(thought))
        elif self._thinking and content:
            self._thinking, content = False, content.removeprefix(_END_OF_THOUGHT)
        if text := self.size.take(content):
            self._text.append(text)
            events.append(TextDelta(text))
        if refusal := self.size.take(text_of(delta, "refusal")):
            self._refusal.append(refusal)
        events.extend(self._take_call(call) for call in objects_in(delta.get("tool_calls")))
        return events

    def _take_call(self, delta: JsonFields) -> ToolCallDelta:
        function = object_in(delta.get("function"))
        name = self.size.take(text_of(function, "name"))
        arguments = self.size.take(text_of(function, "arguments"))
        slot = self._slot(delta, name)
        # A few servers repeat the whole name in every piece.
        if name and name != slot.name:
            slot.name += name
        slot.pieces.append(arguments)
        # An incomplete signature would be refused.
        signature = ""
        if "extra_content" in delta:
            signature = self.size.take(text_of(_google(delta), "thought_signature"))
        slot.signature = "" if self.size.full else signature or slot.signature
        return ToolCallDelta(slot.index, slot.id, slot.name, arguments)

    def _slot(self, delta: JsonFields, name: str) -> _Slot:
        """Returns the call that a piece belongs to: by index, if the server sends one."""
        index = delta.get("index")
        # Some servers send other numbers or texts as index; any other value counts as none.
        wire_index = index if isinstance(index, int | float | str) else None
        wire_id = text_of(delta, "id")
        if wire_index is None and self._slots and not (wire_id or name):
            return self._slots[-1]
        slot = None if wire_index is None else self._slot_by_wire_index.get(wire_index)
        if slot is not None and not (wire_id and slot.wire_id and wire_id != slot.wire_id):
            return slot
        call_id = new_call_id() if wire_id in self._call_ids else usable_call_id(wire_id)
        self.size.take_call()
        slot = _Slot(wire_index, wire_id, call_id, len(self._slots))
        self._slots.append(slot)
        self._call_ids.add(call_id)
        if wire_index is not None:
            self._slot_by_wire_index[wire_index] = slot
        return slot

    def content(self) -> tuple[ReplyPart, ...]:
        parts: list[ReplyPart] = []
        if self._reasoning:
            parts.append(ReasoningPart("".join(self._reasoning)))
        parts.extend(
            openai_wire.call_signature(slot.index, slot.signature)
            for slot in self._slots
            if slot.signature
        )
        if self._text:
            parts.append(TextPart("".join(self._text)))
        return tuple(parts)

    def tool_calls(self) -> tuple[ToolCall, ...]:
        return tuple(ToolCall(s.id, s.name, s.arguments or "{}") for s in self._slots)

    def everything(self) -> str:
        return "".join(
            [*self._reasoning, *self._text, *(s.name + s.arguments for s in self._slots)]
        )

    def finish_reason(self) -> FinishReason:
        if self._refusal or _is_filtered(self._finish):
            message = "".join(self._refusal) or "The provider's content filter stopped the reply."
            raise ModelError(ModelErrorKind.REFUSED, message)
        if self.size.full:
            return FinishReason.LENGTH
        if self._finish is None:
            # The SDK does not distinguish a broken connection from the end of the reply.
            raise ModelError(ModelErrorKind.CUT_OFF, "The stream ended without a finish reason.")
        if self._finish == "length":
            return FinishReason.LENGTH
        return FinishReason.TOOL_CALLS if self._slots else FinishReason.STOP

    def usage(self) -> Usage | None:
        counts = [count_of(self._usage, name) for name in ("prompt_tokens", "completion_tokens")]
        if not any(counts):
            return None
        prompt = object_in(self._usage.get("prompt_tokens_details"))
        completion = object_in(self._usage.get("completion_tokens_details"))
        return Usage(
            prompt_tokens=counts[0],
            completion_tokens=counts[1],
            cached_input_tokens=count_of(prompt, "cached_tokens"),
            cache_write_tokens=count_of(prompt, "cache_write_tokens"),
            reasoning_tokens=count_of(completion, "reasoning_tokens"),
        )


def _is_filtered(finish_reason: str | None) -> bool:
    return finish_reason is not None and finish_reason.lower().startswith(_FILTERED)


def _thoughts_and_text(content: object) -> tuple[str, str]:
    """Returns reasoning and text of a content, which Mistral's reasoning models send in parts."""
    if isinstance(content, str):
        return "", content
    parts = objects_in(content)
    thoughts = [
        text_of(thought, "text")
        for part in parts
        if text_of(part, "type") == "thinking"
        for thought in objects_in(part.get("thinking"))
    ]
    texts = [text_of(part, "text") for part in parts if text_of(part, "type") == "text"]
    return "".join(thoughts), "".join(texts)


def _google(delta: JsonFields) -> JsonFields:
    """Returns Google's additions to a delta of a message or a call."""
    return object_in(object_in(delta.get("extra_content")).get("google"))


def _window(extra: dict[str, Any]) -> int | None:
    """Returns the context window from the fields of vLLM, LM Studio, Mistral, OpenRouter, etc."""
    meta = extra.get("meta")
    sources: list[dict[str, Any]] = [extra, meta if isinstance(meta, dict) else {}]
    for source in sources:
        for name in (
            *("max_model_len", "max_context_length", "context_length"),
            *("context_window", "n_ctx"),
        ):
            if isinstance(source.get(name), int):
                return cast("int", source[name])
    return None
