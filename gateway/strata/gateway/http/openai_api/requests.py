"""The request of a chat completion, checked, and what of it goes to the agent."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from strata.api.common.v1 import message_pb2, response_format_pb2
from strata.gateway.http.openai_api.errors import ApiError

# Parameters of which another value than these would change the reply, and which an agent cannot
# take from a message. Not listed are those that tune the model: the settings of the agent hold.
_ONLY: dict[str, tuple[Any, ...]] = {
    "n": (None, 1),
    "logprobs": (None, False),
    "top_logprobs": (None, 0),
    "logit_bias": (None, {}),
    "stop": (None, []),
    "modalities": (None, ["text"]),
    "audio": (None,),
    "prediction": (None,),
    "functions": (None, []),
    "function_call": (None, "auto", "none"),
    "tool_choice": (None, "auto"),
    "web_search_options": (None,),
}
_ALTERNATIVES = ("str", "text", "image_url")
_DETAILS = {
    "low": message_pb2.IMAGE_DETAIL_LOW,
    "high": message_pb2.IMAGE_DETAIL_HIGH,
}


class _Model(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)


class TextContent(_Model):
    """A part of a message: text."""

    type: Literal["text"]
    text: str


class ImageUrl(_Model):
    """Where an image is."""

    url: str
    detail: str = "auto"


class ImageContent(_Model):
    """A part of a message: an image."""

    type: Literal["image_url"]
    image_url: ImageUrl


ContentPart = Annotated[TextContent | ImageContent, Field(discriminator="type")]


class ChatMessage(_Model):
    """A message of the request."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    name: str = ""
    tool_call_id: str = ""


class FunctionName(_Model):
    """The function of a tool."""

    name: str


class ChatTool(_Model):
    """A tool that the client runs."""

    type: Literal["function"]
    function: FunctionName


class JsonSchema(_Model):
    """The schema of a reply in JSON."""

    name: str
    description: str = ""
    schema_: dict[str, Any] = Field(default_factory=dict, alias="schema")
    strict: bool | None = None


class Format(_Model):
    """What the reply must be."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StreamOptions(_Model):
    """Options of a stream."""

    include_usage: bool | None = None


class ChatRequest(_Model):
    """The body of ``POST /v1/chat/completions``."""

    model: str
    messages: list[ChatMessage] = Field(min_length=1)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    tools: list[ChatTool] | None = None
    response_format: Format | None = None


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What the client's tool returned.

    Attributes:
        tool_call_id: The call.
        content: What the model is shown.
    """

    tool_call_id: str
    content: str


def parse_chat_request(body: bytes) -> ChatRequest:
    """Returns the request.

    Raises:
        ApiError: It is not valid, or asks for what an agent cannot do.
    """
    try:
        values = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ApiError("The body is not valid JSON.") from error
    if not isinstance(values, dict):
        raise ApiError("The body must be a JSON object.")
    for name, allowed in _ONLY.items():
        if values.get(name) not in allowed:
            raise ApiError(
                f"An agent takes no '{name}' from a request; leave it out.",
                param=name,
                code="unsupported_parameter",
            )
    try:
        return ChatRequest.model_validate(values)
    except ValidationError as error:
        # Of the alternatives of a union, the one that fits best has the problem that is deepest.
        problems = error.errors(include_url=False, include_input=False)
        problem = max(problems, key=lambda one: len(one["loc"]))
        place = _place(problem["loc"])
        raise ApiError(f"'{place}' is not valid: {problem['msg']}.", param=place) from error


def _place(location: Sequence[str | int]) -> str:
    place = ""
    for step in location:
        if isinstance(step, int):
            place += f"[{step}]"
        # The names of the alternatives of a union are of no use to the client.
        elif "[" not in step and not (step in _ALTERNATIVES and place.endswith(("]", "content"))):
            place += f".{step}" if place else step
    return place


def new_messages(messages: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
    """Returns the messages after the last one of the assistant: the agent knows the others."""
    last = max(
        (number for number, message in enumerate(messages) if message.role == "assistant"),
        default=-1,
    )
    return messages[last + 1 :]


def tool_results(messages: Sequence[ChatMessage]) -> Sequence[ToolResult]:
    """Returns the results of the client's tools; none if the messages are no results.

    Raises:
        ApiError: Results and other messages are mixed.
    """
    results = [message for message in messages if message.role == "tool"]
    if results and len(results) < len(messages):
        raise ApiError(
            "Send the results of tools alone, and other messages after the reply to them.",
            param="messages",
        )
    return [ToolResult(message.tool_call_id, _text_of(message)) for message in results]


def _text_of(message: ChatMessage) -> str:
    if isinstance(message.content, list):
        if not all(isinstance(part, TextContent) for part in message.content):
            raise ApiError("The result of a tool must be text.", param="messages")
        return "".join(part.text for part in message.content if isinstance(part, TextContent))
    return message.content or ""


def message_inputs(messages: Sequence[ChatMessage]) -> list[message_pb2.MessageInput]:
    """Returns the messages for the agent.

    Raises:
        ApiError: There is none, or an image cannot be read.
    """
    if not messages:
        raise ApiError(
            "The last message is one of the assistant. Send a new message after it.",
            param="messages",
        )
    return [
        message_pb2.MessageInput(
            role=message_pb2.ROLE_USER if message.role == "user" else message_pb2.ROLE_SYSTEM,
            parts=_parts_of(message),
            name=message.name,
        )
        for message in messages
    ]


def _parts_of(message: ChatMessage) -> list[message_pb2.Part]:
    content = message.content
    if not isinstance(content, list):
        return [message_pb2.Part(text=message_pb2.TextPart(text=content or ""))]
    return [
        message_pb2.Part(text=message_pb2.TextPart(text=part.text))
        if isinstance(part, TextContent)
        else message_pb2.Part(image=_image_of(part.image_url))
        for part in content
    ]


def _image_of(image: ImageUrl) -> message_pb2.ImagePart:
    detail = _DETAILS.get(image.detail, message_pb2.IMAGE_DETAIL_UNSPECIFIED)
    if not image.url.startswith("data:"):
        return message_pb2.ImagePart(url=image.url, detail=detail)
    head, comma, data = image.url.removeprefix("data:").partition(",")
    media_type, _, encoding = head.partition(";")
    decoded = _from_base64(data) if comma and encoding == "base64" else None
    if decoded is None:
        raise ApiError("An image must be an https URL, or a data URL in base64.", param="messages")
    return message_pb2.ImagePart(media_type=media_type, data=decoded, detail=detail)


def _from_base64(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None


def response_format_of(asked: Format | None) -> response_format_pb2.ResponseFormat | None:
    """Returns what the reply must be; None for what the agent says.

    Raises:
        ApiError: The schema is missing.
    """
    if asked is None or asked.type == "text":
        return None
    if asked.type == "json_object":
        return response_format_pb2.ResponseFormat(
            json_object=response_format_pb2.JsonObjectFormat()
        )
    schema = asked.json_schema
    if schema is None:
        raise ApiError("'json_schema' is missing.", param="response_format.json_schema")
    return response_format_pb2.ResponseFormat(
        json_schema=response_format_pb2.JsonSchemaFormat(
            name=schema.name,
            description=schema.description,
            schema_json=json.dumps(schema.schema_),
            strict=schema.strict,
        )
    )
