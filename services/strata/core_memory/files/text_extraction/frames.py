"""The protocol between the child process and its service: frames on a pipe.

A frame is its kind (one byte), the length of its body (four bytes, big endian) and the body.
"""

from __future__ import annotations

import struct
from typing import BinaryIO

from strata.core_memory.files.text_extraction.pages import ParsedPage

HEADER = struct.Struct(">cI")
MAX_BODY_BYTES = 1024 * 1024
"""Maximum of a frame's body: a page has at most 73,536 characters of four bytes."""

PAGE = b"P"
END = b"E"
UNREADABLE = b"X"

_PLACE = struct.Struct(">III")


def send(pipe: BinaryIO, kind: bytes, body: bytes = b"") -> None:
    """Writes a frame; blocks while the pipe is full."""
    pipe.write(HEADER.pack(kind, len(body)) + body)
    pipe.flush()


def encode_page(page: ParsedPage) -> bytes:
    """Encodes a page as the body of a frame."""
    header = _PLACE.pack(page.number, page.first_line, page.line_count)
    return header + page.text.encode("utf-8")


def decode_page(body: bytes) -> ParsedPage:
    """Decodes a page from the body of a frame.

    Raises:
        ValueError: The body is not a page.
    """
    if len(body) < _PLACE.size:
        raise ValueError("a page without a position")
    number, first_line, line_count = _PLACE.unpack_from(body)
    return ParsedPage(number, first_line, line_count, body[_PLACE.size :].decode("utf-8"))
