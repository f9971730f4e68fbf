"""What an agent says to others in its messages."""

from __future__ import annotations

from collections.abc import Sequence

from strata.api.common.v1 import message_pb2
from strata.shared.json_text import JsonTextError, encodable_text, parse_json
from strata.shared.tool_catalogue import SEND_MESSAGE

MESSAGE = "message"
"""The argument of ``send_message`` that is the text."""

BETWEEN_TEXTS = "\n\n"
"""What separates the texts of several calls of ``send_message`` in one message."""


def words_of(message: message_pb2.Message) -> Sequence[str]:
    """Returns what an assistant message says; empty for other messages and blank text.

    That is what its calls of ``send_message`` send, or else its text. The text beside calls of the
    V2 loop, which have ``request_heartbeat`` set, is a thought of the agent.
    """
    if message.role != message_pb2.ROLE_ASSISTANT:
        return []
    calls = [part.tool_call for part in message.parts if part.HasField("tool_call")]
    sent = [text for call in calls if (text := sent_text(call.name, call.arguments)) is not None]
    text = "".join(part.text.text for part in message.parts)
    if not sent and not any(call.HasField("request_heartbeat") for call in calls):
        sent = [text]
    return [text for text in sent if text.strip()]


def sent_text(name: str, arguments: str) -> str | None:
    """Returns the text that a call of ``send_message`` sends; None for other calls.

    Args:
        name: Name of the tool.
        arguments: The arguments of the call, a JSON object.
    """
    if name != SEND_MESSAGE:
        return None
    try:
        values = parse_json(arguments)
    except JsonTextError:
        return None
    text = values.get(MESSAGE) if isinstance(values, dict) else None
    # An escape can stand for half a surrogate pair, which no string of a message can hold.
    return encodable_text(text) if isinstance(text, str) else None


def is_sent(tool_return: message_pb2.ToolReturnPart) -> bool:
    """Says whether a return says no more than that ``send_message`` sent its text."""
    sent = tool_return.status == message_pb2.TOOL_STATUS_OK
    return sent and tool_return.name == SEND_MESSAGE


def as_text(message: message_pb2.Message) -> message_pb2.Message | None:
    """Returns a message with what ``send_message`` sends as the agent's text.

    The call becomes a text, the text beside it becomes reasoning, as does text beside other calls
    of the V2 loop, and the return of a call that succeeded is left out. A call whose arguments
    hold no text stays, and so does a call in a request for approval: nothing is sent before the
    answer.

    Returns:
        The same object if nothing is different; None if nothing is left of a message.
    """
    if message.role == message_pb2.ROLE_TOOL:
        return _without_sent(message)
    if message.role != message_pb2.ROLE_ASSISTANT:
        return message
    calls = [part.tool_call for part in message.parts if part.HasField("tool_call")]
    sends = any(sent_text(call.name, call.arguments) is not None for call in calls)
    if not sends and not any(call.HasField("request_heartbeat") for call in calls):
        return message
    out = message_pb2.Message()
    out.CopyFrom(message)
    del out.parts[:]
    texts: list[str] = []
    for part in message.parts:
        call = part.tool_call if part.HasField("tool_call") else None
        text = sent_text(call.name, call.arguments) if call is not None else None
        if text is not None:
            # Readers join the texts of a message.
            between = BETWEEN_TEXTS if any(texts) and text else ""
            texts.append(between + text)
            out.parts.add().text.text = texts[-1]
        elif part.HasField("text"):
            out.parts.add().reasoning.text = part.text.text
        else:
            out.parts.add().CopyFrom(part)
    return out


def _without_sent(message: message_pb2.Message) -> message_pb2.Message | None:
    kept = [
        part
        for part in message.parts
        if not (part.HasField("tool_return") and is_sent(part.tool_return))
    ]
    if len(kept) == len(message.parts):
        return message
    if not kept:
        return None
    out = message_pb2.Message()
    out.CopyFrom(message)
    del out.parts[:]
    out.parts.extend(kept)
    return out
