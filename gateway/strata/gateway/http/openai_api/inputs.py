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

# All fields of a part (its text or its image) map to one path: the part.
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
        param: The parameter of the request that contains the input.
        first: Index of the first new item in that parameter, from 0; None if it is not a list.
    """

    messages: Sequence[message_pb2.MessageInput]
    results: Sequence[ClientToolResult]
    param: str
    first: int | None = None

    def param_of(self, field: str) -> str:
        """Returns the path in the client's request of a field of `SendMessageRequest`.

        For example ``messages[0].parts[1].text`` is ``messages[4].content[1]``, if the fifth
        message of the client's request is the first new one.
        """
        match = _MESSAGE_FIELD.fullmatch(field)
        if match is None or self.first is None:
            return self.param
        content = f".content{match['part'] or ''}" if match["parts"] else ""
        rest = match["name"] or content
        return f"{self.param}[{self.first + int(match['number'])}]{rest}"


def without_known(items: Any, is_reply: Callable[[Any], bool], placeholder: Any) -> Any:
    """Replaces the items that the agent already has, so that they are not validated.

    These items are not sent to the agent. They may contain parts that agents do not accept, such
    as audio or files from a conversation with another model.

    Args:
        items: The items of a request, not validated yet; other values are returned unchanged.
        is_reply: Returns whether the agent wrote an item.
        placeholder: A valid item. It replaces the last item that the agent wrote, and every item
            before it.
    """
    if not isinstance(items, list):
        return items
    known_count = 1 + _last_index(items, is_reply)
    return [placeholder] * known_count + items[known_count:]


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
    """Returns the items that are new to the agent: all after the last one that the agent wrote.

    Args:
        items: All items of the request, oldest first.
        param: The parameter of the request that contains the items.
        is_reply: Returns whether the agent wrote an item.
        result_of: Converts the result of a tool; returns None for other items.
        message_of: Converts an item that is not the result of a tool.

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
    """Returns a message for an OpenAI role; all roles except ``user`` become SYSTEM."""
    return message_pb2.MessageInput(
        role=message_pb2.ROLE_USER if role == "user" else message_pb2.ROLE_SYSTEM,
        parts=parts,
        name=name,
    )


def text_part(text: str) -> message_pb2.Part:
    """Returns a text part."""
    return message_pb2.Part(text=message_pb2.TextPart(text=text))


def image_part(url: str, detail: str | None, param: str) -> message_pb2.Part:
    """Returns an image part.

    Args:
        url: An https URL, or a data URL in base64.
        detail: OpenAI's level of detail: ``low`` or ``high``; others are ignored.
        param: The parameter of the request that contains the image.

    Raises:
        ApiError: The data URL is not valid base64.
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
    """Returns the response format of a request; None for free text.

    Args:
        kind: The type of the format.
        schema: The schema, for the type ``json_schema``.
        param: The parameter of the request that contains the format.

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
