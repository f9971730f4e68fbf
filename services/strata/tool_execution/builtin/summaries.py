"""The tool ``expand_summary``, which returns the messages behind a summary in pages."""

from __future__ import annotations

import json
from typing import Any

from strata.api.common.v1 import message_pb2 as common
from strata.api.recall.v1 import message_service_pb2 as message_pb
from strata.api.recall.v1 import message_service_pb2_grpc as message_grpc
from strata.protocol.images import image_text
from strata.shared.convert.messages import returned_text, role_name, taint_of_messages
from strata.shared.json_text import indented_json
from strata.shared.search.time_expressions import zone_of
from strata.shared.tool_schemas import date, integer, parameters
from strata.tool_execution.builtin.retrieval import local_time
from strata.tool_execution.builtin.schemas import builtin
from strata.tool_execution.domain.dates import start_of
from strata.tool_execution.domain.tools import CallingAgent, Output, ToolCall, ToolType

PAGE_CHARS = 4_000
"""Characters of a page. The smallest return limit of the agent loop (5,000) shows it completely."""

_MESSAGES = 20
# Limit of one message among others; a single message may fill the page.
_MESSAGE_CHARS = 1_000

EXPAND_SUMMARY = builtin(
    name="expand_summary",
    description=(
        "Read the messages that the summary at the top of this conversation replaces, word for "
        "word and in order. Use it when the summary mentions something but leaves out the details"
        " you need; to find one thing among many, use conversation_search. Messages are numbered;"
        " the return names the number to continue with."
    ),
    kind=ToolType.CORE,
    parameters=parameters(
        [],
        first_number=integer("Start with the message of this number.", minimum=0),
        start_date=date("Start with the messages from then on: YYYY-MM-DD or YYYY-MM-DDTHH:MM."),
        limit=integer("How many messages to return at most (default 20).", minimum=1, maximum=100),
    ),
)


class ExpandSummary:
    """Runs ``expand_summary``."""

    names = frozenset({"expand_summary"})

    def __init__(self, messages: message_grpc.MessageServiceStub) -> None:
        self._messages = messages

    async def run(self, call: ToolCall, arguments: dict[str, Any], caller: CallingAgent) -> Output:
        """Reads a page of the messages that the newest summary of the conversation replaces.

        Raises:
            ToolError: A date is not ISO 8601.
            StrataError: Recall refused the request.
        """
        timezone = zone_of(caller.timezone)
        request = message_pb.ExpandSummaryRequest(
            conversation_id=caller.conversation_id,
            from_sequence=arguments.get("first_number", 0),
            page_size=arguments.get("limit", _MESSAGES),
        )
        since = start_of(arguments.get("start_date"), "start_date", timezone)
        if since is not None:
            request.start_time.FromDatetime(since)
        response = await self._messages.ExpandSummary(request)
        if not response.HasField("summary"):
            return Output(
                {"message": "There is no summary: nothing has left your view.", "messages": []}
            )
        # Labels of the summary and of all messages of the page, whether they are shown or not.
        taint = taint_of_messages([response.summary, *response.messages])
        return Output(_page(response, timezone), taint=taint)


def _page(response: message_pb.ExpandSummaryResponse, timezone: Any) -> dict[str, Any]:
    limit = PAGE_CHARS if len(response.messages) == 1 else _MESSAGE_CHARS
    entries: list[dict[str, Any]] = []
    next_number = response.next_sequence
    space = PAGE_CHARS
    for message in response.messages:
        result = _result(message, timezone, limit)
        space -= len(indented_json(result))
        if entries and space < 0:
            next_number = message.sequence
            break
        entries.append(result)
    [part] = [part.summary for part in response.summary.parts if part.HasField("summary")]
    numbers = f"numbers {part.first_sequence} to {part.last_sequence}"
    note = f"Showing {len(entries)} of the messages that the summary replaces ({numbers})."
    if not entries:
        note = f"The summary replaces no messages from there on ({numbers})."
    elif next_number:
        note += f" Continue with first_number {next_number}."
    return {"message": note, "messages": entries, "next_number": next_number or None}


def _result(message: common.Message, timezone: Any, limit: int) -> dict[str, Any]:
    result: dict[str, Any] = {
        "number": message.sequence,
        "timestamp": local_time(message.create_time, timezone).isoformat(timespec="seconds"),
        "role": message.name or role_name(message.role),
    }
    pieces = [
        returned_text(part.tool_return) if part.HasField("tool_return") else part.text.text
        for part in message.parts
    ]
    pieces += [image_text(part.image.alt_text) for part in message.parts if part.HasField("image")]
    pieces += [
        f"{part.tool_call.name}({part.tool_call.arguments})"
        for part in message.parts
        if part.HasField("tool_call")
    ]
    result["content"] = _cut("\n".join(piece for piece in pieces if piece), limit)
    return result


def _cut(text: str, limit: int) -> str:
    """Cuts a text to `limit` characters as JSON, and notes how much is missing."""
    start = text[:limit]
    while len(json.dumps(start, ensure_ascii=False)) > limit + 2:
        start = start[: int(len(start) * 0.9)]
    missing = len(text) - len(start)
    return f"{start}... [truncated {missing} chars]" if missing else text
