"""Blocks of core memory, their versions, and the rules for every block."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType

from strata.protocol.errors import AbortedError, FailedPreconditionError, NotFoundError, Reason
from strata.shared.ids import new_id

DEFAULT_LIMIT = 20_000
"""Default limit of a block, in characters."""

MAX_LIMIT = 1_000_000
"""Highest limit of a block, in characters: one block must fit into one gRPC message."""

DELETE = "delete"
"""The operation of the version that deletes a block; no other version has it."""

NEARLY_FULL_PERCENT = 90

LABEL_RULE = (
    "must start with a letter, hold only letters, digits, '_', '-' and '.', have at most 64 "
    "characters, and not be a tag of the prompt itself"
)

_LABEL = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")

# A block is rendered between tags named after it. These tags have a meaning already.
_RESERVED_LABELS = frozenset(
    {
        "memory_blocks",
        "memory_metadata",
        "tool_usage_rules",
        "directories",
        "description",
        "metadata",
        "warning",
        "value",
    }
)

_DESCRIPTIONS = {
    "human": (
        "What you know about the person you are talking with: name, circumstances, tastes, plans. "
        "Keep it up to date, so that you treat them as someone you know."
    ),
    "persona": (
        "Who you are: your character, your manner of speaking, what you care about. It guides "
        "how you act and answer, and it may grow with experience."
    ),
}
_NEUTRAL_DESCRIPTION = "Notes of lasting use that belong under this title."

_NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Block:
    """A labelled piece of core memory in its stored form.

    Attributes:
        id: ``block-<uuid>``.
        label: Name, unique per agent; also the name of its tag in the prompt.
        value: The text.
        description: How the block should influence the agent; shown to the model.
        limit: Maximum number of characters of `value`.
        read_only: True if agents may not change it.
        revision: 1 for a new block; every change increases it by one.
        create_time: When it was created, UTC.
        update_time: When it last changed, UTC.
        metadata: Key-value pairs that API clients set.
        agent_ids: Agents to which it is attached, in order of attachment.
        delete_time: When it was deleted, UTC; None if it is not deleted.
        taint: Labels of untrusted content that its text derives from; see `domain.taint`.
    """

    id: str
    label: str
    value: str
    description: str
    limit: int
    read_only: bool
    revision: int
    create_time: datetime
    update_time: datetime
    metadata: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    agent_ids: tuple[str, ...] = ()
    delete_time: datetime | None = None
    taint: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NewBlock:
    """A block to create, with defaults filled in."""

    label: str
    value: str
    description: str
    limit: int = DEFAULT_LIMIT
    read_only: bool = False
    metadata: Mapping[str, str] = field(default_factory=lambda: _NOTHING)


class EditorKind(StrEnum):
    """The kind of author of a change."""

    UNKNOWN = ""
    USER = "user"
    AGENT = "agent"
    SLEEPTIME_AGENT = "sleeptime_agent"


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a change; empty fields are unknown or do not apply.

    Attributes:
        taint: Labels of the untrusted content that the editor had read.
    """

    agent_id: str = ""
    run_id: str = ""
    step_id: str = ""
    tool_call_id: str = ""
    model: str = ""
    reason: str = ""
    kind: EditorKind = EditorKind.UNKNOWN
    taint: tuple[str, ...] = ()
    tool_name: str = ""


@dataclass(frozen=True, slots=True)
class Authorship:
    """The author and circumstances of a version.

    Attributes:
        operation: The verb: ``create``, ``append``, ``replace``, ``update`` and so on.
        origin: The agent, run, step and tool call.
        principal: The API key or user that made the request.
        time: When, UTC.
        base_revision: The revision that the change was based on, if it was merged with
            changes of others; else 0.
        undoes: The revisions that a revert undid, see `revision_ranges`; else empty.
    """

    operation: str
    origin: Origin
    principal: str
    time: datetime
    base_revision: int = 0
    undoes: str = ""


@dataclass(frozen=True, slots=True)
class Version:
    """One entry of a block's history: the whole block after a change."""

    block_id: str
    revision: int
    label: str
    value: str
    description: str
    limit: int
    read_only: bool
    metadata: Mapping[str, str]
    authorship: Authorship
    taint: tuple[str, ...] = ()

    @property
    def deleted(self) -> bool:
        """True if this version deleted the block."""
        return self.authorship.operation == DELETE


