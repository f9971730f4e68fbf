"""Parses dates that models write, and formats times that models read."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from strata.tool_execution.domain.tools import ToolError

_DATE_ONLY = re.compile(r"\d{4}-\d{2}-\d{2}")
# The format of times in prompts and tool returns, which models copy.
_SHOWN = re.compile(r"(\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2} [AP]M) \S*?([+-]\d{4})")
_FIRST, _LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400


def start_of(text: str | None, field: str, timezone: ZoneInfo) -> datetime | None:
    """Returns the first moment of a date or time.

    Raises:
        ToolError: The text is not ISO 8601.
    """
    return None if text is None else _in_range(_parse(text, field, timezone), timedelta(0))


def end_of(text: str | None, field: str, timezone: ZoneInfo) -> datetime | None:
    """Returns the first moment after a date or time; a date without a time includes its whole day.

    Raises:
        ToolError: The text is not ISO 8601.
    """
    if text is None:
        return None
    moment = _parse(text, field, timezone)
    whole_day = _DATE_ONLY.fullmatch(text.strip())
    return _in_range(moment, timedelta(days=1) if whole_day else timedelta(microseconds=1))


def time_ago(moment: datetime, now: datetime) -> str:
    """Returns ``5s ago``, ``3m ago``, ``2h ago`` or ``1d ago``."""
    seconds = max(0, int((now - moment).total_seconds()))
    if seconds < _MINUTE:
        return f"{seconds}s ago"
    if seconds < _HOUR:
        return f"{seconds // _MINUTE}m ago"
    if seconds < _DAY:
        return f"{seconds // _HOUR}h ago"
    return f"{seconds // _DAY}d ago"


def _in_range(moment: datetime, more: timedelta) -> datetime:
    """Returns `moment + more` in UTC, limited to the range of `datetime`.

    Models write 0001-01-01 and 9999-12-31 for "from the beginning" and "without an end".
    """
    try:
        return (moment + more).astimezone(UTC)
    except OverflowError:
        return _FIRST if moment.year == _FIRST.year else _LAST


def _parse(text: str, field: str, timezone: ZoneInfo) -> datetime:
    readable_date = _SHOWN.fullmatch(text.strip())
    try:
        if readable_date:
            return datetime.strptime(" ".join(readable_date.groups()), "%Y-%m-%d %I:%M:%S %p %z")
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ToolError(
            f"Invalid {field} format: {text}. Use ISO 8601 format (YYYY-MM-DD or YYYY-MM-DDTHH:MM)"
        ) from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone)
