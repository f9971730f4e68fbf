"""Compiles an agent's core memory into a section of its prompt, with a revision as ETag."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from strata.core_memory.domain.blocks import Block
from strata.core_memory.domain.prompt.memory_section import FORMAT, MemoryForm, render_memory
from strata.core_memory.domain.prompt.tool_rules import ToolRule

NO_BLOCKS = "0"
"""The fingerprint of an agent without blocks and folders."""


@dataclass(frozen=True, slots=True)
class FileLimits:
    """How much of attached files is rendered.

    Attributes:
        max_open: Files that may be open at once.
        view_chars: Characters of one file that are shown.
    """

    max_open: int = 5
    view_chars: int = 15_000


DEFAULT_LIMITS = FileLimits()
MAX_FILES_OPEN = 1_000
MAX_VIEW_CHARS = 10_000_000


@dataclass(frozen=True, slots=True)
class CompileQuery:
    """The memory to render, and the revision that the caller already has.

    Attributes:
        if_revision: The revision that the caller has; empty to force rendering.
        as_of: Render the blocks of this time, without folders; None for now.
    """

    agent_id: str
    form: MemoryForm
    rules: tuple[ToolRule, ...] = ()
    if_revision: str = ""
    limits: FileLimits = DEFAULT_LIMITS
    as_of: datetime | None = None


@dataclass(frozen=True, slots=True)
class AgentMemory:
    """An agent's blocks in one snapshot.

    Attributes:
        fingerprint: Changes with the blocks, their revisions and order, and with the
            rendered parts of folders.
        blocks: In order of attachment; with empty values if the fingerprint equals the
            known one.
        sizes: Characters of each value, by label.
        has_folders: A folder is attached.
    """

    fingerprint: str
    blocks: Sequence[Block]
    sizes: Mapping[str, int]
    has_folders: bool = False


@dataclass(frozen=True, slots=True)
class Compiled:
    """The rendered memory section, or None for the section if it has not changed.

    Attributes:
        revision: Equal revisions mean byte-equal sections.
        section: The text; None if the caller has it.
        blocks: The blocks in the section; without values if the caller has it.
        sizes: Characters of each value, by label.
        has_folders: A folder is attached.
        shown: The section contains the blocks; for some agent types it does not.
    """

    revision: str
    section: str | None
    blocks: Sequence[Block] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)
    has_folders: bool = False
    shown: bool = True

    @property
    def size(self) -> int:
        """UTF-8 bytes of the section; 0 if the caller has it."""
        return len((self.section or "").encode("utf-8", "replace"))

    @property
    def last_modified(self) -> datetime | None:
        """When a block last changed, UTC; None without blocks."""
        return max((block.update_time for block in self.blocks), default=None)


class AttachedFolders(Protocol):
    """An agent's folders and the texts of its open files."""

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the agent's memory; empty if it is not known."""
        ...

    def render(self, labels: Sequence[str]) -> str:
        """Returns the ``<directories>`` element; empty if no folder is attached.

        Args:
            labels: Labels of the agent's blocks, which are tags of the prompt too.
        """
        ...


class MemorySnapshot(Protocol):
    """Reads an agent's memory from one snapshot of the database."""

    async def agent_memory(self, agent_id: str, known_fingerprint: str) -> AgentMemory:
        """Returns the agent's blocks, without values if the fingerprint is the known one.

        MUST be one statement.
        """
        ...

    async def directories(self, agent_id: str, limits: FileLimits) -> AttachedFolders:
        """Returns the agent's folders, and as much of its open files as is shown."""
        ...


class MemoryReader(Protocol):
    """Opens snapshots of agents' memory."""

    def snapshot(self) -> AbstractAsyncContextManager[MemorySnapshot]:
        """Opens a snapshot: all its reads are in one transaction and see the same state."""
        ...

    async def agent_memory(self, agent_id: str, known_fingerprint: str) -> AgentMemory:
        """See `MemorySnapshot.agent_memory`."""
        ...

    async def directories(self, agent_id: str, limits: FileLimits) -> AttachedFolders:
        """Returns the agent's folders, with the fingerprint of the memory that they belong to.

        Unlike in a snapshot, the memory may change while it is read; then the fingerprint is empty.
        """
        ...

    async def agent_memory_as_of(self, agent_id: str, time: datetime) -> AgentMemory:
        """Returns the agent's blocks as they were, without folders."""
        ...


async def compile_memory(reader: MemoryReader, query: CompileQuery) -> Compiled:
    """Returns the memory section of an agent; renders it only if the caller does not have it."""
    form = _form_digest(query)
    known_form, _, known_fingerprint = query.if_revision.partition(".")
    client_fingerprint = known_fingerprint if known_form == form else ""
    memory, directories = await _read(reader, query, client_fingerprint)
    unchanged = memory.fingerprint == client_fingerprint
    return Compiled(
        revision=f"{form}.{memory.fingerprint}",
        section=(
            None
            if unchanged
            else render_memory(query.form, memory.blocks, query.rules, directories=directories)
        ),
        blocks=memory.blocks,
        sizes=memory.sizes,
        has_folders=memory.has_folders,
        shown=query.form.blocks,
    )


async def _read(
    reader: MemoryReader, query: CompileQuery, client_fingerprint: str
) -> tuple[AgentMemory, str]:
    """Returns the blocks and the rendered folders from one snapshot."""
    if query.as_of is not None:
        return await reader.agent_memory_as_of(query.agent_id, query.as_of), ""
    # Blocks are read in one statement, which is a snapshot by itself. Folders need two more, and a
    # transaction only if the memory changed meanwhile.
    memory = await reader.agent_memory(query.agent_id, client_fingerprint)
    if memory.fingerprint == client_fingerprint or not memory.has_folders:
        return memory, ""
    folders = await reader.directories(query.agent_id, query.limits)
    if folders.fingerprint != memory.fingerprint:
        async with reader.snapshot() as snapshot:
            memory = await snapshot.agent_memory(query.agent_id, "")
            folders = await snapshot.directories(query.agent_id, query.limits)
    return memory, folders.render([block.label for block in memory.blocks])


def blocks_fingerprint(blocks: Sequence[Block]) -> str:
    """Returns the fingerprint that the store gives these blocks without folders."""
    if not blocks:
        return NO_BLOCKS
    names = ",".join(f"{block.id}@{block.revision}" for block in blocks)
    return hashlib.md5(names.encode(), usedforsecurity=False).hexdigest()


def _form_digest(query: CompileQuery) -> str:
    rules = [[rule.type, rule.tool_name, rule.children, rule.max_count] for rule in query.rules]
    limits = [query.limits.max_open, query.limits.view_chars]
    parts = [FORMAT, query.form.blocks, query.form.line_numbers, rules, limits]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
