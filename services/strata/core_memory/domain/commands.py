"""What the API asks of core memory, checked and complete."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from strata.core_memory.domain.blocks import Block, NewBlock, Origin
from strata.core_memory.domain.edits import Edit


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts: the verified principal, and what it says of where the change came from."""

    principal: str
    origin: Origin


@dataclass(frozen=True, slots=True)
class CreateBlock:
    """Makes a block; attaches it if there is an agent."""

    actor: Actor
    block: NewBlock
    agent_id: str = ""


@dataclass(frozen=True, slots=True)
class UpdateBlock:
    """Changes a block as the API may; None leaves a field as it is.

    Attributes:
        metadata: Pairs to set; an empty value removes the key.
        expected_revision: 0 for any.
    """

    actor: Actor
    block_id: str
    label: str | None = None
    value: str | None = None
    description: str | None = None
    limit: int | None = None
    read_only: bool | None = None
    metadata: Mapping[str, str] | None = None
    expected_revision: int = 0


@dataclass(frozen=True, slots=True)
class EditBlock:
    """Applies a memory verb as an agent does."""

    actor: Actor
    agent_id: str
    label: str
    edit: Edit
    expected_revision: int = 0


@dataclass(frozen=True, slots=True)
class Attachment:
    """An agent and a block."""

    agent_id: str
    block_id: str


@dataclass(frozen=True, slots=True)
class PrepareAgent:
    """Makes and attaches the first blocks of an agent."""

    actor: Actor
    agent_id: str
    new_blocks: tuple[NewBlock, ...] = ()
    block_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GetBlock:
    """Asks for a block by id, or by agent and label; as it was, if there is a time."""

    block_id: str = ""
    agent_id: str = ""
    label: str = ""
    as_of: datetime | None = None


@dataclass(frozen=True, slots=True)
class Edited:
    """The block after a verb, the change as a diff, and what the model is told."""

    block: Block
    diff: str
    message: str


@dataclass(frozen=True, slots=True)
class Released:
    """How many blocks ended with an agent, and how many were only detached."""

    deleted: int
    detached: int
