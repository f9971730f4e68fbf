"""Times in a time zone."""

from __future__ import annotations

from datetime import datetime, tzinfo


def in_zone(moment: datetime, timezone: tzinfo | None) -> datetime:
    """Returns a time in a time zone; one at either end of the calendar stays as it is.

    Imported texts may have such times: 0001-01-01 is what some programs write for no time, and in
    New York it is no day of the calendar.

    Args:
        moment: A time with a time zone.
        timezone: The time zone; None for the machine's.
    """
    try:
        return moment.astimezone(timezone)
    except OverflowError:
        return moment
