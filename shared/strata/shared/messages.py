"""Roles of messages, and outcomes of tool calls."""

from __future__ import annotations

from enum import StrEnum


class MessageRole(StrEnum):
    """The role of a stored message."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"
    APPROVAL = "approval"
    SUMMARY = "summary"


class ToolStatus(StrEnum):
    """How a tool call ended; the value is what the model reads.

    FAILED guarantees that the call had no effect except those that its text names. UNKNOWN means
    that the call was sent or started, and that it is unknown whether it had its effect.
    """

    OK = "OK"
    FAILED = "Failed"
    UNKNOWN = "Unknown"
