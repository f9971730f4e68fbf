"""Validates a chat completion request, and converts it to the input of the agent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from strata.api.common.v1 import message_pb2, response_format_pb2
from strata.gateway.http.openai_api.bodies import Body, parse_body
from strata.gateway.http.openai_api.errors import ApiError
from strata.gateway.http.openai_api.inputs import (
    AgentInput,
    ClientToolResult,
    FormatKind,
    JsonSchema,
    agent_input,
    image_part,
    message_input,
    response_format_of,
    text_part,
    without_known,
)

# The accepted values of parameters that would change the reply and that an agent cannot take from a
# request. Parameters that tune the model are not listed: the settings of the agent apply, and the
# reply names the parameters.
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
_MESSAGES = "messages"
FORMAT_PARAM = "response_format.json_schema"
"""The parameter with the schema of a reply."""


class TextContent(Body):
    """A part of a message: text."""

    type: Literal["text"]
    text: str


class ImageUrl(Body):
    """The location of an image."""

    url: str
    detail: str | None = None


class ImageContent(Body):
    """A part of a message: an image."""

    type: Literal["image_url"]
    image_url: ImageUrl


ContentPart = Annotated[TextContent | ImageContent, Field(discriminator="type")]


class ChatMessage(Body):
    """A message of the request."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_call_id: str | None = None


class FunctionName(Body):
    """The function of a tool."""

    name: str


class ChatTool(Body):
    """A tool that the client runs."""

    type: Literal["function"]
    function: FunctionName


class ReplyFormat(Body):
    """The required format of the reply."""

    type: FormatKind
    json_schema: JsonSchema | None = None


class StreamOptions(Body):
    """Options of a stream."""

    include_usage: bool | None = None


class ChatRequest(Body):
    """The body of ``POST /v1/chat/completions``."""

    model: str
    messages: list[ChatMessage] = Field(min_length=1)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    tools: list[ChatTool] | None = None
    response_format: ReplyFormat | None = None

    @field_validator("messages", mode="before")
    @classmethod
    def _unknown_messages(cls, messages: Any) -> Any:
        return without_known(messages, _is_reply, {"role": "assistant"})

    @property
    def tool_names(self) -> Sequence[str]:
        """The names of the tools."""
        return [tool.function.name for tool in self.tools or ()]

    @property
    def without_effect(self) -> Sequence[str]:
        """The names of the parameters that have no effect."""
        return self.ignored_parameters(_ONLY)

    def agent_input(self) -> AgentInput:
        """Returns the input of the agent.

        Raises:
            ApiError: There is nothing new, or it cannot be sent.
        """
        return agent_input(
            self.messages,
            param=_MESSAGES,
            is_reply=lambda message: message.role == "assistant",
            result_of=_result_of,
            message_of=_message_of,
        )

    def agent_format(self) -> response_format_pb2.ResponseFormat | None:
        """Returns what the reply must be; None for free text.

        Raises:
            ApiError: The schema is missing.
        """
        response_format = self.response_format
        if response_format is None:
            return None
        return response_format_of(response_format.type, response_format.json_schema, FORMAT_PARAM)


def parse_chat_request(body: bytes) -> ChatRequest:
    """Returns the request.

    Raises:
        ApiError: It is not valid, or requires something that an agent cannot do.
    """
    return parse_body(body, ChatRequest, _ONLY, {})


def _is_reply(message: Any) -> bool:
    return isinstance(message, dict) and message.get("role") == "assistant"


def _result_of(message: ChatMessage) -> ClientToolResult | None:
    if message.role != "tool":
        return None
    if not isinstance(message.content, list):
        return ClientToolResult(message.tool_call_id or "", message.content or "")
    texts = [part.text for part in message.content if isinstance(part, TextContent)]
    if len(texts) < len(message.content):
        raise ApiError("The result of a tool must be text.", param=_MESSAGES)
    return ClientToolResult(message.tool_call_id or "", "".join(texts))


def _message_of(message: ChatMessage) -> message_pb2.MessageInput:
    return message_input(message.role, _parts_of(message.content), message.name or "")


def _parts_of(content: str | Sequence[ContentPart] | None) -> Sequence[message_pb2.Part]:
    if content is None or isinstance(content, str):
        return [text_part(content or "")]
    return [
        text_part(part.text)
        if isinstance(part, TextContent)
        else image_part(part.image_url.url, part.image_url.detail, _MESSAGES)
        for part in content
    ]
