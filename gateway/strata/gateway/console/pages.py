"""Renders the templates of the console.

All values are escaped. Characters that a reader cannot see, and that change how others are shown,
are replaced, so that a text of an agent cannot look like another one.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from strata.api.common.v1 import message_pb2
from strata.gateway.console.formats import FILTERS
from strata.gateway.console.transcript import role_name
from strata.gateway.http.console_path import CONSOLE_PATH
from strata.shared.one_line import UNSAFE_CODES, clipped
from strata.shared.tool_returns import result_of
from strata.shared.turn_texts import whole_arguments

NAVIGATION = (
    ("/agents", "Agents"),
    ("/runs", "Runs"),
    ("/schedules", "Schedules"),
    ("/groups", "Groups"),
    ("/tools", "Tools"),
    ("/mcp", "MCP"),
    ("/usage", "Usage"),
    ("/keys", "Keys"),
    ("/projects", "Projects"),
)
"""Path and name of each section, in the order in which they are shown."""
AGENT_TABS = (
    ("/chat", "Chat"),
    ("/memory", "Memory"),
    ("/recall", "Recall"),
    ("/archival", "Archival"),
    ("/files", "Files"),
    ("/context", "Context window"),
    ("/runs", "Runs"),
    ("/settings", "Settings"),
)
"""Path below an agent, and name, of each of its pages."""
SHOWN_CHARS = 4000
"""Characters of a text that lists show; the page of the text shows all of it."""
TEMPLATES = Path(__file__).parent / "templates"
_UNTRUSTED = {
    message_pb2.PROVENANCE_WEB: "the web",
    message_pb2.PROVENANCE_MCP: "an MCP server",
}
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_REPLACED = {**dict.fromkeys(UNSAFE_CODES, _REPLACEMENT), ord("\r"): None}


class Verbatim(str):
    """A text that is escaped but otherwise unchanged: the value of a form field."""

    __slots__ = ()


def render(template: str, **values: Any) -> str:
    """Returns a template with values, all of them escaped.

    Args:
        template: Path below `TEMPLATES`.
        values: The values; one that the template names and that is missing is an error.
    """
    return _ENVIRONMENT.get_template(template).render(**values)


def readable(text: str) -> str:
    """Returns a text with a visible character instead of control and direction characters."""
    return text.translate(_REPLACED)


def untrusted(labels: Iterable[message_pb2.Provenance.ValueType]) -> list[str]:
    """Returns the sources of untrusted content as text."""
    return [_UNTRUSTED[label] for label in labels if label in _UNTRUSTED]


def _shown(value: Any) -> Any:
    if isinstance(value, str) and not isinstance(value, Markup | Verbatim):
        return readable(value)
    return value


def _when(stamp: Timestamp) -> str:
    """Returns a time in UTC, to the second; empty if it is not set."""
    moment = _moment(stamp)
    return f"{moment:%Y-%m-%d %H:%M:%S}" if moment else ""


def _machine_time(stamp: Timestamp) -> str:
    moment = _moment(stamp)
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}" if moment else ""


def _moment(stamp: Timestamp) -> datetime | None:
    return stamp.ToDatetime(tzinfo=UTC) if stamp.seconds else None


def _count(number: float) -> str:
    return f"{number:,}"


def _size(size: int) -> str:
    value, units = float(size), ["bytes", "KB", "MB", "GB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:,.0f} {units[0]}" if units[0] == "bytes" else f"{value:,.1f} {units[0]}"


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        when=_when,
        machine_time=_machine_time,
        count=_count,
        size=_size,
        clipped=clipped,
        verbatim=Verbatim,
        whole_arguments=whole_arguments,
        result_of=result_of,
    )
    environment.filters.update(FILTERS)
    environment.globals.update(
        base=CONSOLE_PATH,
        navigation=NAVIGATION,
        agent_tabs=AGENT_TABS,
        shown_chars=SHOWN_CHARS,
        untrusted=untrusted,
        role_name=role_name,
    )
    return environment


_ENVIRONMENT = _environment()
