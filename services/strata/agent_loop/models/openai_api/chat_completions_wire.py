"""Builds the request body of OpenAI's chat completions. Pure."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from strata.agent_loop.domain.model.chat import (
    ChatMessage,
    ChatRole,
    ImageDetail,
    JsonReply,
    ModelRequest,
    ModelSettings,
    ReasoningPart,
    ShownImage,
    TextPart,
    ToolChoice,
    ToolChoiceMode,
    ToolSchema,
)
from strata.agent_loop.domain.model.proofs import is_thought, mark, note_for
from strata.agent_loop.domain.model.quirks import NO_QUIRKS, Quirks, ReplyForm
from strata.agent_loop.models.conversation_repair import (
    CONTINUE,
    OPENING,
    leading_system,
    legal_arguments,
    repair,
    without_system_role,
)
from strata.agent_loop.models.offered_tool import offered_tool
from strata.agent_loop.models.openai_api.plain_schema import to_plain
from strata.agent_loop.models.openai_api.request_json import KeptObject
from strata.agent_loop.models.refused_parameters import Refusals
from strata.agent_loop.models.reply_forms import ReplyForms, with_instruction
from strata.agent_loop.models.strict_schema import to_strict
from strata.shared.blank_text import is_blank
from strata.shared.json_text import encodable_text

# Optional parameters, which are left out after a model refused them.
OPTIONAL_PARAMETERS = frozenset(
    {"temperature", "parallel_tool_calls", "reasoning_effort", "stream_options"}
)


OLD_LIMIT, NEW_LIMIT = "max_tokens", "max_completion_tokens"
"""The two names of the output limit. No server is known to accept both for all models."""
# OpenAI's reasoning models, also behind a gateway that adds a prefix to their names.
_NEW_LIMIT_MODELS = re.compile(r"(?:^|[/:.])(?:o\d|gpt-[5-9])(?!\d)")


# Error texts of servers that send no code: xAI, Mistral, vLLM.
_UNSUPPORTED = re.compile(r"not support|unsupported|extra_forbidden|not permitted", re.IGNORECASE)
UNSUPPORTED_VALUE = "unsupported_value"
"""OpenAI's error code for a parameter that it accepts with other values."""

SIGNED_CALL = "google"
"""Owner of call signatures; see `domain.model.proofs`."""

REPLY_AFTER_TOOL = "OK."
"""Assistant text between a tool return and a user message, for servers that require one."""


@dataclass(slots=True)
class Adaptation:
    """Properties of a model, detected from the parameters that it refused.

    Attributes:
        without: Optional parameters that are left out.
        limit_name: Name of the output limit.
        reply_forms: Forms of JSON requests that it refused.
    """

    without: Refusals
    limit_name: str
    reply_forms: ReplyForms = field(default_factory=ReplyForms)

    @classmethod
    def first(cls, model: str, *, official: bool, quirks: Quirks = NO_QUIRKS) -> Adaptation:
        """Returns the assumptions before the first request."""
        new = official or _NEW_LIMIT_MODELS.search(model) is not None
        limit_name = quirks.limit_name or (NEW_LIMIT if new else OLD_LIMIT)
        return cls(Refusals(set(quirks.without)), limit_name)

    def leave_out(
        self, code: str | None, parameter: str, message: str, body: Mapping[str, Any]
    ) -> str:
        """Leaves out a refused parameter from now on.

        Args:
            code: The provider's code of the error.
            parameter: The parameter that the error names; empty if it names none.
            message: Text of the error, in which the parameter is searched if no field names it.
            body: The refused request.

        Returns:
            The parameter; empty if it is required or left out already.
        """
        name = parameter.split(".", maxsplit=1)[0] or _optional_parameter_in(message)
        unsupported = code in ("unsupported_parameter", UNSUPPORTED_VALUE)
        unsupported = unsupported or (not parameter and says_unsupported(message))
        if not unsupported or name not in OPTIONAL_PARAMETERS:
            return ""
        # If only the value is refused, agents with other values still send the parameter.
        only_value = code == UNSUPPORTED_VALUE
        return name if self.without.add(name, body.get(name), only_value=only_value) else ""

    def rename_limit(self, limit_name: str, parameter: str, message: str) -> bool:
        """Sends the limit under its other name from now on, if the error is about this name.

        Args:
            limit_name: The name that the refused request used.
            parameter: The parameter that the error names; empty if it names none.
            message: Text of the error.
        """
        if parameter != limit_name and not _names_limit(message):
            return False
        self.limit_name = OLD_LIMIT if limit_name == NEW_LIMIT else NEW_LIMIT
        return True


