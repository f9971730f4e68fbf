"""Packs messages, tool returns and events into the JSON texts that the model reads.

There are five formats: user message, tool return, login, heartbeat and system alert
(docs/wire-format.md#messages). Times are in the agent's time zone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from strata.agent_loop.domain.conversation.messages import NestedCall, ToolReturn
from strata.agent_loop.domain.model.chat import ToolCall
from strata.agent_loop.domain.tools import ToolResult
from strata.agent_loop.prompts.system_message import format_time
from strata.agent_loop.prompts.system_message import zone as time_zone
from strata.agent_loop.rules.refusals import BY_CLIENT, DENIED, NOT_STARTED_WITH
from strata.shared.json_text import PACKED_JSON_DEPTH, JsonTextError, indented_json, parse_json
from strata.shared.messages import ToolStatus
from strata.shared.provenance import Provenance
from strata.shared.settings import MIB
from strata.shared.space_shares import share_of_each
from strata.shared.tool_returns import packed

MIN_RETURN_CHARS = 5000
MAX_STEP_RETURN_BYTES = 2 * MIB
"""Maximum UTF-8 bytes of the returns of one step, which are stored as one message."""
_CUT_MARGIN = 128
_WINDOW_SHARE = 0.2
_CHARS_PER_TOKEN = 4

SUMMARY_NOTE = (
    "Note: prior messages have been hidden from view due to conversation memory constraints.\n"
    "The following is a summary of the previous messages:\n "
)

HIDDEN = "[This is an automated system message hidden from the user] "
"""First words of system messages that have the user's role."""

FIRST_LOGIN = "Never (first login)"
"""Value of ``last_login`` in the first login event."""

CANCELLED = (
    "The run was cancelled while this call was running; whether it had its effect is not known."
    " Find out before you call it again."
)
TIMED_OUT = (
    "The time of the run was over while this call was running; whether it had its effect is not"
    " known. Find out before you call it again."
)
NOT_STARTED = "The run ended before this call was started."
OUTCOME_UNKNOWN = (
    "The process that ran this call stopped before it could report. Whether the call had its"
    " effect is unknown; it was not repeated. Find out before you call it again."
)


def with_calls(text: str, calls: Sequence[NestedCall]) -> str:
    """Returns the result text of lost code, with the list of calls that the code made."""
    if not calls:
        return text
    called = ", ".join(
        f"{call.name} ({'refused' if call.refused else call.status.value})" for call in calls
    )
    return f"{text} By then its code had called: {called}."


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
    """Returns the result text of a call that a person denied."""
    return f"{DENIED} User reason: {reason}" if reason else DENIED


def package(
    status: ToolStatus, message: str | Mapping[str, Any] | None, now: datetime, zone: str
) -> str:
    """Returns a tool return as JSON text."""
    return packed(status.value, message, now.astimezone(time_zone(zone)))


def pack_user_message(
    text: str, send_time: datetime | None, zone: str, *, location: str = "", name: str = ""
) -> str:
    """Returns a user message as JSON text (decision 0043).

    Args:
        text: The user's text.
        send_time: When it was sent; None leaves the time out.
        zone: The agent's time zone.
        location: The user's location; empty leaves it out.
        name: The user's name; empty leaves it out.
    """
    body = {"type": "user_message", "message": text, **_time(send_time, zone)}
    if location:
        body["location"] = location
    if name:
        body["name"] = name
    return json.dumps(body, ensure_ascii=False)


def pack_login(now: datetime, zone: str) -> str:
    """Returns a login event as JSON text."""
    body = {"type": "login", "last_login": FIRST_LOGIN, **_time(now, zone)}
    return json.dumps(body, ensure_ascii=False)


def pack_alert(text: str, create_time: datetime | None, zone: str) -> str:
    """Returns a system alert as JSON text.

    Args:
        text: The text of the alert.
        create_time: When it was written; None leaves the time out.
        zone: The agent's time zone.
    """
    body = {"type": "system_alert", "message": text, **_time(create_time, zone)}
    return json.dumps(body, ensure_ascii=False)


def pack_summary(text: str, create_time: datetime | None, zone: str) -> str:
    """Returns a summary as JSON text (docs/wire-format.md#summaries).

    It carries the time of the summary, not the current one, so that the prompt stays cacheable.
    """
    return pack_alert(SUMMARY_NOTE + text, create_time, zone)


