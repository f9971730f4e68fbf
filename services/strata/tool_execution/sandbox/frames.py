"""Messages to a jailed process: the length in four bytes (big endian), and JSON."""

from __future__ import annotations

import json
import struct
from typing import Any


def framed(message: dict[str, Any]) -> bytes:
    """Returns a message as it is sent."""
    return packed(json.dumps(message))


def packed(text: str) -> bytes:
    """Returns a message that is JSON text already as it is sent."""
    body = text.encode()
    return struct.pack(">I", len(body)) + body
