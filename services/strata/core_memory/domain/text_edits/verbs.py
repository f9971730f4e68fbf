"""The edit operations of the memory tools (verbs), with their arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeAlias


@dataclass(frozen=True, slots=True)
class Append:
    """core_memory_append: adds a line at the end."""

    operation: ClassVar[str] = "append"
    content: str


@dataclass(frozen=True, slots=True)
class Replace:
    """core_memory_replace: replaces every occurrence, also inside words."""

    operation: ClassVar[str] = "replace"
    old_content: str
    new_content: str


@dataclass(frozen=True, slots=True)
class StringReplace:
    """memory_replace: replaces the one occurrence."""

    operation: ClassVar[str] = "string_replace"
    old_string: str
    new_string: str


@dataclass(frozen=True, slots=True)
class Insert:
    """memory_insert: puts lines after line `line`; 0 before the first, -1 at the end."""

    operation: ClassVar[str] = "insert"
    new_string: str
    line: int = -1


@dataclass(frozen=True, slots=True)
class Rethink:
    """memory_rethink: rewrites the whole value; makes the block if there is none."""

    operation: ClassVar[str] = "rethink"
    new_memory: str


@dataclass(frozen=True, slots=True)
class Create:
    """memory create: makes a block and attaches it. Without a description it gets the default."""

    operation: ClassVar[str] = "create"
    text: str
    description: str = ""


@dataclass(frozen=True, slots=True)
class Delete:
    """memory delete: detaches the block, which itself stays."""

    operation: ClassVar[str] = "delete"


@dataclass(frozen=True, slots=True)
class Rename:
    """memory rename: gives another label, another description, or both."""

    operation: ClassVar[str] = "rename"
    new_label: str = ""
    description: str | None = None


@dataclass(frozen=True, slots=True)
class Patch:
    """memory_apply_patch: changes lines found by their context, in one block or in several."""

    operation: ClassVar[str] = "patch"
    patch: str


TextEdit: TypeAlias = Append | Replace | StringReplace | Insert | Rethink
Edit: TypeAlias = TextEdit | Patch | Create | Delete | Rename
