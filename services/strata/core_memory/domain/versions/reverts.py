"""Undoes edits of blocks.

An edit is undone by a three-way merge of the inverse change into the current block, so
that later edits of other text stay. Consecutive edits are undone as one: undoing the
newest ones restores exactly the block before them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from strata.core_memory.domain.blocks import (
    DELETE,
    Authorship,
    Block,
    Version,
    block_not_found,
    check_limit,
    next_revision,
    version_not_found,
)
from strata.core_memory.domain.commands import Change, RevertBlock
from strata.core_memory.domain.ports import Unit
from strata.core_memory.domain.taint import undone
from strata.core_memory.domain.text_edits.diffs import unified_diff
from strata.core_memory.domain.text_edits.three_way_merge import merge3_text
from strata.core_memory.domain.versions.revision_ranges import (
    RevisionRange,
    already_undone,
    revision_ranges_of,
    write_revision_ranges,
)
from strata.protocol.errors import AbortedError, Reason

REVERT = "revert"

Encode = Callable[[tuple[Change, ...]], bytes]

# Number of ranges whose versions are in memory at once; a block may have a million characters.
_RANGES_AT_ONCE = 20
_FIELDS = ("label", "description", "limit", "read_only")


class UndoConflict(Exception):  # noqa: N818  # It never leaves this module's callers.
    """Later edits changed the same text or field."""


@dataclass(frozen=True, slots=True)
class _BlockRevert:
    """A block, its new state, and the revisions that this undoes."""

    block: Block
    reverted: Block
    ranges: Sequence[RevisionRange]


async def revert(
    unit: Unit, command: RevertBlock, now: datetime, encode: Encode
) -> tuple[Change, ...]:
    """Undoes edits, in all their blocks or in none; returns the changes.

    Edits that were undone before are skipped.

    Raises:
        NotFoundError: There is no such block or version.
        AbortedError: Later edits changed the same text or field (``EDIT_CONFLICT``).
        FailedPreconditionError: A block would be longer than its limit.
        AlreadyExistsError: A label to restore is taken.
        ReplayedError: The request was done before.
    """
    await unit.check_request()
    edits = await _edits(unit, command)
    blocks = await unit.lock_blocks(list(edits))
    if command.undo.block_id and command.undo.block_id not in blocks:
        raise block_not_found(command.undo.block_id)
    reverts = await unit.reverts(list(blocks))
    outcomes: list[_BlockRevert] = []
    conflicts: list[str] = []
    for block in blocks.values():
        undone = already_undone(reverts.get(block.id, {}), edits[block.id])
        ranges = revision_ranges_of(
            revision for revision in edits[block.id] if revision not in undone
        )
        try:
            outcomes.append(await _outcome(unit, block, ranges, command, now))
        except UndoConflict:
            conflicts.append(block.label)
    if conflicts:
        raise _conflict(conflicts)
    changed = [outcome for outcome in outcomes if outcome.reverted != outcome.block]
    return await _write(unit, command, changed, now, encode)


async def _edits(unit: Unit, command: RevertBlock) -> Mapping[str, Sequence[int]]:
    """Returns the revisions to undo, newest first, by block."""
    if command.revision or command.to_revision:
        return {command.undo.block_id: [command.revision] if command.revision else []}
    revisions = await unit.edits(command.undo)
    return {command.undo.block_id: [], **revisions} if command.undo.block_id else revisions


async def _outcome(
    unit: Unit, block: Block, ranges: Sequence[RevisionRange], command: RevertBlock, now: datetime
) -> _BlockRevert:
    if command.to_revision:
        return await _back_to(unit, block, command.to_revision, now)
    reverted = block
    for start in range(0, len(ranges), _RANGES_AT_ONCE):
        some = ranges[start : start + _RANGES_AT_ONCE]
        ends = {revision for range_ in some for revision in (range_.first - 1, range_.last)}
        versions = await unit.versions_at(block.id, sorted(ends))
        for range_ in some:
            if range_.last not in versions:
                raise version_not_found(block.id, range_.last)
        reverted = await asyncio.to_thread(_undo_ranges, reverted, some, versions, now)
    if block.delete_time is None or reverted.delete_time is None:
        return _BlockRevert(block, reverted, ranges)
    if command.revision:
        raise block_not_found(block.id)
    return _BlockRevert(block, block, ())


async def _back_to(unit: Unit, block: Block, revision: int, now: datetime) -> _BlockRevert:
    versions = await unit.versions_at(block.id, [revision])
    if revision not in versions:
        raise version_not_found(block.id, revision)
    reverted = _as_at(block, versions[revision], now)
    return _BlockRevert(block, reverted, [RevisionRange(revision + 1, block.revision)])


def _undo_ranges(
    block: Block, ranges: Sequence[RevisionRange], versions: Mapping[int, Version], now: datetime
) -> Block:
    for range_ in ranges:
        block = undo(block, versions.get(range_.first - 1), versions[range_.last], now)
    return block


def undo(block: Block, before: Version | None, after: Version, now: datetime) -> Block:
    """Returns a block without the changes from one version to a later one.

    Args:
        block: The current block.
        before: The version before the edits; None if they made the block.
        after: The version that they led to.
        now: The time of deletion, if the block is deleted by that.

    Raises:
        UndoConflict: Later edits changed the same text or field.
    """
    if before is None:
        if block.delete_time is None and block.value != after.value:
            raise UndoConflict
        return replace(block, delete_time=block.delete_time or now)
    value = merge3_text(after.value, block.value, before.value)
    if value is None:
        raise UndoConflict
    fields: dict[str, Any] = {
        name: _undone(getattr(before, name), getattr(after, name), getattr(block, name))
        for name in _FIELDS
    }
    deleted = _undone(before.deleted, after.deleted, block.delete_time is not None)
    reverted = replace(
        block,
        value=value,
        metadata=_undone_metadata(before.metadata, after.metadata, block.metadata),
        delete_time=(block.delete_time or now) if deleted else None,
        **fields,
    )
    return replace(reverted, taint=undone(reverted, before))


def _undone(before: Any, after: Any, current: Any) -> Any:
    if before == after:
        return current
    if current not in (before, after):
        raise UndoConflict
    return before


def _undone_metadata(
    before: Mapping[str, str], after: Mapping[str, str], current: Mapping[str, str]
) -> Mapping[str, str]:
    keys = {**current, **before}
    values = {key: _undone(before.get(key), after.get(key), current.get(key)) for key in keys}
    return {key: value for key, value in values.items() if value is not None}


def _as_at(block: Block, version: Version, now: datetime) -> Block:
    """Returns a block with the content of a version."""
    return replace(
        block,
        label=version.label,
        value=version.value,
        description=version.description,
        limit=version.limit,
        read_only=version.read_only,
        metadata=version.metadata,
        taint=version.taint,
        delete_time=(block.delete_time or now) if version.deleted else None,
    )


async def _write(
    unit: Unit,
    command: RevertBlock,
    outcomes: Sequence[_BlockRevert],
    now: datetime,
    encode: Encode,
) -> tuple[Change, ...]:
    changes: list[Change] = []
    versions: list[tuple[Block, Authorship]] = []
    for outcome in outcomes:
        changed = _next(outcome.reverted, now)
        operation = REVERT if changed.delete_time is None else DELETE
        diff = unified_diff(outcome.block.value, changed.value)
        changes.append(Change(changed, diff, operation))
        authorship = _authorship(command, operation, changed.update_time)
        versions.append(
            (changed, replace(authorship, undoes=write_revision_ranges(outcome.ranges)))
        )
    result = tuple(changes)
    if command.validate_only:
        if versions:
            await unit.check_update_all(versions)
    elif versions:
        await unit.update_all(versions, response=encode(result))
    else:
        await unit.finish(encode(result))
    return result


def _next(reverted: Block, now: datetime) -> Block:
    changed = next_revision(reverted, now)
    if changed.delete_time is not None:
        return replace(changed, delete_time=changed.update_time, agent_ids=())
    check_limit(changed.label, changed.value, changed.limit)
    return changed


def _authorship(command: RevertBlock, operation: str, time: datetime) -> Authorship:
    origin = command.actor.origin
    return Authorship(
        operation,
        replace(origin, reason=origin.reason or _reason(command)),
        command.actor.principal,
        time,
    )


def _reason(command: RevertBlock) -> str:
    """Returns the default reason of a revert in the history."""
    undo = command.undo
    if command.revision:
        return f"undoes revision {command.revision}"
    if command.to_revision:
        return f"goes back to revision {command.to_revision}"
    parts = [
        f"of run {undo.run_id}" if undo.run_id else "",
        f"of agent {undo.agent_id}" if undo.agent_id else "",
        f"since {undo.since.isoformat(timespec='seconds')}" if undo.since else "",
    ]
    return " ".join(["undoes the edits", *(part for part in parts if part)])


def _conflict(labels: Sequence[str]) -> AbortedError:
    quoted_labels = ", ".join(f"'{label}'" for label in sorted(labels))
    return AbortedError(
        f"Nothing was undone: later edits changed the same text of memory block {quoted_labels}. "
        "Undo those first, go back to a revision as a whole (to_revision), or edit the block.",
        reason=Reason.EDIT_CONFLICT,
        metadata={"labels": ",".join(sorted(labels))},
    )
