"""Ids for tool calls that come without one."""

from __future__ import annotations

import uuid


def new_call_id() -> str:
    """A fresh id of 29 characters, the length that is sent uncut."""
    return f"call_{uuid.uuid4().hex[:24]}"
