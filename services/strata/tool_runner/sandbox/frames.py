"""Messages to a jailed process: the length in four bytes (big endian), followed by JSON."""

from __future__ import annotations

import json
import struct
from typing import Any


def framed(message: dict[str, Any]) -> bytes:
    """Returns the bytes of a message."""
    return packed(json.dumps(message))


def packed(text: str) -> bytes:
    """Returns the bytes of a message from its JSON text."""
    body = text.encode()
    return struct.pack(">I", len(body)) + body
