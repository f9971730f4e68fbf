"""Parses unified patches as agents write them, and applies them to a text.

Line counts and line numbers of a patch are ignored, since models get them wrong: a hunk
applies where its context is. The context must match the text exactly, in one place.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise

from strata.core_memory.domain.blocks import label_of
from strata.core_memory.domain.text_edits.line_ends import (
    ends_in_crlf,
    with_crlf,
    with_line_feeds,
)
from strata.core_memory.domain.text_edits.messages import (
    named_lines,
    not_applicable,
    shortened,
    text_missing,
)
from strata.core_memory.domain.text_edits.three_way_merge import Hunk, apply_hunks, lines_of
from strata.protocol.errors import FailedPreconditionError
from strata.shared.tag_escapes import unescape

MAX_HUNKS = 500
"""Maximum of hunks in one patch."""

MAX_SECTIONS = 100
"""Maximum of blocks in one patch."""

_MOST_PLACES = 20
_FAILED = "Failed to apply patch:"
_NO_HUNKS = (
    "No applicable hunks found in patch. Write the lines to remove behind '-', the lines to add "
    "behind '+', and unchanged lines around them behind a blank."
)
_HEADER = re.compile(r"\*\*\* (Add|Update|Delete) (?:Block|File): *(.*)")
_MOVE = re.compile(r"\*\*\* Move to: *(.*)")
# Lines that programs write around a patch and that have no effect.
_NOISE = re.compile(
    r"\*\*\* (Begin Patch|End Patch|End of File)$|diff --git |index |(new|deleted) file mode "
)
_NO_FEED = "\\ No newline at end of file"
_NOTHING = "/dev/null"


class Action(StrEnum):
    """The action of a section on its block."""

    ADD = "Add"
    UPDATE = "Update"
    DELETE = "Delete"


@dataclass(frozen=True, slots=True)
class PatchLine:
    """A line of a hunk: its mark (blank, ``+`` or ``-``), text, and number in the patch from 1."""

    mark: str
    text: str
    number: int


@dataclass(slots=True)
class Section:
    """The part of a patch for one block.

    Attributes:
        action: The operation.
        label: The block; empty in a patch without headers.
        new_label: The new label of the block; empty to keep the label.
        loose: The header is ``---``/``+++``, which may not name a block, as in ``--- before``.
        hunks: The changes.
    """

    action: Action
    label: str = ""
    new_label: str = ""
    loose: bool = False
    hunks: list[list[PatchLine]] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The text of a block that is added."""
        return "\n".join(line.text for hunk in self.hunks for line in hunk)


def parse_patch(patch: str) -> list[Section]:
    """Returns the sections of a patch; one without a label if it has no headers.

    Raises:
        FailedPreconditionError: It cannot be read (``EDIT_NOT_APPLICABLE``).
    """
    return _Parser(patch.removesuffix("\n").split("\n")).parse()


def apply_section(label: str, value: str, section: Section, labels: Sequence[str]) -> str:
    """Returns the text after all hunks of a section.

    Every hunk is matched against the original text.

    Args:
        label: The label of the block.
        value: Its text.
        section: Hunks to apply.
        labels: Labels whose tags are escaped in the agent's prompt.

    Raises:
        TextMissingError: The context of a hunk is not there.
        FailedPreconditionError: It is there more than once, or hunks overlap
            (``EDIT_NOT_APPLICABLE``).
    """
    if ends_in_crlf(value):
        return with_crlf(
            apply_section(label, with_line_feeds(value), _with_line_feeds(section), labels)
        )
    changes: list[Hunk] = []
    for lines in section.hunks:
        changes += _changes(label, value, lines, [*labels, label])
    changes.sort(key=lambda hunk: (hunk.start, hunk.end))
    for before, after in pairwise(changes):
        if after.start < before.end:
            raise not_applicable(
                label, f"{_FAILED} two hunks change line {after.start + 1} of block `{label}`."
            )
    text = lines_of(value)
    return "\n".join(apply_hunks(text, changes, 0, len(text)))


