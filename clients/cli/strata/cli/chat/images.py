"""Builds messages with images from arguments and lines of the command line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from strata.api.common.v1 import message_pb2
from strata.cli.failures import UsageError
from strata.client.images import user_message

COMMAND = "/image"
_ARGUMENT = re.compile(
    r"""(?:"(?P<double>[^"]+)"|'(?P<single>[^']+)'|(?P<bare>(?:\\.|[^\s"'])(?:\\.|\S)*))"""
    r"(?:\s+(?P<text>.*))?",
    re.DOTALL,
)


def message_with_images(text: str, paths: Sequence[str]) -> message_pb2.MessageInput:
    """Returns a message of the user with image files or https URLs.

    Raises:
        UsageError: A file cannot be read.
        InvalidArgumentError: A file is not an image that is accepted.
    """
    sources: list[str | Path] = [
        path if path.startswith("https://") else Path(path).expanduser() for path in paths
    ]
    try:
        return user_message(text, sources)
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be read: {error.strerror}.") from error


def from_command(line: str) -> message_pb2.MessageInput:
    """Returns the message of a line such as ``/image photo.png What is this?``.

    A path with spaces is quoted, or has a backslash before each space, as terminals write the path
    of a file that is dropped on them.

    Raises:
        UsageError: The line names no file, or the file cannot be read.
        InvalidArgumentError: The file is not an image that is accepted.
    """
    match = _ARGUMENT.fullmatch(line.strip()[len(COMMAND) :].strip())
    if match is None:
        raise UsageError(f"Name a file: {COMMAND} photo.png What is this?")
    path = match["double"] or match["single"] or re.sub(r"\\(.)", r"\1", match["bare"])
    return message_with_images(match["text"] or "", [path])
