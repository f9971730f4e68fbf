"""Assembles and reads the system message (docs/wire-format.md#system-message).

Its parts are the base prompt, the memory section and the metadata.

It is rebuilt when the base prompt or the memory section changed, and once a day for the date.
The rest of the metadata is not compared, since a changed count alone must not invalidate the
provider's prompt cache.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

from strata.agent_loop.domain.ports import ArchivalStats
from strata.shared.one_line import one_line
from strata.shared.provenance import Taint
from strata.shared.tag_escapes import escape
from strata.shared.tool_returns import TIME_FORMAT

PLACEHOLDER = "{CORE_MEMORY}"
_SEPARATOR = "\n\n"
_OPEN, _CLOSE = "<memory_metadata>", "</memory_metadata>"

TAGS_BYTES = 1_000
"""Maximum UTF-8 bytes of the list of archival tags; the other tags are only counted."""
MAX_TAG_CHARS = 128
"""Maximum number of characters of a tag; archival memory refuses longer ones."""
MOST_TAGS_COUNTED = 1_000
"""Archival memory counts the tags that are not shown up to this number."""

_ARCHIVAL_LINES = re.compile(
    r"^- (?:\d+ total memories you created are stored in archival|Available archival memory"
    r" tags: ).*$",
    re.MULTILINE,
)
_SECTIONS = ("memory_blocks", "tool_usage_rules", "directories")
_LAST_MODIFIED = re.compile(
    r"^- Memory blocks were last modified: (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [AP]M) \S*?([+-]\d{4})$",
    re.MULTILINE,
)
_PASSAGES = re.compile(r"^- (\d+) total memories you created", re.MULTILINE)
_TAGS = re.compile(r"^- Available archival memory tags: (.*)$", re.MULTILINE)
_MORE_TAGS = re.compile(r"and (more than )?(\d+) more")


@dataclass(frozen=True, slots=True)
class Metadata:
    """The content of ``<memory_metadata>``.

    Attributes:
        now: The current time.
        timezone: The agent's time zone, an IANA name.
        last_modified: When a memory block was last changed; None if there is none.
        hidden_messages: Number of messages of the conversation outside the window.
        archival: The lines about archival memory, see `archival_lines`.
    """

    now: datetime
    timezone: str
    last_modified: datetime | None
    hidden_messages: int
    archival: Sequence[str] = ()


def zone(name: str) -> tzinfo:
    """Returns a time zone; UTC if the name is unknown on this machine."""
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
    return "\n".join([*lines, *metadata.archival, _CLOSE])


def archival_lines(stats: ArchivalStats, labels: Iterable[str]) -> list[str]:
    """Returns the lines of ``<memory_metadata>`` that describe archival memory.

    Tags may hold any text, even elements of the prompt: they are escaped and shown in one line, as
    many as fit into `TAGS_BYTES`.

    Args:
        stats: Counts of archival memory.
        labels: Labels of the agent's blocks, which are elements of the prompt too.
    """
    lines = []
    if stats.passage_count > 0:
        lines.append(
            f"- {stats.passage_count} total memories you created are stored in archival memory"
            " (use tools to access them)"
        )
    shown = [text for _, text in _shown_tags(stats.tags, labels)]
    if more := stats.more_tags + len(stats.tags) - len(shown):
        is_exact = more < MOST_TAGS_COUNTED
        shown.append(f"and {more} more" if is_exact else f"and more than {MOST_TAGS_COUNTED} more")
    if shown:
        lines.append(f"- Available archival memory tags: {', '.join(shown)}")
    return lines


def tainted_tags(stats: ArchivalStats, labels: Iterable[str]) -> Mapping[str, Taint]:
    """Returns the untrusted labels of the tags that `archival_lines` shows, by tag.

    Args:
        stats: Counts of archival memory.
        labels: Labels of the agent's blocks.
    """
    if not stats.taint:
        return stats.taint
    return {
        tag: stats.taint[tag] for tag, _ in _shown_tags(stats.tags, labels) if tag in stats.taint
    }


def without_tags(lines: Iterable[str]) -> list[str]:
    """Returns lines of `archival_lines` without the line that lists tags."""
    return [line for line in lines if not _TAGS.match(line)]


def _shown_tags(tags: Iterable[str], labels: Iterable[str]) -> list[tuple[str, str]]:
    """Returns the tags that fit into `TAGS_BYTES`, each with its text in the prompt."""
    names, remaining_bytes = frozenset(labels), TAGS_BYTES
    shown = []
    for tag in tags:
        text = escape(one_line(tag), names)
        size = len(text.encode("utf-8", "replace")) + 2
        if len(tag) <= MAX_TAG_CHARS and size <= remaining_bytes:
            shown.append((tag, text))
            remaining_bytes -= size
    return shown


def assemble(base: str, section: str, metadata: Metadata) -> str:
    """Returns the system message.

    Args:
        base: The base prompt; memory replaces the first ``{CORE_MEMORY}``, else it is appended.
        section: The rendered memory, from ``<memory_blocks>`` on; may be empty.
        metadata: The metadata, which follows the memory.
    """
    before, after = _around_metadata(base, section)
    return before + render_metadata(metadata) + after


def is_current(text: str, base: str, section: str) -> bool:
    """Returns whether a system message shows this base prompt and memory; ignores the metadata."""
    return _metadata_of(text, base, section) is not None


def shows_day(text: str, now: datetime, timezone: str) -> bool:
    """Returns whether a system message shows the current date in a time zone."""
    return f"{_OPEN}\n{_date_line(now, timezone)}\n" in text


def shown_archival_lines(text: str, base: str, section: str) -> list[str]:
    """Returns the lines of a system message that describe archival memory.

    Args:
        text: The system message.
        base: The current base prompt.
        section: The current rendered memory; the message may have other versions of both.
    """
    metadata = _metadata_of(text, base, section)
    if metadata is None:
        metadata = text[text.rfind(_OPEN) :].partition(_CLOSE)[0] if _OPEN in text else ""
    return [match[0] for match in _ARCHIVAL_LINES.finditer(metadata)]


def _date_line(now: datetime, timezone: str) -> str:
    day = now.astimezone(zone(timezone)).strftime("%B %d, %Y")
    return f"- The current system date is: {day}"


def _metadata_of(text: str, base: str, section: str) -> str | None:
    """Returns the content of the metadata element; None if the rest of the message differs."""
    before, after = _around_metadata(base, section)
    start, end = before + _OPEN, _CLOSE + after
    if len(text) < len(start) + len(end) or not (text.startswith(start) and text.endswith(end)):
        return None
    # A prompt that mentions the element must not be mistaken for the element.
    metadata = text[len(start) : len(text) - len(end)]
    return None if _OPEN in metadata or _CLOSE in metadata else metadata


def _around_metadata(base: str, section: str) -> tuple[str, str]:
    start, placeholder, end = base.partition(PLACEHOLDER)
    if not placeholder:
        start = base + _SEPARATOR if base else ""
    return start + (section + _SEPARATOR if section else ""), end


@dataclass(frozen=True, slots=True)
class SystemParts:
    """The parts that a system message was assembled from.

    Attributes:
        base: The base prompt.
        section: The rendered memory.
        last_modified: When a memory block was last changed.
        archival: Counts of archival memory.
    """

    base: str
    section: str
    last_modified: datetime | None
    archival: ArchivalStats


def read_system(text: str, base: str) -> SystemParts:
    """Returns the parts that a system message was assembled from.

    Args:
        text: The system message.
        base: The current base prompt. If the message has another one, it is taken to be the text
            before the memory.
    """
    head, _, rest = text.rpartition(_OPEN)
    metadata = rest.partition(_CLOSE)[0]
    start, end = _around_metadata(base, "")
    if not (head.startswith(start) and text.endswith(_CLOSE + end)):
        offsets = [head.rfind(f"{_SEPARATOR}<{name}>") for name in _SECTIONS]
        offset = min((offset for offset in offsets if offset >= 0), default=len(head))
        base = head[:offset].removesuffix(_SEPARATOR)
        start, _ = _around_metadata(base, "")
    changed = _LAST_MODIFIED.search(metadata)
    section = head[len(start) :].removesuffix(_SEPARATOR)
    moment = None
    if changed is not None:
        # The abbreviation of the time zone, which can be any text, is between the two.
        moment = datetime.strptime(f"{changed[1]} {changed[2]}", "%Y-%m-%d %I:%M:%S %p %z")
    return SystemParts(base, section, moment, _read_archival(metadata))


def _read_archival(metadata: str) -> ArchivalStats:
    count = _PASSAGES.search(metadata)
    listed = _TAGS.search(metadata)
    tags = [] if listed is None else listed[1].split(", ")
    more = _MORE_TAGS.fullmatch(tags[-1]) if tags else None
    hidden = 0 if more is None else int(more[2]) + (1 if more[1] else 0)
    tag_names = tags if more is None else tags[:-1]
    return ArchivalStats(0 if count is None else int(count[1]), tag_names, hidden)
