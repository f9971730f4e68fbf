"""Commands and queries of the API, validated, and their results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from strata.core_memory.domain.blocks import Block, EditSelection, NewBlock, Origin
from strata.core_memory.domain.prompt.limits import NO_LIMIT, PromptLimit
from strata.core_memory.domain.text_edits.verbs import Edit


@dataclass(frozen=True, slots=True)
class Actor:
    """The author of a change: the authenticated principal, and the origin that it states."""

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
    """Changes a block through the API; None keeps a field.

    Attributes:
        metadata: Pairs to set; an empty value removes the key.
        expected_revision: 0 for any.
        base_revision: The revision that the new value is based on; 0 overwrites.
        clear_taint: Remove the taint: a person has checked the text.
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
    base_revision: int = 0
    clear_taint: bool = False


@dataclass(frozen=True, slots=True)
class DeleteBlock:
    """Deletes a block; `purge` destroys its history too."""

    actor: Actor
    block_id: str
    purge: bool = False


@dataclass(frozen=True, slots=True)
class RevertBlock:
    """Undoes edits.

    Attributes:
        undo: The edits to undo, unless a revision is named.
        revision: The one edit of the block to undo; 0 for none.
        to_revision: The revision to restore; 0 for none.
        validate_only: Return what would change, and change nothing.
    """

    actor: Actor
    undo: EditSelection
    revision: int = 0
    to_revision: int = 0
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class EditBlock:
    """Applies a memory verb for an agent.

    Attributes:
        expected_revision: 0 for any.
        base_revision: The revision that the editor saw; 0 for the newest.
        block_id: The id that the labelled block must have; empty for any.
    """

    actor: Actor
    agent_id: str
    label: str
    edit: Edit
    expected_revision: int = 0
    base_revision: int = 0
    block_id: str = ""


@dataclass(frozen=True, slots=True)
class Attachment:
    """An agent and a block."""

    agent_id: str
    block_id: str


@dataclass(frozen=True, slots=True)
class ShareBlocks:
    """Attaches each of the blocks to each of the agents."""

    agent_ids: tuple[str, ...]
    block_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PrepareAgent:
    """Creates and attaches the first blocks of an agent.

    Attributes:
        limit: How large its memory may become.
        agent_revision: The revision of the agent that the limit is for.
        follows_agent_id: An agent whose blocks it shares from now on; empty for none.
    """

    actor: Actor
    agent_id: str
    new_blocks: tuple[NewBlock, ...] = ()
    block_ids: tuple[str, ...] = ()
    limit: PromptLimit = NO_LIMIT
    agent_revision: int = 0
    follows_agent_id: str = ""


@dataclass(frozen=True, slots=True)
class LimitPrompt:
    """Sets how large the memory of an agent may become.

    Attributes:
        only_raise: Do not lower the limit yet; refuse if the memory is too large for it.
        agent_revision: The revision of the agent that the limit is for.
    """

    agent_id: str
    limit: PromptLimit
    only_raise: bool = False
    agent_revision: int = 0


@dataclass(frozen=True, slots=True)
class ReleaseAgent:
    """Deletes the core memory of an agent."""

    actor: Actor
    agent_id: str


@dataclass(frozen=True, slots=True)
class GetBlock:
    """A query for a block by id, or by agent and label; at an earlier time, if one is set.

    Attributes:
        detached: If the agent has no block of the label, ask for the last one that it had.
    """

    block_id: str = ""
    agent_id: str = ""
    label: str = ""
    as_of: datetime | None = None
    detached: bool = False


@dataclass(frozen=True, slots=True)
class ListBlocks:
    """A query for the blocks of the project or of an agent, optionally at an earlier time."""

    agent_id: str = ""
    label: str = ""
    as_of: datetime | None = None
    deleted: bool = False

    @property
    def scope(self) -> str:
        """Identifies the list, so that page tokens of another list are rejected."""
        scope = f"ListBlocks {self.agent_id} {self.label}"
        if self.as_of is not None:
            scope += f" as of {self.as_of.isoformat()}"
        return f"{scope} deleted" if self.deleted else scope


@dataclass(frozen=True, slots=True)
class Updated:
    """The block after an update, and whether it was merged with changes of others."""

    block: Block
    merged: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """A block after a change, the diff of its text, and the operation."""

    block: Block
    diff: str
    operation: str


@dataclass(frozen=True, slots=True)
class Edited:
    """The block after an edit, the diff, and the message to the model.

    Attributes:
        changes: Every block that changed.
        merged: The edit was merged with changes of others.
    """

    block: Block
    diff: str
    message: str
    changes: tuple[Change, ...] = ()
    merged: bool = False


@dataclass(frozen=True, slots=True)
class Released:
    """How many blocks were deleted with an agent, and how many were only detached."""

    deleted: int
    detached: int
