"""Ids for tool calls that come without a usable one."""

from __future__ import annotations

import uuid

LONGEST_CALL_ID = 256
"""Characters of the longest id that is taken over from a provider."""


def new_call_id() -> str:
    """A fresh id of 29 characters, the length that is sent uncut."""
    return f"call_{uuid.uuid4().hex[:24]}"


def usable_call_id(call_id: str) -> str:
    """Returns the id that a provider gave a call, or a new one in place of none or a huge one."""
    return call_id if 0 < len(call_id) <= LONGEST_CALL_ID else new_call_id()
