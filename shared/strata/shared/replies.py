"""What an agent says to others in its messages."""

from __future__ import annotations

from collections.abc import Sequence

from strata.api.common.v1 import message_pb2
from strata.shared.json_text import JsonTextError, parse_json
from strata.shared.tool_catalogue import SEND_MESSAGE


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
    return [each for each in sent if each.strip()]


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
    text = values.get("message") if isinstance(values, dict) else None
    return text if isinstance(text, str) else None