class _Parser:
    """Reads a patch line by line."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self._sections: list[Section] = []
        self._hunk: list[PatchLine] | None = None
        self._count = 0

    def parse(self) -> list[Section]:
        """Returns the sections."""
        at = 0
        while at < len(self._lines):
            at += self._read(at)
        for section in self._sections:
            self._check(section)
        if not self._sections:
            raise not_applicable("", _NO_HUNKS)
        return self._sections

    def _read(self, at: int) -> int:
        """Reads the element that starts at a line; returns how many lines it has."""
        line = self._lines[at]
        after = self._lines[at + 1] if at + 1 < len(self._lines) else ""
        if line.startswith("--- ") and after.startswith("+++ "):
            self._begin(_unified(line[4:], after[4:]))
            return 2
        if header := _HEADER.match(line):
            self._begin(Section(Action(header[1]), label_of(header[2].strip())))
        elif move := _MOVE.match(line):
            self._move(at, label_of(move[1].strip()))
        elif _NOISE.match(line):
            self._hunk = None
        elif line.startswith("@@"):
            self._open_hunk()
        elif line != _NO_FEED:
            self._content(at, line)
        return 1

    def _begin(self, section: Section) -> None:
        if len(self._sections) == MAX_SECTIONS:
            raise not_applicable("", f"{_FAILED} it names more than {MAX_SECTIONS} blocks.")
        self._sections.append(section)
        self._hunk = None

    def _move(self, at: int, label: str) -> None:
        section = self._sections[-1] if self._sections else None
        if section is None or section.action is not Action.UPDATE or section.hunks or not label:
            raise self._wrong(at, "must come directly after an '*** Update Block: LABEL' header")
        section.new_label = label

    def _open_hunk(self) -> list[PatchLine]:
        if not self._sections:
            self._begin(Section(Action.UPDATE))
        self._count += 1
        if self._count > MAX_HUNKS:
            raise not_applicable("", f"{_FAILED} it has more than {MAX_HUNKS} hunks.")
        self._hunk = []
        self._sections[-1].hunks.append(self._hunk)
        return self._hunk

    def _content(self, at: int, line: str) -> None:
        if not line and self._hunk is None:
            return
        # An empty line is an unchanged empty line that has lost its leading blank.
        mark, text = (line[0], line[1:]) if line else (" ", "")
        if mark not in "+- ":
            raise self._wrong(at, "must start with '+', '-' or a blank, or be a header")
        hunk = self._open_hunk() if self._hunk is None else self._hunk
        hunk.append(PatchLine(mark, text, at + 1))

    def _check(self, section: Section) -> None:
        for hunk in section.hunks:
            while hunk and not self._lines[hunk[-1].number - 1]:
                hunk.pop()
        if section.action is Action.UPDATE:
            section.hunks = [h for h in section.hunks if any(line.mark != " " for line in h)]
            if not section.hunks and not section.new_label:
                raise not_applicable(section.label, _NO_HUNKS)
        elif section.action is Action.ADD:
            for line in (line for hunk in section.hunks for line in hunk if line.mark != "+"):
                raise self._wrong(line.number - 1, "must begin with '+': the block is new")

    def _wrong(self, at: int, what: str) -> FailedPreconditionError:
        return not_applicable(
            "", f"{_FAILED} line {at + 1} of the patch, `{shortened(self._lines[at])}`, {what}."
        )


def _unified(old: str, new: str) -> Section:
    """Returns the section of a header ``--- old``, ``+++ new``."""
    old, new = (name.partition("\t")[0].strip() for name in (old, new))
    old_label = label_of(old.removeprefix("a/"))
    new_label = label_of(new.removeprefix("b/"))
    if old == _NOTHING:
        return Section(Action.ADD, new_label)
    if new == _NOTHING:
        return Section(Action.DELETE, old_label)
    moved = new_label if new_label != old_label else ""
    return Section(Action.UPDATE, old_label, moved, loose=True)


def _with_line_feeds(section: Section) -> Section:
    """Returns the section without carriage returns at the ends of its lines."""
    hunks = [
        [replace(line, text=line.text.removesuffix("\r")) for line in hunk]
        for hunk in section.hunks
    ]
    return replace(section, hunks=hunks)


def _changes(
    label: str, value: str, lines: Sequence[PatchLine], labels: Sequence[str]
) -> list[Hunk]:
    """Returns the changes of one hunk, by line index of the text."""
    if all(line.mark == "+" for line in lines):
        end = len(lines_of(value))
        return [Hunk(end, end, tuple(line.text for line in lines))]
    offsets = _places(value, lines)
    if not offsets:
        # Text that was copied from the prompt has our tags escaped.
        plain = [PatchLine(line.mark, unescape(line.text, labels), line.number) for line in lines]
        offsets = _places(value, plain)
        if not offsets:
            raise _missing(label, value, lines)
        lines = plain
    if len(offsets) > 1:
        line_numbers = named_lines([offset + 1 for offset in offsets])
        raise not_applicable(
            label,
            f"{_FAILED} hunk context matched multiple places in memory block `{label}`, beginning "
            f"at lines {line_numbers}. Add more of the lines around the change, so that it is "
            "unique.",
            lines=line_numbers,
        )
    return _placed(offsets[0], lines)


def _placed(at: int, lines: Sequence[PatchLine]) -> list[Hunk]:
    """Returns the changes of a hunk that starts at line index `at` of the text."""
    changes: list[Hunk] = []
    for line in lines:
        if line.mark == " ":
            at += 1
            continue
        change = Hunk(at, at + 1, ()) if line.mark == "-" else Hunk(at, at, (line.text,))
        if changes and changes[-1].end == change.start:
            last = changes.pop()
            change = Hunk(last.start, change.end, last.new + change.new)
        changes.append(change)
        at = change.end
    return changes


def _places(value: str, lines: Sequence[PatchLine]) -> list[int]:
    """Returns the line indexes where the hunk's old lines are; not all if there are many."""
    if not value:
        return []
    old = "\n".join(line.text for line in lines if line.mark != "+")
    text, old_lines = f"\n{value}\n", f"\n{old}\n"
    offsets: list[int] = []
    number, counted = 0, 0
    at = text.find(old_lines)
    while at >= 0 and len(offsets) <= _MOST_PLACES:
        number += text.count("\n", counted, at)
        counted = at
        offsets.append(number)
        at = text.find(old_lines, at + 1)
    return offsets


def _missing(label: str, value: str, lines: Sequence[PatchLine]) -> FailedPreconditionError:
    """Returns the error that names the first line of the hunk that does not match."""
    old = [line for line in lines if line.mark != "+"]
    existing_lines = set(lines_of(value))
    absent = next((line for line in old if line.text not in existing_lines), None)
    if absent is not None:
        where = "is not in the block"
    else:
        # Every line exists, but not in this order: search the first that does not follow.
        fits, fails = 1, len(old)
        while fails - fits > 1:
            middle = (fits + fails) // 2
            fits, fails = (middle, fails) if _places(value, old[:middle]) else (fits, middle)
        absent = old[fails - 1]
        where = f"does not directly follow `{shortened(old[fails - 2].text, 80)}`"
    return text_missing(
        label,
        f"{_FAILED} expected hunk context not found in memory block `{label}`: line "
        f"{absent.number} of the patch, `{shortened(absent.text, 160)}`, {where}. Unchanged and "
        "removed lines must be those of the block, blanks and tabs too.",
    )
