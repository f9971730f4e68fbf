"""Parses points in time that a person types."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer
from google.protobuf.timestamp_pb2 import Timestamp

from strata.cli.failures import UsageError

_AGO = re.compile(r"(\d{1,6})\s*(s|min|m|h|d|w)(?:\s+ago)?")
_SPAN = re.compile(r"(\d{1,6})\s*(s|min|m|h|d|w)")
_CLOCK = re.compile(r"\d{1,2}:\d{2}(:\d{2})?")
_UNITS = {
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "min": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}

AsOfOption = Annotated[
    str,
    typer.Option(
        "--as-of",
        metavar="TIME",
        help='The state at this time: "2026-07-30 14:00", "14:00" today, or "2h" ago.',
        show_default=False,
    ),
]


_FORMS_OF_END = 'Write "90d" for 90 days from now, or a date.'


def parse_time(text: str, now: datetime | None = None) -> datetime:
    """Returns a point in time; without a zone it is in the local one.

    Args:
        text: ``2026-07-30``, ``2026-07-30 14:00``, ``2026-07-30T14:00:00Z``, ``14:00`` of
            today, or a span before now: ``30s``, ``15m``, ``2h``, ``3d``, ``1w``.
        now: The present, for tests.

    Raises:
        UsageError: The text has none of these forms.
    """
    present = (now or datetime.now(UTC)).astimezone()
    stripped = text.strip()
    try:
        if ago := _AGO.fullmatch(stripped):
            return present - int(ago[1]) * _UNITS[ago[2]]
        if _CLOCK.fullmatch(stripped):
            stripped = (
                f"{present:%Y-%m-%d} {stripped.zfill(5) if stripped.count(':') == 1 else stripped}"
            )
        # A time without a zone is local time.
        return datetime.fromisoformat(stripped).astimezone()
    except (ValueError, OverflowError, OSError) as error:
        raise UsageError(
            f'{text!r} is not a time. Write "2026-07-30 14:00", "14:00", or "2h" for two hours ago.'
        ) from error


def parse_end(text: str, now: datetime | None = None) -> datetime:
    """Returns a point in time in the future.

    Args:
        text: A span from now (``12h``, ``90d``, ``4w``), or a point in time as `parse_time` reads.
        now: The present, for tests.

    Raises:
        UsageError: It is neither, or lies in the past.
    """
    present = now or datetime.now(UTC)
    span = _SPAN.fullmatch(text.strip())
    try:
        end = present + int(span[1]) * _UNITS[span[2]] if span else parse_time(text, present)
    except OverflowError as error:
        raise UsageError(f"{text!r} is too far away.") from error
    except UsageError as error:
        raise UsageError(f"{text!r} is not a time. {_FORMS_OF_END}") from error
    if end <= present:
        raise UsageError(f"{text!r} lies in the past. {_FORMS_OF_END}")
    return end


def timestamp_of(text: str) -> Timestamp | None:
    """Returns a time as a protobuf timestamp; None for an empty text.

    Raises:
        UsageError: It is not a time.
    """
    if not text:
        return None
    stamp = Timestamp()
    stamp.FromDatetime(parse_time(text))
    return stamp
