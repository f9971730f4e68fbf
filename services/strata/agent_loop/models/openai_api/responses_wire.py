"""Builds the request body of OpenAI's Responses API. Pure.

Nothing is stored at the provider (`store` is false): a request has the whole conversation, and
encrypted reasoning is sent back. Ids of items are left out, since the provider would look up items
with ids in its store.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from strata.agent_loop.domain.model.chat import (
    ChatMessage,
    ChatRole,
    ModelRequest,
    ModelSettings,
    PromptPart,
    ReasoningPart,
    ShownImage,
    TextPart,
    ToolCall,
    ToolChoice,
    ToolChoiceMode,
    ToolSchema,
)
from strata.agent_loop.domain.model.proofs import mark, note_for
from strata.agent_loop.domain.model.quirks import ReplyForm
from strata.agent_loop.models.conversation_repair import (
    CONTINUE,
    leading_system,
    legal_arguments,
    repair,
)
from strata.agent_loop.models.offered_tool import offered_tool
from strata.agent_loop.models.openai_api.chat_completions_wire import (
    UNSUPPORTED_VALUE,
    reply_form,
    says_unsupported,
    schema_format,
)
from strata.agent_loop.models.openai_api.request_json import KeptObject
from strata.agent_loop.models.refused_parameters import Refusals
from strata.agent_loop.models.reply_forms import ReplyForms, instruction_for
from strata.agent_loop.models.strict_schema import to_strict
from strata.shared.blank_text import is_blank
from strata.shared.number_text import is_whole_number

OWNER = "openai_responses"
"""Owner of the reasoning that is sent back; see `domain.model.proofs`."""

MIN_OUTPUT_TOKENS = 16
"""The API refuses a lower output limit."""

ENCRYPTED_REASONING = "reasoning.encrypted_content"
# Optional parameters, by their names in errors.
_OPTIONAL = (
    *("temperature", "parallel_tool_calls", "include"),
    *("reasoning.summary", "reasoning.effort", "reasoning"),
)
_MOST_DIGESTS = 1_000


@dataclass(slots=True)
class Learnt:
    """Properties of a model, detected from its refusals.

    Attributes:
        without: Optional parameters that are left out.
        unreadable: Digests of encrypted reasoning that the provider could not decrypt, since it was
            made for another account or a removed model.
        reply_forms: Forms of JSON requests that it refused.
    """

    without: Refusals = field(default_factory=Refusals)
    unreadable: set[str] = field(default_factory=set)
    reply_forms: ReplyForms = field(default_factory=ReplyForms)

    def leave_out(
        self, code: str | None, parameter: str, message: str, body: Mapping[str, Any]
    ) -> str:
        """Leaves out a refused parameter from now on.

        Args:
            code: The provider's code of the error.
            parameter: The parameter that the error names; empty if it names none.
            message: Text of the error.
            body: The refused request.

        Returns:
            The parameter; empty if it is required or left out already.
        """
        option = next((name for name in _OPTIONAL if parameter.startswith(name)), "")
        if not parameter:
            option = next((name for name in _OPTIONAL if name in message), "")
        unsupported = code in ("unsupported_parameter", UNSUPPORTED_VALUE)
        if not option or not (unsupported or says_unsupported(message)):
            return ""
        only_value = code == UNSUPPORTED_VALUE
        return option if self.without.add(option, sent(body, option), only_value=only_value) else ""

    def forget_reasoning(self, code: str | None, message: str, body: dict[str, Any]) -> bool:
        """Leaves out the reasoning of a request that the provider could not decrypt, from now on.

        Returns:
            False if the error is about something else, or the request had no such reasoning.
        """
        unverified = "encrypted content" in message and "could not be verified" in message
        if code != "invalid_encrypted_content" and not unverified:
            return False
        sent = {
            _digest(item["encrypted_content"])
            for item in body["input"]
            if item.get("type") == "reasoning"
        }
        if len(self.unreadable) + len(sent) > _MOST_DIGESTS:
            self.unreadable.clear()
        self.unreadable |= sent
        return bool(sent)


def sent(body: Mapping[str, Any], name: str) -> Any:
    """Returns the value of a parameter, such as `reasoning.effort`, in a request; None for none."""
    value: Any = body
    for key in name.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def reasoning_part(text: str, encrypted: str, calls_before: int) -> ReasoningPart:
    """Returns an item of reasoning in its stored form.

    Args:
        text: Its summary, which may be empty.
        encrypted: The encrypted reasoning; empty if the provider did not send it.
        calls_before: Number of calls in the reply before it.
    """
    if not encrypted:
        return ReasoningPart(text)
    return ReasoningPart(text, mark(OWNER, str(calls_before)), encrypted)


def build(
    request: ModelRequest, settings: ModelSettings, learnt: Learnt, *, official: bool
) -> dict[str, Any]:
    """Returns the request body.

    Args:
        request: The request.
        settings: The model and its defaults.
        learnt: The parameters that the model has refused so far.
        official: Whether the endpoint is OpenAI's own, which can enforce schemas of tools.
    """
    system, messages = leading_system(repair(request.messages))
    reply = request.response_format
    form = reply_form(request, settings.quirks, learnt.reply_forms, official=official)
    if reply is not None and form <= ReplyForm.OBJECT:
        # The API requires the word JSON in the messages; the instructions do not count.
        words = instruction_for(reply, tools=bool(request.tools))
        messages = [ChatMessage.system(words), *messages]
    body: dict[str, Any] = {
        "model": settings.model,
        "input": list(_items(messages, learnt)) or [{"role": "user", "content": CONTINUE}],
        "store": False,
        "stream": True,
        "include": [ENCRYPTED_REASONING],
    }
    if system:
        body["instructions"] = system
    if settings.temperature is not None:
        body["temperature"] = settings.temperature
    limit = request.max_tokens or settings.max_tokens
    if limit:
        body["max_output_tokens"] = max(limit, MIN_OUTPUT_TOKENS)
    if reasoning := _reasoning(settings, learnt):
        body["reasoning"] = reasoning
    if reply is not None and form > ReplyForm.OBJECT:
        body["text"] = {"format": {"type": "json_schema", **schema_format(reply, form)}}
    elif reply is not None and form is ReplyForm.OBJECT:
        body["text"] = {"format": {"type": "json_object"}}
    if request.tools:
        parallel = request.parallel_tool_calls
        body["tools"] = [tool.derived(_tool, official) for tool in request.tools]
        body["tool_choice"] = _tool_choice(request.tool_choice)
        body["parallel_tool_calls"] = settings.parallel_tool_calls if parallel is None else parallel
    return {name: value for name, value in body.items() if not learnt.without.covers(name, value)}


def _reasoning(settings: ModelSettings, learnt: Learnt) -> dict[str, Any]:
    """Returns the parameters of reasoning and its summary."""
    effort = settings.reasoning_effort
    should_reason = effort is not None or settings.max_reasoning_tokens > 0
    reasoning: dict[str, Any] = {} if effort is None else {"effort": effort}
    if should_reason and effort != "none":
        reasoning["summary"] = "auto"
    return {
        name: value
        for name, value in reasoning.items()
        if not learnt.without.covers(f"reasoning.{name}", value)
    }


def _items(messages: Sequence[ChatMessage], learnt: Learnt) -> Iterator[dict[str, Any]]:
    for message in messages:
        if message.role is ChatRole.TOOL:
            yield {
                "type": "function_call_output",
                "call_id": message.tool_call_id,
                "output": _content(message) if message.images else message.text,
            }
        elif message.role is ChatRole.ASSISTANT:
            yield from _reply(message, learnt)
        else:
            content = _content(message) if message.images else message.text
            yield {"role": message.role.value, "content": content}


def _reply(message: ChatMessage, learnt: Learnt) -> Iterator[dict[str, Any]]:
    """Yields the items of an earlier reply, with reasoning before the items that followed it.

    Text comes before all calls, so that returns directly follow the calls. Reasoning without a
    following item is left out, since the API refuses it.
    """
    waiting: list[dict[str, Any]] = []
    sent = 0
    texts = sum(_is_shown(part) for part in message.content)
    for part in message.content:
        if isinstance(part, ReasoningPart):
            note = note_for(OWNER, part)
            if note is None or _digest(part.redacted) in learnt.unreadable:
                continue
            before = int(note) if is_whole_number(note) and not texts else 0
            if sent < before < len(message.tool_calls):
                yield from waiting
                yield from map(_call, message.tool_calls[sent:before])
                waiting, sent = [], before
            waiting.append(_reasoning_item(part))
        elif _is_shown(part):
            texts -= 1
            yield from waiting
            waiting = []
            yield {"role": "assistant", "content": part.text}
    if sent < len(message.tool_calls):
        yield from waiting
        yield from map(_call, message.tool_calls[sent:])


def _is_shown(part: PromptPart) -> TypeGuard[TextPart]:
    return isinstance(part, TextPart) and not is_blank(part.text)


def _reasoning_item(part: ReasoningPart) -> dict[str, Any]:
    summary = [{"type": "summary_text", "text": part.text}] if part.text else []
    return {"type": "reasoning", "summary": summary, "encrypted_content": part.redacted}


def _call(call: ToolCall) -> dict[str, Any]:
    return {
        "type": "function_call",
        "call_id": call.id,
        "name": call.name,
        "arguments": legal_arguments(call.arguments),
    }


def _content(message: ChatMessage) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    for part in message.content:
        if isinstance(part, ShownImage):
            image = part.image
            data = base64.b64encode(image.data).decode("ascii")
            url = f"data:{image.media_type};base64,{data}"
            parts.append({"type": "input_image", "image_url": url, "detail": image.detail.value})
        elif isinstance(part, TextPart) and not is_blank(part.text):
            parts.append({"type": "input_text", "text": part.text})
    return parts


def _tool(tool: ToolSchema, official: bool) -> KeptObject:
    strict = to_strict(tool.parameters) if official and tool.strict else None
    offered = offered_tool(tool)
    return KeptObject(
        type="function",
        name=tool.name,
        description=offered.description,
        parameters=strict or offered.parameters,
        # The default is true.
        strict=strict is not None,
    )


def _tool_choice(choice: ToolChoice) -> str | dict[str, Any]:
    if choice.mode is ToolChoiceMode.NAMED:
        return {"type": "function", "name": choice.name}
    return choice.mode.value


def _digest(encrypted: str) -> str:
    return hashlib.sha256(encrypted.encode("utf-8", "replace")).hexdigest()[:32]
