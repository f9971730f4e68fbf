"""Converts messages of A2A to messages for an agent."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from a2a.types import a2a_pb2 as a2a
from a2a.utils.errors import (
    ContentTypeNotSupportedError,
    InvalidParamsError,
    PushNotificationNotSupportedError,
)
from a2a.utils.task import validate_history_length
from google.protobuf import json_format

from strata.api.common.v1 import message_pb2
from strata.api.gateway.v1 import run_service_pb2

INPUT_MODES = (
    "text/plain",
    "application/json",
    "image/png",
    "image/jpeg",
    "image/gif",
    "image/webp",
)
"""Media types that agents can be sent."""
OUTPUT_MODES = ("text/plain",)
"""Media types of what agents reply."""

_DECISIONS = "decisions"
_HOW_TO_ANSWER = (
    "Answer with one data part, such as"
    ' {"decisions": [{"toolCallId": "…", "approve": true}]}; a call that the client runs is'
    ' answered with "clientReturn".'
)


def check_message(request: a2a.SendMessageRequest) -> None:
    """Checks what does not depend on the task.

    Raises:
        A2AError: The message is not complete, or requires something that an agent cannot do.
    """
    message, configuration = request.message, request.configuration
    if not message.message_id:
        raise InvalidParamsError("message.messageId is required.")
    if message.role != a2a.ROLE_USER:
        raise InvalidParamsError("message.role must be the role of the user.")
    if not message.parts:
        raise InvalidParamsError("message.parts must not be empty.")
    validate_history_length(configuration)
    if configuration.HasField("task_push_notification_config"):
        raise PushNotificationNotSupportedError(
            "Agents send no push notifications; subscribe to the task, or create a webhook."
        )
    modes = configuration.accepted_output_modes
    if modes and not any(mode == "*/*" or mode.startswith("text") for mode in modes):
        raise ContentTypeNotSupportedError("An agent replies with text/plain only.")


def request_id_of(agent_id: str, message: a2a.Message) -> str:
    """Returns the id of the request, so that a message that is sent again has no second effect."""
    digest = hashlib.sha256(f"{agent_id}\n{message.message_id}".encode()).hexdigest()
    return f"a2a-{digest}"


def message_input(message: a2a.Message) -> message_pb2.MessageInput:
    """Returns the message for the agent.

    Raises:
        ContentTypeNotSupportedError: A part is not text, JSON or an image.
    """
    return message_pb2.MessageInput(
        role=message_pb2.ROLE_USER,
        parts=[_part(part) for part in message.parts],
        client_message_id=message.message_id,
    )


def decisions_of(message: a2a.Message) -> Sequence[message_pb2.ApprovalDecision]:
    """Returns the decisions about the tool calls for which a task waits.

    Raises:
        InvalidParamsError: The message has none.
    """
    decisions = [part.data.struct_value for part in message.parts]
    if len(decisions) != 1 or set(decisions[0]) != {_DECISIONS}:
        raise InvalidParamsError(f"The task waits for decisions. {_HOW_TO_ANSWER}")
    try:
        answer = json_format.ParseDict(
            json_format.MessageToDict(decisions[0]), run_service_pb2.RespondToApprovalRequest()
        )
    except json_format.ParseError as error:
        problem = str(error).partition("\n")[0]
        raise InvalidParamsError(f"The decisions are not valid: {problem}") from error
    return answer.decisions


def question(approval: message_pb2.ApprovalRequestPart) -> Sequence[a2a.Part]:
    """Returns what a waiting task requires: a sentence, and the tool calls as data."""
    names = ", ".join(sorted({call.name for call in approval.tool_calls}))
    approval_request = message_pb2.ApprovalRequestPart(
        approval_id=approval.approval_id,
        tool_calls=approval.tool_calls,
        expire_time=approval.expire_time,
        bindings=approval.bindings,
    )
    data = a2a.Part()
    json_format.ParseDict(json_format.MessageToDict(approval_request), data.data)
    return [a2a.Part(text=f"Calls of {names} wait for a decision. {_HOW_TO_ANSWER}"), data]


def _part(part: a2a.Part) -> message_pb2.Part:
    match part.WhichOneof("content"):
        case "text":
            return message_pb2.Part(text=message_pb2.TextPart(text=part.text))
        case "data":
            text = json.dumps(json_format.MessageToDict(part.data), ensure_ascii=False)
            return message_pb2.Part(text=message_pb2.TextPart(text=text))
        case "raw" if part.media_type.startswith("image/"):
            return message_pb2.Part(
                image=message_pb2.ImagePart(media_type=part.media_type, data=part.raw)
            )
        case "url" if part.media_type.startswith("image/"):
            return message_pb2.Part(
                image=message_pb2.ImagePart(media_type=part.media_type, url=part.url)
            )
        case _:
            kind = part.media_type or "without a media type"
            raise ContentTypeNotSupportedError(
                f"A part of a message must be text, data or an image, not a file {kind}."
            )
