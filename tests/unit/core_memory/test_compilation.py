"""Compilation of the memory section and its revision, over a reader in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from strata.core_memory.domain.blocks import Block
from strata.core_memory.domain.prompt.compilation import (
    AgentMemory,
    Compiled,
    CompileQuery,
    FileLimits,
    compile_memory,
)
from strata.core_memory.domain.prompt.memory_section import MemoryForm

NOW = datetime(2026, 11, 21, tzinfo=UTC)
QUERY = CompileQuery("agent-1", MemoryForm.of("", line_numbers=False))


@dataclass
class Folders:
    """The folders in a snapshot of a `Memory`."""

    memory: Memory
    agent_id: str
    limits: FileLimits

    @property
    def fingerprint(self) -> str:
        return self.memory.fingerprint

    def render(self, labels: Sequence[str]) -> str:
        self.memory.rendered.append((self.agent_id, labels, self.limits))
        return f"<directories>{self.memory.folder}</directories>" if self.memory.folder else ""


@dataclass
class Memory:
    """An agent's memory with one block and optionally a folder, whose texts a test can set.

    Attributes:
        next_value: The value that the block has when the folders are read, if it differs.
        reads: How often the blocks were read.
        snapshots: How many transactions were opened.
        rendered: What the folders were rendered with.
    """

    value: str = "a"
    folder: str = ""
    next_value: str | None = None
    reads: int = 0
    snapshots: int = 0
    rendered: list[tuple[str, Sequence[str], FileLimits]] = field(default_factory=list)

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Memory]:
        self.snapshots += 1
        yield self

    @property
    def fingerprint(self) -> str:
        return f"{self.value}+{self.folder}" if self.folder else self.value

    async def agent_memory(self, agent_id: str, known_fingerprint: str) -> AgentMemory:
        self.reads += 1
        value = "" if self.fingerprint == known_fingerprint else self.value
        block = Block("block-1", "human", value, "About.", 100, False, 3, NOW, NOW)
        return AgentMemory(self.fingerprint, [block], {"human": len(self.value)}, bool(self.folder))

    async def agent_memory_as_of(self, agent_id: str, time: datetime) -> AgentMemory:
        block = Block("block-1", "human", "past", "About.", 100, False, 1, NOW, time)
        return AgentMemory("past", [block], {"human": 4})

    async def directories(self, agent_id: str, limits: FileLimits) -> Folders:
        self.value, self.next_value = self.next_value or self.value, None
        return Folders(self, agent_id, limits)


async def compiled(memory: Memory, query: CompileQuery = QUERY) -> Compiled:
    return await compile_memory(memory, query)


async def test_an_unchanged_memory_is_read_once_and_not_rendered() -> None:
    memory = Memory(folder="f")
    first = await compiled(memory)
    memory.reads, memory.rendered = 0, []
    again = await compiled(memory, replace(QUERY, if_revision=first.revision))
    assert (again.section, again.revision, again.sizes) == (None, first.revision, {"human": 1})
    assert again.has_folders
    assert [block.revision for block in again.blocks] == [3]
    assert (memory.reads, memory.rendered) == (1, [])


async def test_folders_are_rendered_last_and_read_only_if_attached() -> None:
    memory = Memory(folder="f")
    limits = FileLimits(max_open=2, view_chars=10)
    section = (await compiled(memory, replace(QUERY, limits=limits))).section
    assert section is not None
    assert section.endswith("</memory_blocks>\n\n<directories>f</directories>")
    assert memory.rendered == [("agent-1", ["human"], limits)]
    assert (memory.reads, memory.snapshots) == (1, 0), "the values of the blocks are sent once"
    without = Memory()
    assert not (await compiled(without)).has_folders
    assert (without.reads, without.rendered) == (1, [])


async def test_blocks_that_change_before_the_folders_are_read_are_read_again() -> None:
    memory = Memory(folder="f", next_value="b")
    section = await compiled(memory)
    assert section.section is not None
    assert "\nb\n" in section.section
    assert section.revision == (await compiled(Memory("b", "f"))).revision
    assert (memory.reads, memory.snapshots) == (2, 1)


async def test_the_revision_depends_on_form_and_limits() -> None:
    memory = Memory()
    queries = [
        QUERY,
        replace(QUERY, form=MemoryForm.of("", line_numbers=True)),
        replace(QUERY, form=MemoryForm.of("react_agent", line_numbers=False)),
        replace(QUERY, limits=FileLimits(max_open=6)),
        replace(QUERY, limits=FileLimits(view_chars=6)),
    ]
    revisions = {(await compiled(memory, query)).revision for query in queries}
    assert len(revisions) == len(queries)


async def test_past_memory_is_compiled_without_folders() -> None:
    memory = Memory(folder="f")
    past = await compiled(memory, replace(QUERY, as_of=NOW))
    assert past.section is not None
    assert "past" in past.section
    assert past.section.endswith("</memory_blocks>")
    assert (memory.reads, past.has_folders, past.last_modified) == (0, False, NOW)
    query = replace(QUERY, as_of=NOW, if_revision=past.revision)
    assert (await compiled(memory, query)).section is None
