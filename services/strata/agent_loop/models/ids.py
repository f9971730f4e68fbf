"""Ids for tool calls without a usable id."""

from __future__ import annotations

import uuid

LONGEST_CALL_ID = 256
"""Maximum number of characters of a provider's call id; longer ids are replaced."""


def new_call_id() -> str:
    """Returns a new id of 29 characters, the longest that is sent without truncation."""
    return f"call_{uuid.uuid4().hex[:24]}"


def usable_call_id(call_id: str) -> str:
    """Returns a provider's call id, or a new id if it is empty or too long."""
    return call_id if 0 < len(call_id) <= LONGEST_CALL_ID else new_call_id()
