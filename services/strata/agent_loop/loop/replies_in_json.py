"""Offers the model JSON replies and validates them (decision 0039).

A reply to the user is the text of a message without calls, or the argument of ``send_message``.
Both are validated before they are journalled, stored or shown.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from strata.agent_loop.context.requests import Offer
from strata.agent_loop.domain.model.chat import (
    ChatMessage,
    ChatRole,
    JsonReply,
    ModelEvent,
    ModelReply,
    ReplyPart,
    TextDelta,
    TextPart,
    ToolCall,
    ToolCallDelta,
)
from strata.agent_loop.domain.tools import Tool, ToolSet
from strata.agent_loop.models.strict_schema import drop_invented_nulls
from strata.shared.json_schemas import first_violation
from strata.shared.json_text import JsonTextError, encodable, parse_json, storable_text
from strata.shared.tool_catalogue import SEND_MESSAGE

MESSAGE = "message"
"""The argument of ``send_message``."""

_FENCE = "```"
_NOT_RUN = "This call was not run, because of the call beside it."
_REPAIR = (
    "Your answer was not shown to the user, because it is not the JSON object that was asked for:"
    " {}. Answer again, with the corrected JSON object only."
)
_REPAIR_CALL = (
    "The message was not sent, because it is not the JSON object that was asked for: {}. Call"
    f" {SEND_MESSAGE} again, with the corrected object as {MESSAGE}."
)
_MAX_ECHO_CHARS = 16_000


@dataclass(frozen=True, slots=True)
class CheckedReply:
    """A reply after the check.

    Attributes:
        reply: The reply, with its JSON in the form in which it is stored.
        problem: The first violation; empty if there is none.
    """

    reply: ModelReply
    problem: str = ""


def with_json_replies(offer: Offer, json_reply: JsonReply | None) -> Offer:
    """Returns an offer that requests JSON replies; the unchanged offer if any text is allowed.

    Args:
        offer: The offer, before a loop adds its arguments.
        json_reply: The JSON form of replies; None for any text.
    """
    if json_reply is None:
        return offer
    message = json_reply.schema or {"type": "object"}
    if json_reply.description:
        message = {**message, "description": json_reply.description}
    tools = tuple(_with_message(tool, message) for tool in offer.tools.tools)
    return replace(offer, tools=ToolSet(tools), json_reply=json_reply)


def _with_message(tool: Tool, message: Any) -> Tool:
    if tool.name != SEND_MESSAGE:
        return tool
    parameters = tool.schema.parameters
    properties = {**parameters.get("properties", {}), MESSAGE: message}
    schema = replace(tool.schema, parameters={**parameters, "properties": properties})
    return replace(tool, schema=schema)


def checked(reply: ModelReply, offer: Offer) -> CheckedReply:
    """Validates a reply to the user.

    Two kinds of text are not replies and stay unchecked: text beside calls, and text where the V2
    loop requires a call, which ends the run with `no_tool_call`.

    Args:
        reply: The model's reply.
        offer: The offer that it replied to.
    """
    json_reply = offer.json_reply
    if json_reply is None:
        return CheckedReply(reply)
    if not reply.tool_calls:
        if not offer.json_text:
            return CheckedReply(reply)
        text, problem = _checked_text(reply.text, json_reply)
        return CheckedReply(reply if problem else _with_text(reply, text), problem)
    calls, problems = [], []
    for call in reply.tool_calls:
        call, problem = _checked_call(call, json_reply)  # noqa: PLW2901 - in its stored form
        calls.append(call)
        problems += [problem] if problem else []
    if problems:
        return CheckedReply(reply, problems[0])
    return CheckedReply(replace(reply, tool_calls=tuple(calls)))


def _checked_call(call: ToolCall, json_reply: JsonReply) -> tuple[ToolCall, str]:
    if call.name != SEND_MESSAGE:
        return call, ""
    try:
        arguments = parse_json(call.arguments)
    except JsonTextError as error:
        return call, f"the arguments are not valid JSON ({error})"
    message = arguments.get(MESSAGE) if isinstance(arguments, dict) else None
    if message is None:
        return call, f"the argument {MESSAGE!r} is missing"
    written = message if isinstance(message, str) else json.dumps(message)
    text, problem = _checked_text(written, json_reply)
    if problem:
        return call, problem
    arguments_text = json.dumps(encodable({**arguments, MESSAGE: text}), ensure_ascii=False)
    return replace(call, arguments=arguments_text), ""


def _checked_text(text: str, json_reply: JsonReply) -> tuple[str, str]:
    """Returns a JSON object in its stored form, and the first violation, if any."""
    text = _unfenced(text)
    if json_reply.schema is not None:
        # Strict schemas make optional members nullable.
        text = drop_invented_nulls(text, json_reply.schema)
    try:
        # A JSON escape can encode half a surrogate pair, which no error text could contain.
        value = encodable(parse_json(text))
    except JsonTextError as error:
        return text, f"it is not valid JSON ({error})"
    if not isinstance(value, dict):
        return text, "it is JSON, but not an object"
    problem = "" if json_reply.schema is None else first_violation(json_reply.schema, value)
    return json.dumps(value, ensure_ascii=False), problem


def _unfenced(text: str) -> str:
    """Returns a text without a code fence around it.

    Takes linear time: models that must write JSON sometimes add very many line breaks.
    """
    head, _, body = text.strip().partition("\n")
    if head.rstrip() in (_FENCE, f"{_FENCE}json") and body.endswith(_FENCE):
        return body.removesuffix(_FENCE)
    return text


def _with_text(reply: ModelReply, text: str) -> ModelReply:
    """Returns a reply whose text parts are replaced by `text`."""
    content: list[ReplyPart] = []
    placed = False
    for part in reply.content:
        if not isinstance(part, TextPart):
            content.append(part)
        elif not placed:
            content.append(TextPart(text))
            placed = True
    return replace(reply, content=tuple(content))


def repair_of(reply: ModelReply, problem: str) -> Sequence[ChatMessage]:
    """Returns messages that ask the model to correct its reply, to append to the request.

    The messages are not stored. Another dispatch of the run starts the step again, as it does for
    every step that is not journalled.

    Args:
        reply: The reply that did not satisfy the format.
        problem: The first violation.
    """
    content = tuple(
        TextPart(storable_text(part.text[:_MAX_ECHO_CHARS])) if isinstance(part, TextPart) else part
        for part in reply.content
    )
    calls = tuple(
        replace(call, arguments=storable_text(call.arguments[:_MAX_ECHO_CHARS]))
        for call in reply.tool_calls
    )
    echo = ChatMessage(ChatRole.ASSISTANT, content, calls)
    if not calls:
        return [echo, ChatMessage.user(_REPAIR.format(problem))]
    correction = _REPAIR_CALL.format(problem)
    returns = [
        ChatMessage.tool(call.id, correction if call.name == SEND_MESSAGE else _NOT_RUN)
        for call in calls
    ]
    return [echo, *returns]


class HeldPieces:
    """Holds back streamed pieces of JSON replies until they are validated.

    Args:
        offer: The offer to the model.
    """

    def __init__(self, offer: Offer) -> None:
        self._has_json_reply = offer.json_reply is not None
        self._text = self._has_json_reply and offer.json_text
        self._texts = False
        self._calls: set[int] = set()

    def take(self, event: ModelEvent) -> bool:
        """Returns whether a piece is held back until the reply is validated."""
        if isinstance(event, TextDelta):
            self._texts = self._texts or self._text
            return self._text
        # A few servers send the name of a tool in pieces.
        if self._has_json_reply and isinstance(event, ToolCallDelta):
            if SEND_MESSAGE.startswith(event.name):
                self._calls.add(event.index)
            return event.index in self._calls
        return False

    def events_of(self, reply: ModelReply) -> Iterator[ModelEvent]:
        """Yields the held-back text and calls of a reply, each as one piece."""
        if self._texts and reply.text:
            yield TextDelta(reply.text)
        for index, call in enumerate(reply.tool_calls):
            if index in self._calls:
                yield ToolCallDelta(index, call.id, call.name, call.arguments)
