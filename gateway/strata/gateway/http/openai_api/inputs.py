"""Converts requests of both OpenAI APIs to messages for an agent."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar
from urllib.parse import unquote

from pydantic import Field

from strata.api.common.v1 import message_pb2, response_format_pb2
from strata.gateway.http.openai_api.bodies import Body
from strata.gateway.http.openai_api.errors import ApiError

Item = TypeVar("Item")
FormatKind = Literal["text", "json_object", "json_schema"]

# The fields of a part of a message are those of one parameter: its text, or its image.
_MESSAGE_FIELD = re.compile(
    r"messages\[(?P<number>\d+)\](?:(?P<name>\.name)|(?P<parts>\.parts(?P<part>\[\d+\])?.*))?"
)
_DATA = "data:"
_DETAILS = {
    "low": message_pb2.IMAGE_DETAIL_LOW,
    "high": message_pb2.IMAGE_DETAIL_HIGH,
}


class JsonSchema(Body):
    """The schema of a reply in JSON."""

    name: str
    description: str | None = None
    schema_: dict[str, Any] = Field(default_factory=dict, alias="schema")
    strict: bool | None = None


@dataclass(frozen=True, slots=True)
class ClientToolResult:
    """The return of the client's tool.

    Attributes:
        tool_call_id: The call.
        content: The content for the model.
    """

    tool_call_id: str
    content: str


@dataclass(frozen=True, slots=True)
class AgentInput:
    """The input of the agent: messages, or results of the client's tools.

    Attributes:
        messages: The messages; none if there are results.
        results: The results; none if there are messages.
        param: The parameter of the request that it was in.
        first: Number of the first item in that parameter, 0 for the first; None if it is no list.
    """

    messages: Sequence[message_pb2.MessageInput]
    results: Sequence[ClientToolResult]
    param: str
    first: int | None = None

    def param_of(self, field: str) -> str:
        """Returns the part of the request that a field of `SendMessageRequest` was made of."""
        numbered = _MESSAGE_FIELD.fullmatch(field)
        if numbered is None or self.first is None:
            return self.param
        content = f".content{numbered['part'] or ''}" if numbered["parts"] else ""
        part = numbered["name"] or content
        return f"{self.param}[{self.first + int(numbered['number'])}]{part}"


def without_known(items: Any, is_reply: Callable[[Any], bool], known: Any) -> Any:
    """Returns the items of a request, with those replaced that the agent already has.

    They are not sent, so they may hold what an agent cannot be sent, such as audio or files that
    another model was given.

    Args:
        items: The items, not checked yet.
        is_reply: Whether the agent wrote an item.
        known: Takes the place of the last item that the agent wrote, and of those before it.
    """
    if not isinstance(items, list):
        return items
    known_count = 1 + _last_index(items, is_reply)
    return [known] * known_count + items[known_count:]


def _last_index(items: Sequence[Item], is_reply: Callable[[Item], bool]) -> int:
    return max((index for index, item in enumerate(items) if is_reply(item)), default=-1)


def agent_input(
    items: Sequence[Item],
    *,
    param: str,
    is_reply: Callable[[Item], bool],
    result_of: Callable[[Item], ClientToolResult | None],
    message_of: Callable[[Item], message_pb2.MessageInput],
) -> AgentInput:
    """Returns the items that are new to the agent: those after the last one that it wrote.

    Args:
        items: All items of the request, oldest first.
        param: The parameter that they were in.
        is_reply: Whether the agent wrote an item.
        result_of: Converts an item that is the result of a tool; None for others.
        message_of: Converts the others.

    Raises:
        ApiError: Nothing is new, or results and messages are mixed.
    """
    last = _last_index(items, is_reply)
    new = items[last + 1 :]
    if not new:
        raise ApiError("There is no message after the last assistant message.", param=param)
    results = [result for item in new if (result := result_of(item)) is not None]
    if not results:
        return AgentInput([message_of(item) for item in new], (), param, last + 1)
    if len(results) < len(new):
        raise ApiError(
            "Send tool results without other messages; send other messages after the reply.",
            param=param,
        )
    return AgentInput((), results, param)


def message_input(
    role: str, parts: Sequence[message_pb2.Part], name: str = ""
) -> message_pb2.MessageInput:
    """Returns a message of a role of OpenAI's: of the user, or of the system for all others."""
    return message_pb2.MessageInput(
        role=message_pb2.ROLE_USER if role == "user" else message_pb2.ROLE_SYSTEM,
        parts=parts,
        name=name,
    )


def text_part(text: str) -> message_pb2.Part:
    """Returns a part that is text."""
    return message_pb2.Part(text=message_pb2.TextPart(text=text))


def image_part(url: str, detail: str | None, param: str) -> message_pb2.Part:
    """Returns a part that is an image.

    Args:
        url: An https URL, or a data URL.
        detail: How closely the model looks at it.
        param: The parameter that it was in.

    Raises:
        ApiError: The data cannot be read.
    """
    known_detail = _DETAILS.get(detail or "", message_pb2.IMAGE_DETAIL_UNSPECIFIED)
    if url[: len(_DATA)].lower() != _DATA:
        return message_pb2.Part(image=message_pb2.ImagePart(url=url, detail=known_detail))
    # https://www.rfc-editor.org/rfc/rfc2397
    head, comma, data = url[len(_DATA) :].partition(",")
    media_type, *parameters = head.split(";")
    in_base64 = comma and parameters and parameters[-1].strip().lower() == "base64"
    decoded = _from_base64("".join(unquote(data).split())) if in_base64 else None
    if decoded is None:
        raise ApiError("An image must be an https URL, or a data URL in base64.", param=param)
    return message_pb2.Part(
        image=message_pb2.ImagePart(media_type=media_type, data=decoded, detail=known_detail)
    )


def _from_base64(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None


def response_format_of(
    kind: FormatKind, schema: JsonSchema | None, param: str
) -> response_format_pb2.ResponseFormat | None:
    """Returns what the reply must be; None for free text.

    Args:
        kind: The kind of object that the request refers to.
        schema: The schema, of ``json_schema``.
        param: The parameter that the schema is in.

    Raises:
        ApiError: The schema is missing.
    """
    match kind:
        case "text":
            return None
        case "json_object":
            return response_format_pb2.ResponseFormat(
                json_object=response_format_pb2.JsonObjectFormat()
            )
        case "json_schema":
            if schema is None:
                raise ApiError("The schema of the reply is missing.", param=param)
            return response_format_pb2.ResponseFormat(
                json_schema=response_format_pb2.JsonSchemaFormat(
                    name=schema.name,
                    description=schema.description or "",
                    schema_json=json.dumps(schema.schema_),
                    strict=schema.strict,
                )
            )
