"""Provenance of pieces of context, and taint: the labels of untrusted content (decision 0080)."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import TypeAlias


class Provenance(StrEnum):
    """The source of a piece of context."""

    USER = "user"
    MODEL = "model"
    MEMORY = "memory"
    TOOL = "tool"
    WEB = "web"
    MCP = "mcp"
    SYSTEM = "system"


Taint: TypeAlias = tuple[Provenance, ...]

UNTRUSTED = (Provenance.WEB, Provenance.MCP)
"""Untrusted labels, in the order in which they are listed.

TOOL is trusted: returns of a project's own program are as trusted as the program, and a rule for
all tool returns would always ask for approval. The executor labels tools with untrusted returns
as WEB or MCP.
"""


def taint_of(*labels: Iterable[str]) -> Taint:
    """Returns the untrusted ones among labels, each once, in the order of `UNTRUSTED`."""
    distinct = {label for some in labels for label in some}
    return tuple([label for label in UNTRUSTED if label in distinct])
