"""Labels of the origin of a piece of context, and places that hold untrusted content."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Provenance(StrEnum):
    """Where a piece of context came from."""

    USER = "user"
    MODEL = "model"
    MEMORY = "memory"
    TOOL = "tool"
    WEB = "web"
    MCP = "mcp"
    SYSTEM = "system"


@dataclass(frozen=True, slots=True)
class TaintSource:
    """A place in the context that holds untrusted content.

    Attributes:
        label: The untrusted label.
        message_id: The message that holds it; empty for a block or a call that has not run.
        tool_name: The tool that returned it.
        tool_call_id: The call that returned it, or will return it.
        block_label: The memory block that was written under taint.
    """

    label: Provenance
    message_id: str = ""
    tool_name: str = ""
    tool_call_id: str = ""
    block_label: str = ""
