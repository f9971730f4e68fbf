"""Converts windows into files: people count lines from 1 and include the last one."""

from __future__ import annotations

import re

from strata.api.core_memory.v1 import file_service_pb2 as pb
from strata.cli.failures import UsageError

_LINES = re.compile(r"(\d{1,9})(?:-(\d{1,9})?)?")


def window_of(window: pb.OpenFile) -> str:
    """Returns the range of lines in a window, as text."""
    if window.end_line < window.start_line:
        return "whole"
    return f"{window.start_line}-{window.end_line}"


def asked_window(text: str) -> pb.FileWindow:
    """Parses a window; the API counts lines from 0.

    Args:
        text: ``FOLDER/FILE``, ``FOLDER/FILE:11``, ``FOLDER/FILE:11-`` or ``FOLDER/FILE:11-20``.

    Raises:
        UsageError: The range of lines is invalid.
    """
    name, colon, lines = text.rpartition(":")
    match = _LINES.fullmatch(lines) if colon else None
    if match is None:
        return pb.FileWindow(file_name=text)
    first = int(match[1])
    last = int(match[2]) if match[2] else None
    if first < 1 or (last is not None and last < first):
        raise UsageError(
            f"{lines} is not a range of lines. Write {name}:11-20; the first line is 1."
        )
    length = None if last is None else last - first + 1
    return pb.FileWindow(file_name=name, offset=first - 1, length=length)
