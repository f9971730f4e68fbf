"""Output of commands: tables and fields for people, JSON and tab-separated values for programs.

All text from a server passes through `safe`, and JSON through `escaped`, so that text of a model or
of another person cannot send control sequences to the terminal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC
from typing import TextIO

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from rich.console import Console
from rich.table import Table
from rich.text import Text

from strata.api.common.v1 import message_pb2
from strata.shared.convert.enums import enum_name
from strata.shared.local_time import in_zone
from strata.shared.one_line import UNSAFE_CODES, escaped

_DEFAULT_WIDTH = 80
_CONTROLS = dict.fromkeys(UNSAFE_CODES)


def safe(text: str) -> str:
    """Returns the text without control characters."""
    return text.translate(_CONTROLS)


def console() -> Console:
    """Returns a console on standard output without markup."""
    return _console(sys.stdout)


def error_console() -> Console:
    """Returns a console on standard error without markup."""
    return _console(sys.stderr)


def _console(file: TextIO) -> Console:
    made = Console(file=file, markup=False, highlight=False, emoji=False)
    if made.width < 1:
        # COLUMNS is 0 where a terminal has no size. Rich prints nothing in lines without columns.
        made.width = _DEFAULT_WIDTH
    return made


def note(text: str) -> None:
    """Prints a remark to standard error, so that it stays out of a pipe."""
    sys.stdout.flush()
    error_console().print(Text(safe(text), style="dim"), soft_wrap=True)


def print_json(document: Message | dict[str, object] | list[object]) -> None:
    """Prints one JSON document; a protobuf message in its canonical form, with all fields."""
    value = document
    if isinstance(document, Message):
        value = MessageToDict(document, always_print_fields_with_no_presence=True)
    sys.stdout.write(escaped(json.dumps(value, indent=2, ensure_ascii=False)) + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, empty: str) -> None:
    """Prints a table; without a terminal, lines of tab-separated values.

    Args:
        columns: The headings.
        rows: The cells.
        empty: Text to print on a terminal if there are no rows.
    """
    listed = [[safe(cell) for cell in row] for row in rows]
    screen = console()
    if not screen.is_terminal:
        for cells in ([column.upper() for column in columns], *listed):
            sys.stdout.write("\t".join(" ".join(cell.split()) for cell in cells) + "\n")
        return
    if not listed:
        screen.print(Text(empty, style="dim"))
        return
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    for cells in listed:
        table.add_row(*(Text(cell) for cell in cells))
    screen.print(table)


def print_listing(
    listing: Message,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    empty: str,
    as_json: bool,
) -> None:
    """Prints the response of a List call as JSON or as a table.

    Args:
        listing: The response; if it has a ``next_page_token``, a note states that there are more.
        columns: The headings.
        rows: The cells.
        empty: Text to print on a terminal if there are no rows.
        as_json: Print the response itself.
    """
    if as_json:
        print_json(listing)
        return
    print_table(columns, rows, empty=empty)
    if getattr(listing, "next_page_token", ""):
        note("There are more; raise --limit to see them.")


def print_fields(fields: Iterable[tuple[str, str]]) -> None:
    """Prints names and values, one per line, without empty values."""
    screen = console()
    for name, value in fields:
        if value:
            label = Text(f"{name}: ", style="bold")
            screen.print(label + Text(safe(value)), soft_wrap=True)


def print_text(text: str) -> None:
    """Prints a text; into a pipe unchanged, with a newline at the end."""
    if sys.stdout.isatty():
        sys.stdout.write(safe(text) + "\n")
    else:
        sys.stdout.write(text + ("" if text.endswith("\n") else "\n"))


def when(time: Timestamp) -> str:
    """Returns a time in the local time zone; empty if it is not set."""
    if not time.seconds:
        return ""
    return in_zone(time.ToDatetime(tzinfo=UTC), None).strftime("%Y-%m-%d %H:%M:%S")


def labels_line(labels: Iterable[message_pb2.Provenance.ValueType]) -> str:
    """Returns provenance labels as text: ``web, mcp``."""
    names = (enum_name(message_pb2.Provenance, label) for label in labels)
    return ", ".join(names)
