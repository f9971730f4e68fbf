"""Windows into files, as people write and read them: lines from 1, the last one included."""

from __future__ import annotations

import re

from strata.api.core_memory.v1 import file_service_pb2 as pb
from strata.cli.failures import UsageError

_LINES = re.compile(r"(\d{1,9})(?:-(\d{1,9})?)?")


def window_of(window: pb.OpenFile) -> str:
    """Returns the lines that a window shows."""
    if window.end_line < window.start_line:
        return "whole"
    return f"{window.start_line}-{window.end_line}"


def asked_window(text: str) -> pb.FileWindow:
    """Returns a window; lines are counted from 0 by the API.

    Args:
        text: ``FOLDER/FILE``, ``FOLDER/FILE:11``, ``FOLDER/FILE:11-`` or ``FOLDER/FILE:11-20``.

    Raises:
        UsageError: The lines are none.
    """
    name, colon, lines = text.rpartition(":")
    found = _LINES.fullmatch(lines) if colon else None
    if found is None:
        return pb.FileWindow(file_name=text)
    first = int(found[1])
    last = int(found[2]) if found[2] else None
    if first < 1 or (last is not None and last < first):
        raise UsageError(f"{lines} are no lines. Write {name}:11-20; the first line is 1.")
    length = None if last is None else last - first + 1
    return pb.FileWindow(file_name=name, offset=first - 1, length=length)
