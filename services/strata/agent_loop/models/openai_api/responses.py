"""Chat models with OpenAI's Responses API, at OpenAI or any compatible server."""

from __future__ import annotations

from dataclasses import dataclass, field

import httpx2
from openai import AsyncOpenAI, OpenAIError

from strata.agent_loop.domain.model.chat import (
    ChatModel,
    FinishReason,
    ModelEvent,
    ModelRequest,
    ModelSettings,
    ReasoningDelta,
    ReplyPart,
    TextDelta,
    TextPart,
    ToolCall,
    ToolCallDelta,
)
from strata.agent_loop.domain.model.errors import ModelError, ModelErrorKind, classify
from strata.agent_loop.models.ids import usable_call_id
from strata.agent_loop.models.json_fields import (
    JsonFields,
    count_of,
    object_in,
    objects_in,
    text_of,
)
from strata.agent_loop.models.openai_api import chat_completions_wire as openai_wire
from strata.agent_loop.models.openai_api import responses_wire
from strata.agent_loop.models.openai_api.chat_completions import (
    OpenAiConnection,
    OpenAiModel,
    refuses_parameter,
)
from strata.agent_loop.models.openai_api.errors import to_model_error
from strata.agent_loop.models.openai_api.json_events import JsonEvents
from strata.agent_loop.models.refused_parameters import RefusalMemory, log_refusal
from strata.agent_loop.models.streaming import ReplyBuilder, RetryPolicy, StreamLimits
from strata.shared.usage import Usage

_BETWEEN_SUMMARIES = "\n\n"


class ResponsesConnection(OpenAiConnection):
    """The connections to one server, and what its models refused. See `EndpointConnection`."""

    def __init__(self, base_url: str) -> None:
        super().__init__(base_url)
        self._learnt: RefusalMemory[responses_wire.Learnt] = RefusalMemory()

    def chat_model(self, settings: ModelSettings, retry: RetryPolicy) -> ChatModel:
        """See `EndpointConnection.chat_model`."""
        return ResponsesModel(self._with_key(settings.api_key), settings, retry, self._learnt)


def connect(base_url: str) -> ResponsesConnection:
    """See `Adapter.connect`."""
    return ResponsesConnection(base_url)


class ResponsesModel(OpenAiModel):
    """A model with the Responses API.

    Optional parameters that the model refuses are left out for an hour, and so
    is encrypted reasoning that the provider cannot read.

    Args:
        client: Client of the endpoint.
        settings: The model and its settings.
        retry: When a failed request is repeated.
        learnt: Properties detected of the models at this address.
    """

    _path = "/responses"

    def __init__(
        self,
        client: AsyncOpenAI,
        settings: ModelSettings,
        retry: RetryPolicy,
        learnt: RefusalMemory[responses_wire.Learnt],
    ) -> None:
        super().__init__(client, settings, retry)
        self._learnt = learnt

    def _new_reply(self) -> ReplyBuilder[JsonFields]:
        return _ReplyBuilder()

    async def _open(self, request: ModelRequest, limits: StreamLimits) -> JsonEvents:
        learnt = self._learnt.learnt(self._settings, responses_wire.Learnt)
        while True:
            body = responses_wire.build(request, self._settings, learnt, official=self._official)
            try:
                return await limits.wait(self._send(body))
            except (OpenAIError, httpx2.HTTPError) as error:
                model_error = to_model_error(error)
                reply = request.response_format
                form = openai_wire.reply_form(
                    request,
                    self._settings.quirks,
                    learnt.reply_forms,
                    official=self._official,
                )
                if refuses_parameter(error, model_error):
                    if reply is not None and learnt.reply_forms.weaken(
                        reply, form, error.param or "", model_error.message
                    ):
                        continue
                    if name := learnt.leave_out(
                        error.code, error.param or "", model_error.message, body
                    ):
                        refusal = model_error.redacted(self._redactor).message
                        log_refusal(self._settings, name, responses_wire.sent(body, name), refusal)
                        continue
                    if learnt.forget_reasoning(error.code, model_error.message, body):
                        continue
                raise model_error from error


@dataclass(slots=True)
class _Item:
    """An item of the reply that is being received.

    Attributes:
        type: `reasoning`, `message` or `function_call`.
        pieces: Its text, summary or arguments so far.
        encrypted: The encrypted reasoning, once the item is complete.
        call_index: Position of a call in the reply.
        call_id: Id of a call.
        name: Name of the tool of a call.
        calls_before: How many calls came before it.
    """

    type: str
    pieces: list[str] = field(default_factory=list)
    encrypted: str = ""
    call_index: int = -1
    call_id: str = ""
    name: str = ""
    calls_before: int = 0

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self.pieces)


