"""Compiling an agent's core memory, and naming the result."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from strata.core_memory.domain.blocks import Block
from strata.core_memory.domain.rendering import FORMAT, Form, render_memory
from strata.core_memory.domain.tool_rules import ToolRule

NO_BLOCKS = "0"
"""The fingerprint of an agent without blocks."""


@dataclass(frozen=True, slots=True)
class CompileQuery:
    """What is to be shown, and which rendering the caller has already.

    Attributes:
        if_revision: The revision that the caller has; empty to force rendering.
    """

    agent_id: str
    form: Form
    rules: tuple[ToolRule, ...] = ()
    if_revision: str = ""


@dataclass(frozen=True, slots=True)
class AgentMemory:
    """An agent's blocks at one moment.

    Attributes:
        fingerprint: Names the blocks, their revisions and their order.
        blocks: In order of attachment; with empty values if the fingerprint is the
            one that the reader knew.
        sizes: Characters of each value, by label.
    """

    fingerprint: str
    blocks: Sequence[Block]
    sizes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Compiled:
    """The memory section, or the statement that it has not changed.

    Attributes:
        revision: Names the bytes: equal revisions mean equal sections.
        section: The text; None if the caller has it.
        last_modified: When a block last changed; None without blocks.
        sizes: Characters of each value, by label.
    """

    revision: str
    section: str | None
    last_modified: datetime | None
    sizes: Mapping[str, int] = field(default_factory=dict)


class MemoryReader(Protocol):
    """Where an agent's blocks are read."""

    async def agent_memory(self, agent_id: str, known_fingerprint: str) -> AgentMemory:
        """Returns the agent's blocks, without values if the fingerprint is the known one.

        MUST be one statement.
        """
        ...


async def compile_memory(reader: MemoryReader, query: CompileQuery) -> Compiled:
    """Returns the memory section of an agent, rendered only if the caller lacks it."""
    form = _form_digest(query)
    known_form, _, known_fingerprint = query.if_revision.partition(".")
    known = known_fingerprint if known_form == form else ""
    memory = await reader.agent_memory(query.agent_id, known)
    unchanged = memory.fingerprint == known
    return Compiled(
        revision=f"{form}.{memory.fingerprint}",
        section=None if unchanged else render_memory(query.form, memory.blocks, query.rules),
        last_modified=max((block.update_time for block in memory.blocks), default=None),
        sizes=memory.sizes,
    )


def _form_digest(query: CompileQuery) -> str:
    rules = [[rule.type, rule.tool_name, rule.children, rule.max_count] for rule in query.rules]
    parts = [FORMAT, query.form.blocks, query.form.line_numbers, rules]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
