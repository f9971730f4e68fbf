"""What the child process says to its service: frames on a pipe.

A frame is its kind (one byte), the length of its body (four bytes, big endian) and the body.
"""

from __future__ import annotations

import struct
from typing import BinaryIO

from strata.core_memory.files.reading.pages import Page

HEADER = struct.Struct(">cI")
MAX_BODY_BYTES = 1024 * 1024
"""A page has at most 73,536 characters of four bytes: what is longer is no frame of ours."""

PAGE = b"P"
END = b"E"
UNREADABLE = b"X"

_PLACE = struct.Struct(">III")


def send(pipe: BinaryIO, kind: bytes, body: bytes = b"") -> None:
    """Writes a frame, and waits until there is space for it."""
    pipe.write(HEADER.pack(kind, len(body)) + body)
    pipe.flush()


def encode_page(page: Page) -> bytes:
    """Returns the body of a page."""
    place = _PLACE.pack(page.number, page.first_line, page.line_count)
    return place + page.text.encode("utf-8")


def decode_page(body: bytes) -> Page:
    """Returns the page in a body.

    Raises:
        ValueError: It is none.
    """
    if len(body) < _PLACE.size:
        raise ValueError("a page without a place")
    number, first_line, line_count = _PLACE.unpack_from(body)
    return Page(number, first_line, line_count, body[_PLACE.size :].decode("utf-8"))
