"""Messages as one line of text."""

from __future__ import annotations

from collections.abc import Iterator

from strata.api.common.v1 import message_pb2
from strata.cli.chat.turn_view import compact_arguments
from strata.cli.output import when
from strata.client.client_tools import calls_by_client
from strata.protocol.images import image_text
from strata.shared.convert.enums import enum_name
from strata.shared.one_line import clipped
from strata.shared.tool_returns import result_of

_TEXT_CHARS = 160


def message_row(message: message_pb2.Message) -> tuple[str, str, str, str]:
    """Returns time, speaker, text and id of a message."""
    text = clipped(text_of(message), _TEXT_CHARS)
    return when(message.create_time), speaker_of(message), text, message.id


def speaker_of(message: message_pb2.Message) -> str:
    """Returns the name of the speaker, or the role."""
    return message.name or enum_name(message_pb2.Role, message.role)


def text_of(message: message_pb2.Message) -> str:
    """Returns the parts of a message as text."""
    return " ".join(text for part in message.parts for text in _texts(part) if text)


def _texts(part: message_pb2.Part) -> Iterator[str]:
    match part.WhichOneof("content"):
        case "text":
            yield part.text.text
        case "summary":
            yield part.summary.text
        case "image":
            yield image_text(part.image.alt_text)
        case "tool_call":
            yield f"→ {part.tool_call.name}({compact_arguments(part.tool_call.arguments)})"
        case "tool_return":
            yield f"← {part.tool_return.name}: {result_of(part.tool_return.content)}"
        case "approval_request":
            asked = part.approval_request
            by_client = calls_by_client(asked)
            for call in asked.tool_calls:
                wants = "the return" if call.tool_call_id in by_client else "approval"
                yield f"[asks for {wants} of {call.name}({call.arguments})]"
        case "approval_response":
            yield "[answers a request for approval]"
        case _:
            # Reasoning is not part of the conversation.
            return