def pack_heartbeat(reason: str, now: datetime, zone: str) -> str:
    """Returns a heartbeat as JSON text (docs/wire-format.md#heartbeats)."""
    body = {"type": "heartbeat", "reason": HIDDEN + reason, **_time(now, zone)}
    return indented_json(body)


def _time(moment: datetime | None, zone: str) -> dict[str, str]:
    return {} if moment is None else {"time": format_time(moment, zone)}


def limit_images(returns: Sequence[ToolReturn], limit: int) -> tuple[ToolReturn, ...]:
    """Returns the returns of a step with images of at most `limit` bytes in total.

    Images over the limit are replaced by a note in the text of the return.
    """
    limited = []
    for tool_return in returns:
        size = sum(image.size_bytes for image in tool_return.images)
        if size <= limit:
            limit -= size
            limited.append(tool_return)
        else:
            note = (
                f"[{len(tool_return.images)} image(s) omitted: the images of a step are too large.]"
            )
            limited.append(
                replace(tool_return, content=_with_note(tool_return.content, note), images=())
            )
    return tuple(limited)


def _with_note(content: str, note: str) -> str:
    try:
        body = json.loads(content)
    except ValueError:
        body = None
    if not isinstance(body, dict) or "message" not in body:
        return f"{content}\n{note}"
    message = body["message"]
    text = message if isinstance(message, str) else json.dumps(message, ensure_ascii=False)
    return indented_json({**body, "message": f"{text}\n{note}"})


def own_result(
    call: ToolCall, status: ToolStatus, message: str, now: datetime, zone: str
) -> ToolResult:
    """Returns a result that the loop creates itself, without running a tool."""
    content = package(status, message, now, zone)
    return ToolResult(ToolReturn(call.id, call.name, status, content, provenance=Provenance.SYSTEM))


def return_limit(context_window: int) -> int:
    """Returns how many characters of one tool return a request shows."""
    return max(MIN_RETURN_CHARS, int(context_window * _WINDOW_SHARE * _CHARS_PER_TOKEN))


def bounded_returns(returns: Sequence[ToolReturn]) -> tuple[ToolReturn, ...]:
    """Returns the returns of a step; long ones are truncated if not all fit into one message."""
    share = share_of_each([_size(part.content) for part in returns], MAX_STEP_RETURN_BYTES)
    return tuple(
        part if (size := _size(part.content)) <= share else _cut_to(part, share, size)
        for part in returns
    )


def _cut_to(part: ToolReturn, max_chars: int, size: int) -> ToolReturn:
    chars = len(part.content)
    while size > max_chars:
        chars = min(chars * max_chars // size, chars - 1) - _CUT_MARGIN
        content = cut_return(part.content, max(chars, 0))
        size = _size(content) if chars > 0 else 0
    return replace(part, content=content)


def _size(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


def cut_return(content: str, limit: int) -> str:
    """Truncates the message in a packaged return to about `limit` characters; the JSON stays valid.

    Only requests are truncated, never stored returns.
    """
    if len(content) <= limit:
        return content
    try:
        body = parse_json(content, max_depth=PACKED_JSON_DEPTH)
    except JsonTextError:
        return _cut(content, limit)
    if not isinstance(body, dict) or "message" not in body:
        return _cut(content, limit)
    message = body["message"]
    if not isinstance(message, str):
        message = json.dumps(message, ensure_ascii=False)
    envelope_chars = len(indented_json({**body, "message": ""}))
    kept_chars = max(0, limit - envelope_chars)
    body["message"] = _cut(message, kept_chars)
    # Quotes and line ends double when they are escaped, so the text may still be too long.
    while kept_chars and len(packed := indented_json(body)) > limit + 64:
        kept_chars = max(0, kept_chars - max(len(packed) - limit, kept_chars // 8, 1))
        body["message"] = _cut(message, kept_chars)
    return indented_json(body)


def _cut(text: str, kept_chars: int) -> str:
    if len(text) <= kept_chars:
        return text
    return f"{text[:kept_chars]}... [truncated {len(text) - kept_chars} chars]"
