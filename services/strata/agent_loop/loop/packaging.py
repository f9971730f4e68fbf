"""Tool returns and summaries as the model reads them (blueprint §16.2, §17.2, observed §4)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from strata.agent_loop.domain.messages import NestedCall, Provenance, ToolReturn, ToolStatus
from strata.agent_loop.domain.tools import ToolResult
from strata.agent_loop.models.domain import ToolCall
from strata.agent_loop.prompts.system_message import format_time
from strata.agent_loop.prompts.system_message import zone as time_zone
from strata.agent_loop.rules.refusals import BY_CLIENT, DENIED, NOT_STARTED_WITH
from strata.shared.tool_returns import packed

MIN_RETURN_CHARS = 5000
_WINDOW_SHARE = 0.2
_CHARS_PER_TOKEN = 4

SUMMARY_NOTE = (
    "Note: prior messages have been hidden from view due to conversation memory constraints.\n"
    "The following is a summary of the previous messages:\n "
)

HIDDEN = "[This is an automated system message hidden from the user] "
"""How a text begins that stands in the user's place."""

CANCELLED = (
    "The run was cancelled while this call was running; whether it had its effect is not known."
)
NOT_STARTED = "The run was cancelled before this call was started."
OUTCOME_UNKNOWN = (
    "The process that ran this call stopped before it could report. Whether the call had its"
    " effect is unknown; it was not repeated. Find out before you call it again."
)


def with_calls(text: str, calls: Sequence[NestedCall]) -> str:
    """Returns words about code that was lost, with the calls that it had made by then."""
    if not calls:
        return text
    told = ", ".join(
        f"{call.name} ({'refused' if call.refused else call.status.value})" for call in calls
    )
    return f"{text} By then its code had called: {told}."


EXPIRED = f"{DENIED} Nobody answered before the deadline of the request."
UNANSWERED = f"{DENIED} The user did not answer the request and went on with another message."
NO_RETURN = f"{BY_CLIENT}, and it gave no return."
NO_RETURN_IN_TIME = f"{BY_CLIENT}, which gave no return before the deadline of the request."
NOT_WAITED_FOR = (
    f"{BY_CLIENT}, which had given no return when the conversation went on with another message."
)
NOT_REACHED = (
    f"{NOT_STARTED_WITH} it was approved, but the run that had the approval ended before it came"
    " to the call. Ask for it again if it is still wanted."
)
DEPENDED = f"{NOT_STARTED_WITH} it waited for the approval of other calls of the same reply."


def denied(reason: str) -> str:
    """Returns what the model is told of a call that a person has denied (observed §9)."""
    return f"{DENIED} User reason: {reason}" if reason else DENIED


def package(status: ToolStatus, message: str | Mapping[str, Any], now: datetime, zone: str) -> str:
    """Returns the JSON text that stands for a tool's return."""
    return packed(status.value, message, now.astimezone(time_zone(zone)))


def pack_summary(text: str, made: datetime | None, zone: str) -> str:
    """Returns the JSON text that stands for a summary (blueprint §16.2).

    The time is that of the summary and not the present one, so that the prompt stays the same.
    """
    body = {"type": "system_alert", "message": SUMMARY_NOTE + text}
    if made is not None:
        body["time"] = format_time(made, zone)
    return json.dumps(body, ensure_ascii=False)


def pack_heartbeat(reason: str, now: datetime, zone: str) -> str:
    """Returns the JSON text that asks the model to go on (blueprint §17.4, observed §8)."""
    body = {"type": "heartbeat", "reason": HIDDEN + reason, "time": format_time(now, zone)}
    return json.dumps(body, ensure_ascii=False, indent=2)


def own_result(
    call: ToolCall, status: ToolStatus, message: str, now: datetime, zone: str
) -> ToolResult:
    """Returns a result that the loop itself gives, without running a tool."""
    content = package(status, message, now, zone)
    return ToolResult(ToolReturn(call.id, call.name, status, content, provenance=Provenance.SYSTEM))


def return_limit(context_window: int) -> int:
    """Returns how many characters of one return a request shows (observed §4)."""
    return max(MIN_RETURN_CHARS, int(context_window * _WINDOW_SHARE * _CHARS_PER_TOKEN))


def cut_return(content: str, limit: int) -> str:
    """Cuts a packaged return to about `limit` characters of message. JSON stays JSON.

    The old server cut the packaged text itself, which left the model half a JSON document
    (observed §4 and §12). What is stored is never cut.
    """
    if len(content) <= limit:
        return content
    try:
        body = json.loads(content)
    except ValueError:
        return _cut(content, limit)
    if not isinstance(body, dict) or "message" not in body:
        return _cut(content, limit)
    message = body["message"]
    if not isinstance(message, str):
        message = json.dumps(message, ensure_ascii=False)
    rest = len(json.dumps({**body, "message": ""}, ensure_ascii=False, indent=2))
    kept = max(0, limit - rest)
    body["message"] = _cut(message, kept)
    # Quotes and line ends double when they are escaped, so the text may still be too long.
    while kept and len(packed := json.dumps(body, ensure_ascii=False, indent=2)) > limit + 64:
        kept = max(0, kept - max(len(packed) - limit, kept // 8, 1))
        body["message"] = _cut(message, kept)
    return json.dumps(body, ensure_ascii=False, indent=2)


def _cut(text: str, kept: int) -> str:
    if len(text) <= kept:
        return text
    return f"{text[:kept]}... [truncated {len(text) - kept} chars]"
