"""The size of a tool in a prompt."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from strata.shared.text_bytes import text_bytes


def tool_bytes(name: str, description: str, parameters: Mapping[str, Any]) -> int:
    """Returns the UTF-8 bytes of a tool as it is sent to a model."""
    schema = json.dumps(dict(parameters), ensure_ascii=False, separators=(",", ":"))
    return text_bytes(name) + text_bytes(description) + text_bytes(schema)
