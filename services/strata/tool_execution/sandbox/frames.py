"""Messages to a jailed process: the length in four bytes (big endian), and JSON."""

from __future__ import annotations

import json
import struct
from typing import Any


def framed(message: dict[str, Any]) -> bytes:
    """Returns a message as it is sent."""
    body = json.dumps(message).encode()
    return struct.pack(">I", len(body)) + body
