"""Messages of a user, and what tests read from stored messages."""

from __future__ import annotations

from collections.abc import Sequence

from strata.api.common.v1 import message_pb2


def text_part(text: str) -> message_pb2.Part:
    """Returns a part that is a text."""
    return message_pb2.Part(text=message_pb2.TextPart(text=text))


def user_message(text: str) -> message_pb2.MessageInput:
    """Returns a message of the user."""
    return message_pb2.MessageInput(role=message_pb2.ROLE_USER, parts=[text_part(text)])


def text_of(message: message_pb2.Message) -> str:
    """Returns the text parts of a message, joined."""
    return "".join(part.text.text for part in message.parts)


def roles(messages: Sequence[message_pb2.Message]) -> list[str]:
    """Returns the roles of messages in lower case: ``system``, ``user``."""
    return [message_pb2.Role.Name(m.role).removeprefix("ROLE_").lower() for m in messages]