def _optional_parameter_in(message: str) -> str:
    """Returns the first optional parameter in a text, in snake or camel case."""
    for name in sorted(OPTIONAL_PARAMETERS):
        first, *others = name.split("_")
        camel = first + "".join(map(str.capitalize, others))
        if re.search(rf"\b(?:{name}|{camel})\b", message):
            return name
    return ""


def says_unsupported(message: str) -> bool:
    """Returns whether the text of an error means that something is not supported."""
    return _UNSUPPORTED.search(message) is not None


def _names_limit(message: str) -> bool:
    return re.search(rf"\b(?:{OLD_LIMIT}|{NEW_LIMIT})\b", message) is not None


def build(
    request: ModelRequest,
    settings: ModelSettings,
    *,
    official: bool,
    adaptation: Adaptation | None = None,
) -> dict[str, Any]:
    """Returns the request body.

    Args:
        request: The request.
        settings: The model.
        official: Whether the endpoint is OpenAI's own, the only one known to enforce strict
            schemas.
        adaptation: The detected properties of the model.
    """
    quirks = settings.quirks
    adaptation = adaptation or Adaptation.first(settings.model, official=official, quirks=quirks)
    form = reply_form(request, quirks, adaptation.reply_forms, official=official)
    body: dict[str, Any] = {
        "model": settings.model,
        "messages": _conversation(request, quirks, form),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    limit = request.max_tokens or settings.max_tokens
    if limit:
        body[adaptation.limit_name] = limit
    if settings.temperature is not None:
        body["temperature"] = settings.temperature
    body.update(_reasoning(request, settings))
    if request.response_format is not None and form > ReplyForm.PROMPT:
        body["response_format"] = _response_format(request.response_format, form, quirks)
    if request.tools:
        parallel = request.parallel_tool_calls
        tools, choice = request.tools, request.tool_choice
        if choice.mode is ToolChoiceMode.NAMED and not quirks.names_tools:
            tools = [tool for tool in tools if tool.name == choice.name]
            choice = ToolChoice.required()
        body["tools"] = [
            tool.derived(_plain_tool, None)
            if quirks.plain_schemas
            else tool.derived(_tool, official)
            for tool in tools
        ]
        body["tool_choice"] = _tool_choice(choice)
        body["parallel_tool_calls"] = settings.parallel_tool_calls if parallel is None else parallel
    return {
        name: value for name, value in body.items() if not adaptation.without.covers(name, value)
    }


def strict_tools(request: ModelRequest, *, official: bool) -> dict[str, ToolSchema]:
    """Returns the tools with strict schemas, by name."""
    return {
        tool.name: tool
        for tool in request.tools
        if official and tool.strict and to_strict(tool.parameters) is not None
    }


def _reasoning(request: ModelRequest, settings: ModelSettings) -> dict[str, Any]:
    """Returns the parameters of reasoning."""
    effort, budget = settings.reasoning_effort, settings.max_reasoning_tokens
    effort = dict(settings.quirks.efforts).get(effort or "", effort)
    if settings.quirks.thinking_config and effort is None and budget > 0:
        config = {"include_thoughts": True, "thinking_budget": budget}
        return {"extra_body": {"google": {"thinking_config": config}}}
    if settings.quirks.thinking_toggle:
        forced = bool(request.tools) and request.tool_choice.forces_a_call
        if forced or effort == "none":
            return {"thinking": {"type": "disabled"}}
    if settings.quirks.reasoning_object:
        if effort is None and budget > 0:
            return {"reasoning": {"max_tokens": budget}}
        return {"reasoning": {"effort": effort}} if effort is not None else {}
    return {"reasoning_effort": effort} if effort is not None else {}


def reply_form(
    request: ModelRequest, quirks: Quirks, learnt: ReplyForms, *, official: bool
) -> ReplyForm:
    """Returns how a request requires JSON, if it does."""
    reply = request.response_format
    if reply is None or (request.tools and not quirks.json_with_tools and not official):
        return ReplyForm.PROMPT
    strongest = ReplyForm.STRICT if official else quirks.json_replies
    if reply.schema is None:
        strongest = min(strongest, ReplyForm.OBJECT)
    elif not reply.strict or to_strict(reply.schema) is None:
        strongest = min(strongest, ReplyForm.SCHEMA)
    return learnt.of(reply, strongest)


def schema_format(reply: JsonReply, form: ReplyForm) -> dict[str, Any]:
    """Returns name, description and schema in the form of OpenAI's APIs."""
    assert reply.schema is not None
    strict = to_strict(reply.schema) if form is ReplyForm.STRICT else None
    described = {"description": reply.description} if reply.description else {}
    schema = strict or dict(reply.schema)
    return {"name": reply.name, **described, "schema": schema, "strict": strict is not None}


def _response_format(reply: JsonReply, form: ReplyForm, quirks: Quirks) -> dict[str, Any]:
    if form is ReplyForm.OBJECT:
        return {"type": "json_object"}
    schema = schema_format(reply, form)
    if form is ReplyForm.SCHEMA:
        # Left out if it is the default, since not every server supports the field.
        del schema["strict"]
    if quirks.plain_schemas:
        schema["schema"] = to_plain(schema["schema"])
    return {"type": "json_schema", "json_schema": schema}


def _conversation(request: ModelRequest, quirks: Quirks, form: ReplyForm) -> list[dict[str, Any]]:
    """Returns the messages in the form that this server accepts."""
    messages = repair(request.messages, quirks.call_id_length)
    reply = request.response_format
    if reply is not None and form <= ReplyForm.OBJECT:
        messages = with_instruction(messages, reply, tools=bool(request.tools))
    if quirks.system_first:
        system, others = leading_system(messages)
        later = [without_system_role(message) for message in others]
        messages = [*([ChatMessage.system(system)] if system else []), *later]
    return _ordered(_messages(messages, quirks, bool(request.tools)), quirks)


def _ordered(wires: list[dict[str, Any]], quirks: Quirks) -> list[dict[str, Any]]:
    """Returns the messages in an order of roles that the server accepts."""
    ordered: list[dict[str, Any]] = []
    for wire in wires:
        if quirks.calls_follow_user and wire.get("tool_calls"):
            ordered.append(_after_user(ordered, wire))
            continue
        if quirks.user_before_calls and wire.get("tool_calls") and not _has_user(ordered):
            ordered.append({"role": "user", "content": OPENING})
        before = ordered[-1]["role"] if ordered else ""
        if quirks.joined_users and wire["role"] == before == "user":
            ordered[-1] = {**wire, "content": _joined(ordered[-1]["content"], wire["content"])}
            continue
        if quirks.reply_after_tool and before == "tool" and wire["role"] == "user":
            ordered.append({"role": "assistant", "content": REPLY_AFTER_TOOL})
        ordered.append(wire)
    if quirks.user_last and ordered and ordered[-1]["role"] not in ("user", "tool"):
        ordered.append({"role": "user", "content": CONTINUE})
    return ordered


def _has_user(wires: list[dict[str, Any]]) -> bool:
    return any(wire["role"] == "user" for wire in wires)


def _after_user(ordered: list[dict[str, Any]], calls: dict[str, Any]) -> dict[str, Any]:
    """Returns a message with calls, joined with the assistant text before it.

    Args:
        ordered: The messages before it; afterwards the last one is a user message or a return.
        calls: The message with calls.
    """
    texts = [calls["content"]]
    while ordered and ordered[-1]["role"] == "assistant":
        texts.insert(0, ordered.pop()["content"])
    if not ordered or ordered[-1]["role"] not in ("user", "tool"):
        ordered.append({"role": "user", "content": OPENING})
    return {**calls, "content": "\n\n".join(filter(None, texts)) or None}


def _joined(first: Any, second: Any) -> Any:
    """Returns the joined contents of two messages."""
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    return [*_as_parts(first), *_as_parts(second)]


def _as_parts(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _messages(
    messages: Sequence[ChatMessage], quirks: Quirks, with_tools: bool
) -> list[dict[str, Any]]:
    """Returns the messages; images of returns follow them in a user message.

    The API accepts images only in user messages, and returns only directly after their calls.

    Args:
        messages: The repaired conversation.
        quirks: The server's quirks.
        with_tools: Whether tools are offered.
    """
    reasoning_field = quirks.reasoning_field if with_tools else ""
    wires: list[dict[str, Any]] = []
    returned: list[dict[str, Any]] = []
    for message in messages:
        if message.role is not ChatRole.TOOL and returned:
            wires.append({"role": "user", "content": returned})
            returned = []
        wire = _message(message)
        if reasoning_field and message.role is ChatRole.ASSISTANT:
            wire = {**wire, reasoning_field: _reasoning_of(message)}
        if quirks.call_signatures and message.tool_calls:
            calls = _signed(wire["tool_calls"], message, quirks.unsigned_call)
            wire = {**wire, "tool_calls": calls}
        wires.append(wire)
        if message.role is ChatRole.TOOL:
            for image in message.images:
                note = f"[Returned by the tool call {message.tool_call_id}:]"
                returned += [{"type": "text", "text": note}, _image(image)]
    if returned:
        wires.append({"role": "user", "content": returned})
    return wires


def call_signature(call_index: int, signature: str) -> ReasoningPart:
    """Returns the signature of a call in its stored form.

    Args:
        call_index: Position of the call in its reply.
        signature: The provider's signature.
    """
    return ReasoningPart("", mark(SIGNED_CALL, str(call_index)), signature)


def _signed(
    calls: list[dict[str, Any]], message: ChatMessage, unsigned: str
) -> list[dict[str, Any]]:
    """Returns calls with their stored signatures."""
    signed = []
    parts = [part for part in message.content if isinstance(part, ReasoningPart)]
    signatures = {
        note: part.redacted for part in parts if (note := note_for(SIGNED_CALL, part)) is not None
    }
    for index, call in enumerate(calls):
        # One signature is enough for the calls of a reply: the first call's.
        signature = signatures.get(str(index), "" if index or signatures else unsigned)
        extra = {"extra_content": {"google": {"thought_signature": signature}}} if signature else {}
        signed.append({**call, **extra})
    return signed


def _reasoning_of(message: ChatMessage) -> str:
    parts = [
        part.text
        for part in message.content
        if isinstance(part, ReasoningPart) and not is_thought(part)
    ]
    return encodable_text("".join(parts))


def _message(message: ChatMessage) -> dict[str, Any]:
    if message.role is ChatRole.TOOL:
        return {"role": "tool", "tool_call_id": message.tool_call_id, "content": message.text}
    if message.images:
        # Not kept: it has the bytes of the images.
        return {"role": message.role.value, "content": list(_parts(message))}
    return message.derived(_text_message, None)


def _text_message(message: ChatMessage, _: None) -> dict[str, Any]:
    """Returns a message without images; it is kept, so nothing may be added to it."""
    wire: dict[str, Any] = {"role": message.role.value, "content": message.text}
    if message.tool_calls:
        # Some servers treat an empty text as the answer and ignore the calls.
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


def _parts(message: ChatMessage) -> Iterator[dict[str, Any]]:
    for part in message.content:
        if isinstance(part, ShownImage):
            yield _image(part)
        elif isinstance(part, TextPart) and not is_blank(part.text):
            yield {"type": "text", "text": part.text}


def _image(part: ShownImage) -> dict[str, Any]:
    image = part.image
    encoded = base64.b64encode(image.data).decode("ascii")
    address: dict[str, Any] = {"url": f"data:{image.media_type};base64,{encoded}"}
    if image.detail is not ImageDetail.AUTO:
        address["detail"] = image.detail.value
    return {"type": "image_url", "image_url": address}


def _tool(tool: ToolSchema, official: bool) -> KeptObject:
    offered = offered_tool(tool)
    function: dict[str, Any] = {"name": tool.name, "description": offered.description}
    strict = to_strict(tool.parameters) if official and tool.strict else None
    function["parameters"] = strict or offered.parameters
    if strict:
        function["strict"] = True
    return KeptObject(type="function", function=function)


def _plain_tool(tool: ToolSchema, _: None) -> KeptObject:
    offered = offered_tool(tool)
    function: dict[str, Any] = {"name": tool.name, "description": offered.description}
    parameters = to_plain(offered.parameters)
    # An object without properties is refused; a tool without parameters is not.
    if parameters.get("properties"):
        function["parameters"] = parameters
    return KeptObject(type="function", function=function)


def _tool_choice(choice: ToolChoice) -> str | dict[str, Any]:
    if choice.mode is ToolChoiceMode.NAMED:
        return {"type": "function", "function": {"name": choice.name}}
    return choice.mode.value
