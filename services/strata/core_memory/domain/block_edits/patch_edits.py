"""Applies a patch to the stored blocks that it names: to all of them or to none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from strata.core_memory.domain.block_edits.base_revisions import is_outdated, text_at
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
from strata.core_memory.domain.ports import Unit
from strata.core_memory.domain.taint import marked
from strata.core_memory.domain.text_edits.diffs import unified_diff
from strata.core_memory.domain.text_edits.edited_text import check_no_line_numbers, check_writable
from strata.core_memory.domain.text_edits.messages import (
    REVIEW,
    TextMissingError,
    bad_label,
    edit_conflict,
    label_taken,
    not_applicable,
    success_message,
    unknown_label,
)
from strata.core_memory.domain.text_edits.patches import Action, Section, apply_section, parse_patch
from strata.core_memory.domain.text_edits.verbs import Create, Delete, Patch, Rename
from strata.protocol.errors import StrataError, invalid_field


@dataclass(frozen=True, slots=True)
class _Step:
    """The effect of one section: the block before (None if it is added) and after."""

    section: Section
    before: Block | None
    after: Block

    @property
    def changes(self) -> bool:
        """False if the section has no effect."""
        return self.before != self.after

    @property
    def edits_only(self) -> bool:
        """True if it changes only the text."""
        return self.section.action is Action.UPDATE and self.after.label == self.section.label

    @property
    def operation(self) -> str:
        """The verb of the version."""
        if self.before is None:
            return Create.operation
        if self.section.action is Action.DELETE:
            return Delete.operation
        return Patch.operation if self.before.value != self.after.value else Rename.operation

    @property
    def summary(self) -> str:
        """The part of the success message about this block."""
        label = self.section.label
        if self.before is None:
            return f"created `{label}`"
        if self.section.action is Action.DELETE:
            return f"deleted `{label}`"
        return (
            f"edited `{label}`" if self.edits_only else f"renamed `{label}` to `{self.after.label}`"
        )

    def change(self) -> Change:
        """Returns the change, with its diff."""
        before = "" if self.before is None else self.before.value
        return Change(self.after, unified_diff(before, self.after.value), self.operation)


async def apply_patch(
    unit: Unit,
    command: EditBlock,
    patch: Patch,
    now: datetime,
    encode: Callable[[Edited], bytes],
) -> Edited:
    """Applies a patch to the newest texts of the agent's blocks.

    Raises:
        NotFoundError: The agent has no such label.
        FailedPreconditionError: A block is read-only, would be too long, or does not have
            the text that is to be changed.
        AbortedError: The block is not at the expected revision, or others changed the text
            that is to be changed.
        AlreadyExistsError: A new label is taken.
        InvalidArgumentError: `expected_revision` is set, and the patch names several blocks.
        ReplayedError: The request was done before.
    """
    check_no_line_numbers(command.label, patch)
    parsed = parse_patch(patch.patch)
    names = {command.label, *(section.label for section in parsed)} - {""}
    blocks, labels = await unit.lock_all(command.agent_id, sorted(names))
    sections = _addressed(parsed, command.label, labels)
    only = blocks.get(sections[0].label) if len(sections) == 1 else None
    _check_expected(command, sections, only)
    try:
        planned = _planned(sections, blocks, labels, command.agent_id, now)
    except TextMissingError as error:
        if only is not None and await _applies_to_base(unit, command, sections[0], only, labels):
            raise edit_conflict(only) from error
        raise
    steps = [_marked(step, command.actor.origin.taint) for step in planned]
    edited = _edited(steps)
    await _write(unit, command, steps, now, encode(edited))
    return edited


def _addressed(sections: Sequence[Section], label: str, labels: Sequence[str]) -> Sequence[Section]:
    """Returns the sections, each with its label.

    Raises:
        FailedPreconditionError: A section has no label, or two have the same.
    """
    only = sections[0]
    if label and len(sections) == 1 and only.loose and only.label not in labels:
        # Models put headers such as "--- before" above the patch of a block that the call names.
        sections = [replace(only, label=label, new_label="")]
    labelled = [replace(section, label=section.label or label) for section in sections]
    seen: set[str] = set()
    for section in labelled:
        if not section.label:
            raise not_applicable(
                "",
                "The patch does not say which block it is for. Name a label, or write a line "
                "'*** Update Block: LABEL' above the hunks.",
            )
        if section.label in seen:
            raise not_applicable(
                section.label,
                f"The patch names block `{section.label}` twice. Put all its hunks below one "
                "header.",
            )
        seen.add(section.label)
    return labelled


def _check_expected(command: EditBlock, sections: Sequence[Section], only: Block | None) -> None:
    if only is not None:
        check_revision(only, command.expected_revision)
        is_outdated(only, command.base_revision)
    elif command.expected_revision and len(sections) > 1:
        raise invalid_field("expected_revision", "is of one block, and the patch names several")


async def _applies_to_base(
    unit: Unit, command: EditBlock, section: Section, block: Block, labels: Sequence[str]
) -> bool:
    """Returns whether the section applies to the text that the editor saw."""
    if not is_outdated(block, command.base_revision):
        return False
    base = await text_at(unit, block, command.base_revision)
    try:
        apply_section(block.label, base, section, labels)
    except StrataError:
        return False
    return True


def _planned(
    sections: Sequence[Section],
    blocks: Mapping[str, Block],
    labels: Sequence[str],
    agent_id: str,
    now: datetime,
) -> list[_Step]:
    """Returns the checked effects of all sections.

    A block may take the label of a block that the patch deletes.
    """
    used_labels = set(labels) - {
        section.label for section in sections if section.action is Action.DELETE
    }
    steps: list[_Step] = []
    for section in sections:
        block = blocks.get(section.label)
        match section.action:
            case Action.ADD:
                step = _added(section, block, used_labels, agent_id, now)
            case Action.UPDATE:
                step = _updated(section, block, labels, used_labels, now)
            case Action.DELETE:
                step = _detached(section, block, labels, agent_id)
        steps.append(step)
        if section.action is not Action.DELETE:
            used_labels.add(step.after.label)
    return steps


def _added(
    section: Section, block: Block | None, used_labels: set[str], agent_id: str, now: datetime
) -> _Step:
    label = section.label
    if not is_label(label):
        raise bad_label(label, LABEL_RULE)
    if label in used_labels:
        if block is not None:
            check_writable(block)
        raise label_taken(label)
    new = NewBlock(label, section.text, default_description(label))
    return _Step(section, None, made_block(new, (agent_id,), now))


def _updated(
    section: Section,
    block: Block | None,
    labels: Sequence[str],
    used_labels: set[str],
    now: datetime,
) -> _Step:
    if block is None:
        raise unknown_label(section.label, labels)
    check_writable(block)
    label = section.new_label or block.label
    if not is_label(label):
        raise bad_label(label, LABEL_RULE)
    if label != block.label and label in used_labels:
        raise label_taken(label)
    value = apply_section(block.label, block.value, section, labels)
    check_limit(block.label, value, block.limit)
    after = replace(block, label=label, value=value)
    return _Step(section, block, block if after == block else next_revision(after, now))


def _detached(section: Section, block: Block | None, labels: Sequence[str], agent_id: str) -> _Step:
    if block is None:
        raise unknown_label(section.label, labels)
    check_writable(block)
    agents = tuple(other for other in block.agent_ids if other != agent_id)
    return _Step(section, block, replace(block, agent_ids=agents))


def _marked(step: _Step, taint: Sequence[str]) -> _Step:
    if step.section.action is Action.DELETE:
        return step
    return replace(step, after=marked(step.before, step.after, taint))


def _edited(steps: Sequence[_Step]) -> Edited:
    changes = tuple(step.change() for step in steps if step.changes)
    first = changes[0] if changes else Change(steps[0].after, "", "")
    if len(steps) == 1 and steps[0].edits_only:
        message = success_message(Patch(""), steps[0].section.label)
    else:
        summaries = ", ".join(step.summary for step in steps)
        message = f"Successfully applied the patch: {summaries}. {REVIEW}"
    return Edited(first.block, first.diff, message, changes)


async def _write(
    unit: Unit, command: EditBlock, steps: Sequence[_Step], now: datetime, response: bytes
) -> None:
    """Writes the steps; first the deletions, which free labels."""
    agent, actor = command.agent_id, command.actor
    for step in steps:
        if step.section.action is Action.DELETE:
            await unit.detach(agent, step.after.id, now)

    def authorship(step: _Step) -> Authorship:
        return Authorship(step.operation, actor.origin, actor.principal, step.after.update_time)

    updates = [s for s in steps if s.section.action is Action.UPDATE and s.changes]
    if updates:
        changed = [(step.after, authorship(step)) for step in updates]
        await unit.update_all(changed, response=response)
    else:
        await unit.finish(response)
    created_steps = [step for step in steps if step.before is None]
    if created_steps:
        blocks = [step.after for step in created_steps]
        await unit.insert_all(blocks, authorship(created_steps[0]), made_for=agent)
        await unit.attach(agent, {block.id: block.label for block in blocks}, now)
