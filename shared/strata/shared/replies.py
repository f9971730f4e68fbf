"""Extracts the text that an agent addresses to others: ``send_message`` calls or plain text."""

from __future__ import annotations

from collections.abc import Sequence

from strata.api.common.v1 import message_pb2
from strata.shared.json_text import JsonTextError, encodable_text, parse_json
from strata.shared.tool_catalogue import CATALOGUE, TEXT_TOOLS

BETWEEN_TEXTS = "\n\n"
"""Separator between the texts of several calls of ``send_message`` in one message."""


def words_of(message: message_pb2.Message) -> Sequence[str]:
    """Returns the texts that an assistant message addresses to others.

    These are the texts of its calls of ``send_message``, or else its own text. Text beside calls
    of the V2 loop is reasoning and does not count (`TextPart.beside_call`, and
    `TextDelta.beside_call` while it is streamed).
    The result is empty for other messages and for blank text.
    """
    if message.role != message_pb2.ROLE_ASSISTANT:
        return []
    calls = [part.tool_call for part in message.parts if part.HasField("tool_call")]
    texts = [text for call in calls if (text := sent_text(call.name, call.arguments)) is not None]
    if not texts:
        texts = ["".join(part.text.text for part in message.parts if not _is_thought(part, calls))]
    return [text for text in texts if text.strip()]


def sent_text(name: str, arguments: str) -> str | None:
    """Returns the text that a call sends to the user; None for calls of tools that send none.

    Args:
        name: Name of the tool.
        arguments: The arguments of the call, a JSON object.
    """
    if name not in TEXT_TOOLS:
        return None
    try:
        values = parse_json(arguments)
    except JsonTextError:
        return None
    text = values.get(CATALOGUE[name].text_argument) if isinstance(values, dict) else None
    # An escape can encode an unpaired surrogate, which a proto string cannot hold.
    return encodable_text(text) if isinstance(text, str) else None


def is_sent(tool_return: message_pb2.ToolReturnPart) -> bool:
    """Returns whether a tool return only confirms that ``send_message`` sent its text."""
    was_sent = tool_return.status == message_pb2.TOOL_STATUS_OK
    return was_sent and tool_return.name in TEXT_TOOLS


def as_text(message: message_pb2.Message) -> message_pb2.Message | None:
    """Returns a message in which the text of ``send_message`` calls is the agent's plain text.

    The call becomes a text part. Text beside it, or beside other calls of the V2 loop, becomes
    reasoning, as it does in a request for approval. The return of a successful call is left out. A
    call without a text argument stays, and so does a call that waits for approval, because nothing
    has been sent yet.

    Returns:
        The same object if nothing changes; None if the message would be empty.
    """
    if message.role == message_pb2.ROLE_TOOL:
        return _without_sent(message)
    if message.role not in (message_pb2.ROLE_ASSISTANT, message_pb2.ROLE_APPROVAL):
        return message
    calls = [part.tool_call for part in message.parts if part.HasField("tool_call")]
    waits = message.role == message_pb2.ROLE_APPROVAL
    sends = not waits and any(sent_text(call.name, call.arguments) is not None for call in calls)
    if not sends and not any(_is_thought(part, calls) for part in message.parts):
        return message
    out = message_pb2.Message()
    out.CopyFrom(message)
    del out.parts[:]
    texts: list[str] = []
    for part in message.parts:
        call = part.tool_call if part.HasField("tool_call") else None
        text = sent_text(call.name, call.arguments) if sends and call is not None else None
        if text is not None:
            # Readers join the texts of a message.
            between = BETWEEN_TEXTS if any(texts) and text else ""
            texts.append(between + text)
            out.parts.add().text.text = texts[-1]
        elif part.HasField("text") and (sends or _is_thought(part, calls)):
            out.parts.add().reasoning.text = part.text.text
        else:
            out.parts.add().CopyFrom(part)
    return out


def _is_thought(part: message_pb2.Part, calls: Sequence[message_pb2.ToolCallPart]) -> bool:
    """Returns whether a part is text beside calls of the V2 loop.

    Args:
        part: The part.
        calls: The calls of its message. Releases that did not mark the text set
            ``request_heartbeat`` in most calls of the V2 loop.
    """
    if not part.HasField("text"):
        return False
    return part.text.beside_call or any(call.HasField("request_heartbeat") for call in calls)


def _without_sent(message: message_pb2.Message) -> message_pb2.Message | None:
    remaining = [
        part
        for part in message.parts
        if not (part.HasField("tool_return") and is_sent(part.tool_return))
    ]
    if len(remaining) == len(message.parts):
        return message
    if not remaining:
        return None
    out = message_pb2.Message()
    out.CopyFrom(message)
    del out.parts[:]
    out.parts.extend(remaining)
    return out