@dataclass(frozen=True, slots=True)
class EditSelection:
    """Selects the edits that match all fields that are set.

    Attributes:
        block_id: Only edits of this block.
        run_id: Only edits made by this run.
        agent_id: Only edits made by this agent.
        since: Only edits made at this time or later.
    """

    block_id: str = ""
    run_id: str = ""
    agent_id: str = ""
    since: datetime | None = None


def made_block(new: NewBlock, agent_ids: tuple[str, ...], now: datetime) -> Block:
    """Returns the first revision of a new block.

    Raises:
        FailedPreconditionError: Its text is longer than its limit (``BLOCK_LIMIT_EXCEEDED``).
    """
    check_limit(new.label, new.value, new.limit)
    return Block(
        id=new_id("block"),
        label=new.label,
        value=new.value,
        description=new.description,
        limit=new.limit,
        read_only=new.read_only,
        revision=1,
        create_time=now,
        update_time=now,
        metadata=new.metadata,
        agent_ids=agent_ids,
    )


def next_revision(block: Block, now: datetime) -> Block:
    """Returns a changed block as its next revision; `update_time` never decreases."""
    return replace(block, revision=block.revision + 1, update_time=max(now, block.update_time))


def deleted_block(block: Block, now: datetime) -> Block:
    """Returns the last revision of a block: deleted and detached from all agents."""
    deleted = next_revision(block, now)
    return replace(deleted, delete_time=deleted.update_time, agent_ids=())


def default_description(label: str) -> str:
    """Returns the description of a block that was created without one."""
    return _DESCRIPTIONS.get(label, _NEUTRAL_DESCRIPTION)


def is_label(text: str) -> bool:
    """Returns whether a text is a valid label; `LABEL_RULE` is the rule in words."""
    return _LABEL.fullmatch(text) is not None and text.lower() not in _RESERVED_LABELS


def label_of(text: str) -> str:
    """Returns the label for a name that may be written as a path, as some models do.

    ``/memories/a/b`` becomes the label ``a_b`` (docs/wire-format.md#memory-blocks).
    """
    if not text.startswith("/"):
        return text
    return text.removeprefix("/memories/").strip("/").replace("/", "_")


def check_limit(label: str, value: str, limit: int) -> None:
    """Raises if a text is longer than the limit of its block, in characters.

    Raises:
        FailedPreconditionError: It is too long (``BLOCK_LIMIT_EXCEEDED``).
    """
    if len(value) > limit:
        raise FailedPreconditionError(
            f"Value length ({len(value)} characters) exceeds block limit ({limit} characters). "
            f"Memory block '{label}' was not changed: write less, or first remove text that is no "
            "longer needed.",
            reason=Reason.BLOCK_LIMIT_EXCEEDED,
            metadata={"label": label, "limit": limit, "length": len(value)},
        )


def used_percent(block: Block) -> int:
    """Returns how many whole percent of its limit a block uses."""
    return len(block.value) * 100 // block.limit


def is_nearly_full(block: Block) -> bool:
    """Returns whether a block is so full that its readers are warned."""
    return used_percent(block) >= NEARLY_FULL_PERCENT


def check_revision(block: Block, expected: int) -> None:
    """Raises if the block is not at the expected revision; 0 accepts any.

    Raises:
        AbortedError: It has changed since (``REVISION_MISMATCH``).
    """
    if expected not in (0, block.revision):
        raise revision_mismatch(block, expected)


def revision_mismatch(block: Block, expected: int) -> AbortedError:
    """Returns the error for a block that is not at the expected revision."""
    return AbortedError(
        f"Memory block '{block.label}' is at revision {block.revision}, not {expected}: "
        "read it again before you change it.",
        reason=Reason.REVISION_MISMATCH,
        metadata={"expected": expected, "current": block.revision},
    )


def agent_not_found(agent_id: str) -> NotFoundError:
    """Returns the error for an agent that the project does not have."""
    return NotFoundError(
        f"There is no agent {agent_id}.",
        reason=Reason.AGENT_NOT_FOUND,
        metadata={"id": agent_id},
    )


def block_not_found(block_id: str) -> NotFoundError:
    """Returns the error for a block that the project does not have."""
    return NotFoundError(
        f"There is no block {block_id}.",
        reason=Reason.BLOCK_NOT_FOUND,
        metadata={"id": block_id},
    )


def version_not_found(block_id: str, revision: int) -> NotFoundError:
    """Returns the error for a version that a block does not have."""
    return NotFoundError(
        f"Block {block_id} has no version {revision}.",
        reason=Reason.VERSION_NOT_FOUND,
        metadata={"id": block_id, "revision": revision},
    )
