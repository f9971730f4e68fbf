"""Times in a time zone."""

from __future__ import annotations

from datetime import datetime, tzinfo
from zoneinfo import ZoneInfo

_MAX_ZONE_CHARS = 64
# Files of a system's database that are not zones of IANA, or differ between machines. Files below
# `right` count leap seconds, with which `zoneinfo` computes wrong times.
_OTHER_FILES = ("localtime", "posixrules", "Factory")
_OTHER_FOLDERS = ("right/", "posix/")


def is_time_zone(name: str) -> bool:
    """Returns whether a text is the name of a time zone of IANA, such as ``Europe/Berlin``."""
    if len(name) > _MAX_ZONE_CHARS or name in _OTHER_FILES or name.startswith(_OTHER_FOLDERS):
        return False
    try:
        ZoneInfo(name)
    # `ZoneInfoNotFoundError` is a `KeyError`. The name of a folder raises an `OSError`.
    except (KeyError, ValueError, OSError):
        return False
    return True


def in_zone(moment: datetime, timezone: tzinfo | None) -> datetime:
    """Returns a time in a time zone; one at either end of the calendar stays as it is.

    Imported texts may have such times: some programs write 0001-01-01 for a missing time, and in
    New York that is before the first day of the calendar.

    Args:
        moment: A time with a time zone.
        timezone: The time zone; None for the machine's.
    """
    try:
        return moment.astimezone(timezone)
    except OverflowError:
        return moment
