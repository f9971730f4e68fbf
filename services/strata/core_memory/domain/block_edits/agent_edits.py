"""Applies the memory verbs of agents to stored blocks: locks, checks, edits and writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from strata.core_memory.domain.block_edits.base_revisions import is_outdated, text_at
from strata.core_memory.domain.block_edits.patch_edits import apply_patch
from strata.core_memory.domain.blocks import (
    LABEL_RULE,
    Authorship,
    Block,
    NewBlock,
    check_limit,
    check_revision,
    default_description,
    is_label,
    made_block,
    next_revision,
)
from strata.core_memory.domain.commands import Change, EditBlock, Edited
from strata.core_memory.domain.ports import LabelledBlock, Unit
from strata.core_memory.domain.taint import marked
from strata.core_memory.domain.text_edits.diffs import unified_diff
from strata.core_memory.domain.text_edits.edited_text import (
    apply_edit,
    check_no_line_numbers,
    check_writable,
    merge_edit,
)
from strata.core_memory.domain.text_edits.messages import (
    TextMissingError,
    bad_label,
    block_not_attached,
    edit_conflict,
    label_taken,
    success_message,
    unknown_label,
)
from strata.core_memory.domain.text_edits.verbs import (
    Create,
    Delete,
    Edit,
    Insert,
    Patch,
    Rename,
    Rethink,
    TextEdit,
)
from strata.protocol.errors import StrataError

Encode = Callable[[Edited], bytes]


async def apply_verb(unit: Unit, command: EditBlock, now: datetime, encode: Encode) -> Edited:
    """Applies one memory verb to the newest text of the agent's block.

    Raises:
        NotFoundError: The agent has no block of that label, or one with another id.
        FailedPreconditionError: Read-only, over the limit, or not applicable.
        AbortedError: The block is not at the expected revision, or others changed the text
            that is to be changed since the agent saw it.
        AlreadyExistsError: The new label is taken.
        ReplayedError: The request was done before.
    """
    edit = command.edit
    if isinstance(edit, Patch):
        return await apply_patch(unit, command, edit, now, encode)
    labelled = await unit.lock_labelled(command.agent_id, command.label)
    if command.block_id and (labelled.block is None or labelled.block.id != command.block_id):
        # Another block may have the label now, which must not be overwritten.
        raise block_not_attached(command.label)
    verb = _Verb(unit, command, labelled, now, encode)
    if labelled.block is None:
        return await verb.create(edit)
    check_revision(labelled.block, command.expected_revision)
    check_writable(labelled.block)
    check_no_line_numbers(command.label, edit)
    match edit:
        case Create():
            raise label_taken(command.label)
        case Delete():
            return await verb.detach(labelled.block)
        case Rename():
            return await verb.rename(labelled.block, edit)
        case _:
            return await verb.rewrite(labelled.block, edit)


class _Verb:
    """One verb in one transaction: the command and the locked block."""

    def __init__(
        self, unit: Unit, command: EditBlock, labelled: LabelledBlock, now: datetime, encode: Encode
    ) -> None:
        self._unit = unit
        self._command = command
        self._labelled = labelled
        self._now = now
        self._encode = encode

    async def create(self, edit: Edit) -> Edited:
        """Creates the block, if the verb is allowed to."""
        command = self._command
        label = command.label
        match edit:
            case Create(text, description):
                message = f"Successfully created memory block '{label}'"
            case Rethink(text):
                description, message = "", success_message(edit, label)
            case _:
                raise unknown_label(label, self._labelled.labels)
        if not is_label(label):
            raise bad_label(label, LABEL_RULE)
        check_no_line_numbers(label, edit)
        new = NewBlock(label, text, description or default_description(label))
        check_limit(label, text, new.limit)
        made = made_block(new, (command.agent_id,), self._now)
        block = marked(None, made, command.actor.origin.taint)
        edited = self._edited(block, unified_diff("", text), message)
        await self._unit.insert(
            block,
            self._authorship(block),
            agent_id=command.agent_id,
            made_for=command.agent_id,
            response=self._encode(edited),
        )
        return edited

    async def rewrite(self, block: Block, edit: TextEdit) -> Edited:
        """Changes the text. An edit without an effect stores no version."""
        base = await self._base(block, edit)
        labels = self._labelled.labels
        if base is None:
            value = await self._applied(block, edit)
        else:
            value = merge_edit(block, edit, base, labels)
        message = success_message(edit, block.label)
        merged = base is not None and base != block.value
        return await self._store(block, replace(block, value=value), message, merged=merged)

    async def _base(self, block: Block, edit: TextEdit) -> str | None:
        """Returns the base of the three-way merge; None if the edit applies to the newest text."""
        base = self._command.base_revision
        if not is_outdated(block, base):
            return None
        match edit:
            case Rethink():
                return await text_at(self._unit, block, base)
            case Insert(_, line) if line >= 0:
                return await text_at(self._unit, block, base)
            case _:
                return None

    async def rename(self, block: Block, edit: Rename) -> Edited:
        """Changes label, description, or both."""
        label = edit.new_label or block.label
        if not is_label(label):
            raise bad_label(label, LABEL_RULE)
        if label != block.label and label in self._labelled.labels:
            raise label_taken(label)
        description = block.description if edit.description is None else edit.description
        message = (
            f"Successfully renamed memory block '{block.label}' to '{label}'"
            if edit.new_label
            else f"Successfully updated description of memory block '{block.label}'"
        )
        return await self._store(
            block, replace(block, label=label, description=description), message
        )

    async def detach(self, block: Block) -> Edited:
        """Takes the block out of the agent's memory; the block itself stays."""
        agent_id = self._command.agent_id
        await self._unit.detach(agent_id, block.id, self._now)
        remaining = tuple(other for other in block.agent_ids if other != agent_id)
        message = f"Successfully deleted memory block '{block.label}'"
        edited = self._edited(replace(block, agent_ids=remaining), "", message)
        await self._unit.finish(self._encode(edited))
        return edited

    async def _applied(self, block: Block, edit: TextEdit) -> str:
        """Applies an edit to the newest text.

        Raises:
            AbortedError: Others changed the text that the edit refers to.
        """
        try:
            return apply_edit(block, edit, self._labelled.labels)
        except TextMissingError as error:
            if not is_outdated(block, self._command.base_revision):
                raise
            base = await text_at(self._unit, block, self._command.base_revision)
            try:
                apply_edit(replace(block, value=base), edit, self._labelled.labels)
            except StrataError:
                raise error from None
            raise edit_conflict(block) from error

    async def _store(
        self, block: Block, changed: Block, message: str, *, merged: bool = False
    ) -> Edited:
        if changed == block:
            edited = Edited(block, "", message)
            await self._unit.finish(self._encode(edited))
            return edited
        changed = marked(block, changed, self._command.actor.origin.taint)
        changed = next_revision(changed, self._now)
        diff = unified_diff(block.value, changed.value)
        edited = self._edited(changed, diff, message, merged=merged)
        base = self._command.base_revision if merged else 0
        authorship = self._authorship(changed, base)
        await self._unit.update(changed, authorship, response=self._encode(edited))
        return edited

    def _edited(self, block: Block, diff: str, message: str, *, merged: bool = False) -> Edited:
        change = Change(block, diff, self._command.edit.operation)
        return Edited(block, diff, message, (change,), merged)

    def _authorship(self, block: Block, base: int = 0) -> Authorship:
        actor = self._command.actor
        operation = self._command.edit.operation
        return Authorship(operation, actor.origin, actor.principal, block.update_time, base)