class _ReplyBuilder(ReplyBuilder[JsonFields]):
    """Assembles a reply from its events."""

    def __init__(self) -> None:
        super().__init__()
        self._items: dict[int, _Item] = {}
        self._calls = 0
        self._refusal: list[str] = []
        self._status = ""
        self._reason = ""
        self._usage: JsonFields = {}

    def take(self, event: JsonFields) -> list[ModelEvent]:
        kind = text_of(event, "type")
        if kind == "error":
            raise _error_of(event)
        if response := object_in(event.get("response")):
            self._take_response(response)
            return []
        index = count_of(event, "output_index")
        if kind == "response.output_item.added":
            return self._add(index, object_in(event.get("item")))
        if kind == "response.output_item.done":
            return self._complete(index, object_in(event.get("item")))
        if kind == "response.refusal.delta":
            self._refusal.append(self.size.take(text_of(event, "delta")))
        return self._take_delta(kind, index, event)

    def _take_response(self, response: JsonFields) -> None:
        self.model = text_of(response, "model") or self.model
        self._status = text_of(response, "status")
        self._reason = text_of(object_in(response.get("incomplete_details")), "reason")
        self._usage = object_in(response.get("usage")) or self._usage
        if self._status == "failed":
            raise _error_of(object_in(response.get("error")))
        self.ended = self._status in ("completed", "incomplete", "cancelled")

    def _take_delta(self, kind: str, index: int, event: JsonFields) -> list[ModelEvent]:
        if kind == "response.output_text.delta":
            return self._write(self._item(index, "message"), text_of(event, "delta"))
        if kind == "response.function_call_arguments.delta":
            return self._write(self._item(index, "function_call"), text_of(event, "delta"))
        if kind in ("response.reasoning_summary_text.delta", "response.reasoning_text.delta"):
            return self._write(self._item(index, "reasoning"), text_of(event, "delta"))
        if kind == "response.reasoning_summary_part.added" and event.get("summary_index"):
            return self._write(self._item(index, "reasoning"), _BETWEEN_SUMMARIES)
        return []

    def _item(self, index: int, kind: str) -> _Item:
        if index not in self._items:
            self._items[index] = _Item(kind, calls_before=self._calls)
        return self._items[index]

    def _add(self, index: int, fields: JsonFields) -> list[ModelEvent]:
        if index in self._items:
            return []
        item = self._item(index, text_of(fields, "type"))
        if item.type != "function_call":
            return []
        self.size.take_call()
        item.call_index, self._calls = self._calls, self._calls + 1
        item.call_id = usable_call_id(text_of(fields, "call_id"))
        item.name = self.size.take(text_of(fields, "name"))
        return [ToolCallDelta(item.call_index, item.call_id, item.name, "")]

    def _complete(self, index: int, fields: JsonFields) -> list[ModelEvent]:
        """Takes over a complete item; a server may send it without any piece before."""
        events = self._add(index, fields)
        item = self._items[index]
        if item.type == "reasoning":
            encrypted = self.size.take(text_of(fields, "encrypted_content"))
            # An incomplete one would be refused.
            item.encrypted = "" if self.size.full else encrypted
        if item.pieces:
            return events
        if item.type == "function_call":
            return events + self._write(item, text_of(fields, "arguments"))
        if item.type == "reasoning":
            summaries = [text_of(part, "text") for part in objects_in(fields.get("summary"))]
            return events + self._write(item, _BETWEEN_SUMMARIES.join(summaries))
        parts = objects_in(fields.get("content"))
        if not self._refusal:
            self._refusal += [self.size.take(text_of(part, "refusal")) for part in parts]
        return events + self._write(item, "".join(text_of(part, "text") for part in parts))

    def _write(self, item: _Item, piece: str) -> list[ModelEvent]:
        text = self.size.take(piece)
        if not text:
            return []
        item.pieces.append(text)
        if item.type == "function_call":
            return [ToolCallDelta(item.call_index, item.call_id, item.name, text)]
        return [ReasoningDelta(text) if item.type == "reasoning" else TextDelta(text)]

    def _ordered(self) -> list[_Item]:
        return [self._items[index] for index in sorted(self._items)]

    def content(self) -> tuple[ReplyPart, ...]:
        parts: list[ReplyPart] = []
        for item in self._ordered():
            if item.type == "reasoning" and (item.text or item.encrypted):
                parts.append(
                    responses_wire.reasoning_part(item.text, item.encrypted, item.calls_before)
                )
            elif item.type == "message" and item.text:
                parts.append(TextPart(item.text))
        return tuple(parts)

    def tool_calls(self) -> tuple[ToolCall, ...]:
        calls = sorted(
            (item for item in self._items.values() if item.type == "function_call"),
            key=lambda item: item.call_index,
        )
        return tuple(ToolCall(item.call_id, item.name, item.text or "{}") for item in calls)

    def everything(self) -> str:
        return "".join(item.name + item.text for item in self._ordered())

    def finish_reason(self) -> FinishReason:
        refusal = "".join(self._refusal)
        if refusal or self._reason == "content_filter":
            message = refusal or "The provider's content filter stopped the reply."
            raise ModelError(ModelErrorKind.REFUSED, message)
        if self.size.full:
            return FinishReason.LENGTH
        if self._status == "incomplete" and self._reason in ("", "max_output_tokens"):
            return FinishReason.LENGTH
        if self._status != "completed":
            ending = f"{self._status} {self._reason}".strip() or "no status"
            raise ModelError(
                ModelErrorKind.CUT_OFF, f"The stream ended before the reply was complete: {ending}."
            )
        return FinishReason.TOOL_CALLS if self._calls else FinishReason.STOP

    def usage(self) -> Usage | None:
        counts = [count_of(self._usage, name) for name in ("input_tokens", "output_tokens")]
        if not any(counts):
            return None
        input_details = object_in(self._usage.get("input_tokens_details"))
        written = object_in(self._usage.get("output_tokens_details"))
        return Usage(
            prompt_tokens=counts[0],
            completion_tokens=counts[1],
            cached_input_tokens=count_of(input_details, "cached_tokens"),
            cache_write_tokens=count_of(input_details, "cache_write_tokens"),
            reasoning_tokens=count_of(written, "reasoning_tokens"),
        )


def _error_of(fields: JsonFields) -> ModelError:
    code = text_of(fields, "code") or None
    message = text_of(fields, "message") or "The provider reported an error without a message."
    kind = classify(None, (code, text_of(fields, "type")), message)
    return ModelError(kind, message, code=code)
