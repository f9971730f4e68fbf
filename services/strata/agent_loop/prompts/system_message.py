"""The system message: base prompt, memory section, metadata (blueprint §0.3, observed §3).

It is rebuilt when the base prompt or the memory section changed, and once a day for the date.
The rest of the metadata is not compared: a count alone must not throw away the provider's prompt
cache.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

from strata.shared.tool_returns import TIME_FORMAT

PLACEHOLDER = "{CORE_MEMORY}"
_SEPARATOR = "\n\n"
_OPEN, _CLOSE = "<memory_metadata>", "</memory_metadata>"

_ARCHIVAL_COUNT = re.compile(
    r"^- (\d+) total memories you created are stored in archival", re.MULTILINE
)
_ARCHIVAL_TAGS = re.compile(r"^- Available archival memory tags: (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ArchivalStats:
    """What is said of archival memory.

    Attributes:
        passage_count: Passages in all archives of the agent.
        tags: Tags in use, sorted.
    """

    passage_count: int = 0
    tags: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Metadata:
    """The content of ``<memory_metadata>``.

    Attributes:
        now: The present time.
        timezone: The agent's, an IANA name.
        last_modified: When a memory block was last changed; None if there is none.
        hidden_messages: Messages of the conversation that are not in the window.
        archival: Counts of archival memory.
    """

    now: datetime
    timezone: str
    last_modified: datetime | None
    hidden_messages: int
    archival: ArchivalStats = ArchivalStats()


def zone(name: str) -> tzinfo:
    """Returns the time zone, UTC for a name that this machine does not know."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return UTC


def format_time(moment: datetime, timezone: str) -> str:
    """Returns a time as the model reads it: ``2026-11-21 08:43:09 PM UTC+0000``."""
    return moment.astimezone(zone(timezone)).strftime(TIME_FORMAT)


def render_metadata(metadata: Metadata) -> str:
    """Returns the ``<memory_metadata>`` element."""
    lines = [_OPEN, _date_line(metadata.now, metadata.timezone)]
    if metadata.last_modified is not None:
        changed = format_time(metadata.last_modified, metadata.timezone)
        lines.append(f"- Memory blocks were last modified: {changed}")
    hidden = max(0, metadata.hidden_messages)
    lines.append(
        f"- {hidden} previous messages between you and the user are stored in recall memory"
        " (use tools to access them)"
    )
    if metadata.archival.passage_count > 0:
        lines.append(
            f"- {metadata.archival.passage_count} total memories you created are stored in"
            " archival memory (use tools to access them)"
        )
    if metadata.archival.tags:
        lines.append(f"- Available archival memory tags: {', '.join(metadata.archival.tags)}")
    return "\n".join([*lines, _CLOSE])


def assemble(base: str, section: str, metadata: Metadata) -> str:
    """Returns the system message.

    Args:
        base: The base prompt; memory goes where ``{CORE_MEMORY}`` stands first, else at its end.
        section: The rendered memory, from ``<memory_blocks>`` on; may be empty.
        metadata: What to say after it.
    """
    before, after = _around_metadata(base, section)
    return before + render_metadata(metadata) + after


def is_current(text: str, base: str, section: str) -> bool:
    """Says whether a system message shows this base prompt and memory, whatever its metadata."""
    before, after = _around_metadata(base, section)
    start, end = before + _OPEN, _CLOSE + after
    if len(text) < len(start) + len(end) or not (text.startswith(start) and text.endswith(end)):
        return False
    # A prompt that speaks of the element itself must not be mistaken for where it stands.
    told = text[len(start) : len(text) - len(end)]
    return _OPEN not in told and _CLOSE not in told


def shows_day(text: str, now: datetime, timezone: str) -> bool:
    """Says whether a system message shows the day that it is in a timezone."""
    return f"{_OPEN}\n{_date_line(now, timezone)}\n" in text


def _date_line(now: datetime, timezone: str) -> str:
    day = now.astimezone(zone(timezone)).strftime("%B %d, %Y")
    return f"- The current system date is: {day}"


def archival_stats(text: str) -> ArchivalStats:
    """Reads the archival counts back out of a system message."""
    told = text[text.rfind(_OPEN) :] if _OPEN in text else ""
    count, tags = _ARCHIVAL_COUNT.search(told), _ARCHIVAL_TAGS.search(told)
    return ArchivalStats(
        int(count.group(1)) if count else 0, tuple(tags.group(1).split(", ")) if tags else ()
    )


def _around_metadata(base: str, section: str) -> tuple[str, str]:
    start, found, end = base.partition(PLACEHOLDER)
    if not found:
        start = base + _SEPARATOR if base else ""
    return start + (section + _SEPARATOR if section else ""), end
