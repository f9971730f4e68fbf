"""Validates a request of the Responses API, and converts it to the input of the agent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, field_validator

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
    "instructions": (None, ""),
    "background": (None, False),
    "prompt": (None,),
    "tool_choice": (None, "auto"),
    "max_tool_calls": (None,),
    "top_logprobs": (None, 0),
    "context_management": (None, []),
    "moderation": (None,),
}
_REASONS = {
    "instructions": "The agent has its own system prompt.",
    "background": (
        "A run continues when its client leaves; RunService.StartRun does not wait for it."
    ),
    "prompt": "The agent has its own system prompt.",
    "context_management": "The agent compacts its context itself.",
}
_LOGPROBS = "message.output_text.logprobs"
_INPUT = "input"
FORMAT_PARAM = "text.format"
"""The parameter with the schema of a reply."""


class InputText(Body):
    """A part of a message: text."""

    type: Literal["input_text", "output_text"]
    text: str


class InputImage(Body):
    """A part of a message: an image."""

    type: Literal["input_image"]
    image_url: str
    detail: str | None = None


InputPart = Annotated[InputText | InputImage, Field(discriminator="type")]


class InputMessage(Body):
    """A message for the agent."""

    role: Literal["system", "developer", "user"]
    content: str | list[InputPart]


class FunctionOutput(Body):
    """The return of a tool of the client."""

    call_id: str
    output: str | list[InputPart]


class AgentItem(Body):
    """An item that the agent wrote, and so already has."""


def _kind_of(item: Any) -> str | None:
    """Returns the tag of an item; messages need not name their type."""
    if not isinstance(item, dict):
        return None
    kind = item.get("type", "message")
    if kind == "message" and item.get("role") == "assistant":
        return "assistant"
    return kind if isinstance(kind, str) else None


_OF_THE_AGENT = ("assistant", "function_call", "reasoning")

InputItem = Annotated[
    Annotated[InputMessage, Tag("message")]
    | Annotated[FunctionOutput, Tag("function_call_output")]
    | Annotated[AgentItem, Tag("assistant")]
    | Annotated[AgentItem, Tag("function_call")]
    | Annotated[AgentItem, Tag("reasoning")],
    Discriminator(
        _kind_of,
        custom_error_type="unknown_item",
        custom_error_message="An item must be a message, a function_call_output, or an item of an"
        " earlier response",
    ),
]


class FunctionTool(Body):
    """A tool that the client runs."""

    type: Literal["function"]
    name: str


class ConversationName(Body):
    """Names a conversation."""

    id: str


class TextFormat(Body):
    """The required format of the reply."""

    type: FormatKind
    name: str = ""
    description: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class TextOptions(Body):
    """Options of the text of the reply."""

    format: TextFormat | None = None


class ResponsesRequest(Body):
    """The body of ``POST /v1/responses``."""

    model: str
    input: str | list[InputItem]
    stream: bool | None = None
    conversation: str | ConversationName | None = None
    previous_response_id: str | None = None
    user: str | None = None
    tools: list[FunctionTool] | None = None
    text: TextOptions | None = None
    include: list[str] | None = None

    @field_validator("input", mode="before")
    @classmethod
    def _unknown_items(cls, items: Any) -> Any:
        known = {"type": "message", "role": "assistant"}
        return without_known(items, lambda item: _kind_of(item) in _OF_THE_AGENT, known)

    @property
    def tool_names(self) -> Sequence[str]:
        """The names of the tools."""
        return [tool.name for tool in self.tools or ()]

    @property
    def without_effect(self) -> Sequence[str]:
        """The names of the parameters that have no effect."""
        return self.ignored_parameters(_ONLY)

    @property
    def conversation_id(self) -> str | None:
        """The id of the conversation, if one is named."""
        conversation = self.conversation
        return conversation.id if isinstance(conversation, ConversationName) else conversation

    @property
    def text_format(self) -> dict[str, Any]:
        """The required format of the reply, as the response repeats it."""
        text_format = self.text.format if self.text is not None else None
        if text_format is None:
            return {"type": "text"}
        return text_format.model_dump(by_alias=True, exclude_unset=True)

    def agent_input(self) -> AgentInput:
        """Returns the input of the agent.

        Raises:
            ApiError: There is nothing new, or it cannot be sent.
        """
        if isinstance(self.input, str):
            return AgentInput([message_input("user", [text_part(self.input)])], (), _INPUT)
        return agent_input(
            self.input,
            param=_INPUT,
            is_reply=lambda item: isinstance(item, AgentItem),
            result_of=_result_of,
            message_of=_message_of,
        )

    def agent_format(self) -> response_format_pb2.ResponseFormat | None:
        """Returns the required format of the reply; None for free text.

        Raises:
            ApiError: The schema is missing.
        """
        text_format = self.text.format if self.text is not None else None
        if text_format is None:
            return None
        schema = None
        if text_format.schema_ is not None:
            schema = JsonSchema(
                name=text_format.name,
                description=text_format.description,
                schema=text_format.schema_,
                strict=text_format.strict,
            )
        return response_format_of(text_format.type, schema, f"{FORMAT_PARAM}.schema")


def parse_responses_request(body: bytes) -> ResponsesRequest:
    """Returns the request.

    Raises:
        ApiError: It is not valid, or requires something that an agent cannot do.
    """
    request = parse_body(body, ResponsesRequest, _ONLY, _REASONS)
    if request.conversation is not None and request.previous_response_id is not None:
        raise ApiError(
            "'conversation' and 'previous_response_id' cannot both be set.",
            param="previous_response_id",
        )
    if request.include is not None and _LOGPROBS in request.include:
        raise ApiError(
            f"Agents do not return '{_LOGPROBS}'; leave it out.",
            param="include",
            code="unsupported_parameter",
        )
    return request


def _result_of(item: InputItem) -> ClientToolResult | None:
    if not isinstance(item, FunctionOutput):
        return None
    if isinstance(item.output, str):
        return ClientToolResult(item.call_id, item.output)
    texts = [part.text for part in item.output if isinstance(part, InputText)]
    if len(texts) < len(item.output):
        raise ApiError("The result of a tool must be text.", param=_INPUT)
    return ClientToolResult(item.call_id, "".join(texts))


def _message_of(item: InputItem) -> message_pb2.MessageInput:
    assert isinstance(item, InputMessage)
    if isinstance(item.content, str):
        return message_input(item.role, [text_part(item.content)])
    parts = [
        text_part(part.text)
        if isinstance(part, InputText)
        else image_part(part.image_url, part.detail, _INPUT)
        for part in item.content
    ]
    return message_input(item.role, parts)
