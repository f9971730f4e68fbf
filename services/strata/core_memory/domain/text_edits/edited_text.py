"""The text of a block after a memory verb.

Lengths are counted in characters. Lines are separated by line feeds, as in the numbered
rendering. Text outside the edit stays byte for byte (tabs too, and line ends: `line_ends`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from strata.core_memory.domain.blocks import Block, check_limit
from strata.core_memory.domain.text_edits.line_ends import (
    edit_with_line_feeds,
    ends_in_crlf,
    with_crlf,
    with_line_feeds,
)
from strata.core_memory.domain.text_edits.messages import (
    edit_conflict,
    lines_with,
    not_applicable,
    shortened,
    text_missing,
)
from strata.core_memory.domain.text_edits.three_way_merge import lines_of, merge3_text
from strata.core_memory.domain.text_edits.verbs import (
    Append,
    Create,
    Edit,
    Insert,
    Patch,
    Rename,
    Replace,
    Rethink,
    StringReplace,
    TextEdit,
)
from strata.protocol.errors import (
    FailedPreconditionError,
    Reason,
)
from strata.shared.tag_escapes import escape, unescape

_LINE_NUMBER = re.compile(r"^[ \t]*\d+→[ \t]*", re.MULTILINE)
_PATCH_MARK = re.compile(r"^[-+ ]", re.MULTILINE)


def apply_edit(block: Block, edit: TextEdit, labels: Sequence[str] = ()) -> str:
    """Returns the value of the block after the edit.

    Args:
        block: The current block.
        edit: One verb with its arguments, as the agent wrote them.
        labels: Labels of all blocks of the agent. Their tags are escaped in the prompt,
            and so in text that the agent copied from there.

    Raises:
        FailedPreconditionError: The block is read-only (``BLOCK_READ_ONLY``), would grow
            beyond its limit (``BLOCK_LIMIT_EXCEEDED``), or the edit does not fit its
            text (``EDIT_NOT_APPLICABLE``).
    """
    check_writable(block)
    check_no_line_numbers(block.label, edit)
    value = _edited(block.label, block.value, edit, [*labels, block.label])
    check_limit(block.label, value, block.limit)
    return value


def merge_edit(block: Block, edit: TextEdit, base: str, labels: Sequence[str] = ()) -> str:
    """Applies an edit that is based on an older text: edits that text and merges the result.

    Args:
        block: The current block.
        edit: One verb with its arguments.
        base: The text that the agent saw.
        labels: As for `apply_edit`.

    Raises:
        AbortedError: Others changed the same text since (``EDIT_CONFLICT``).
        FailedPreconditionError: As by `apply_edit`.
    """
    check_writable(block)
    check_no_line_numbers(block.label, edit)
    mine = _edited(block.label, base, edit, [*labels, block.label])
    value = merge_value(block, base, mine)
    check_limit(block.label, value, block.limit)
    return value


def merge_value(block: Block, base: str, mine: str) -> str:
    """Returns the block's text with the changes that lead from `base` to `mine`.

    Raises:
        AbortedError: Others changed the same text since (``EDIT_CONFLICT``).
    """
    merged = merge3_text(base, block.value, mine)
    if merged is None:
        raise edit_conflict(block)
    return merged


def check_writable(block: Block) -> None:
    """Raises if agents may not change the block.

    Raises:
        FailedPreconditionError: It is read-only (``BLOCK_READ_ONLY``).
    """
    if block.read_only:
        raise FailedPreconditionError(
            "Error This block is read-only and cannot be edited.",
            reason=Reason.BLOCK_READ_ONLY,
            metadata={"label": block.label},
        )


def check_no_line_numbers(label: str, edit: Edit) -> None:
    """Raises if a text of the edit contains line numbers of the numbered rendering.

    See docs/wire-format.md#line-numbers.

    Raises:
        FailedPreconditionError: A line starts with one (``EDIT_NOT_APPLICABLE``).
    """
    for name, text in _texts(edit):
        if _LINE_NUMBER.search(text):
            raise not_applicable(
                label,
                f"{name} contains a line number prefix, which is not allowed. Line numbers are "
                "shown to help you find your way; they are not part of the text. Send the text "
                "without them.",
            )


def _texts(edit: Edit) -> list[tuple[str, str]]:
    """Returns the texts of an edit with the argument names of the tool."""
    match edit:
        case Append(content):
            return [("content", content)]
        case Replace(old, new):
            return [("old_content", old), ("new_content", new)]
        case StringReplace(old, new):
            return [("old_str", old), ("new_str", new)]
        case Insert(new, _):
            return [("new_str", new)]
        case Rethink(new):
            return [("new_memory", new)]
        case Create(text, description):
            return [("file_text", text), ("description", description)]
        case Rename(_, description):
            return [("description", description or "")]
        case Patch(patch):
            return [("patch", patch), ("patch", _PATCH_MARK.sub("", patch))]
        case _:
            return []


def _edited(label: str, value: str, edit: TextEdit, labels: Sequence[str]) -> str:
    if ends_in_crlf(value):
        plain = with_line_feeds(value)
        return with_crlf(_with_edit(label, plain, edit_with_line_feeds(edit), labels))
    return _with_edit(label, value, edit, labels)


def _with_edit(label: str, value: str, edit: TextEdit, labels: Sequence[str]) -> str:
    match edit:
        case Append(content):
            return f"{value}\n{content}" if value else content
        case Replace(old, new):
            old, new = _as_stored(value, old, new, labels)
            return _replace_all(label, value, old, new)
        case StringReplace(old, new):
            old, new = _as_stored(value, old, new, labels)
            return _replace_one(label, value, old, new)
        case Insert(new, line):
            return _insert(label, value, new, line)
        case Rethink(new):
            # The agent can have copied escaped text only if the value was shown escaped.
            return unescape(new, labels) if escape(value, labels) != value else new


def _as_stored(value: str, old: str, new: str, labels: Sequence[str]) -> tuple[str, str]:
    """Returns the texts of a replacement as the store has them.

    An agent that copies one of our tags from its prompt copies its escaped form.
    """
    if old in value:
        return old, new
    plain = unescape(old, labels)
    return (plain, unescape(new, labels)) if plain in value else (old, new)


def _replace_all(label: str, value: str, old: str, new: str) -> str:
    if not old:
        raise not_applicable(label, "old_content is empty. Name the text that is to be replaced.")
    if old not in value:
        raise text_missing(
            label, f"Old content '{shortened(old)}' not found in memory block '{label}'"
        )
    return value.replace(old, new)


def _replace_one(label: str, value: str, old: str, new: str) -> str:
    if not old:
        raise not_applicable(
            label,
            "No replacement was performed, old_str is empty. Name the text that is to be "
            "replaced, or insert the new text instead.",
        )
    at = value.find(old)
    if at < 0:
        raise text_missing(
            label,
            f"No replacement was performed, old_str `{shortened(old)}` did not appear verbatim "
            f"in memory block with label `{label}`.",
        )
    if value.find(old, at + 1) >= 0:
        lines = lines_with(value, old)
        raise not_applicable(
            label,
            f"No replacement was performed. Multiple occurrences of old_str `{shortened(old)}` "
            f"in lines {lines}. Please ensure it is unique.",
            lines=lines,
        )
    return value[:at] + new + value[at + len(old) :]


def _insert(label: str, value: str, new: str, line: int) -> str:
    lines = lines_of(value)
    after = len(lines) if line == -1 else line
    if not 0 <= after <= len(lines):
        raise not_applicable(
            label,
            f"Invalid `insert_line` parameter: {line}. It should be within the range of lines of "
            f"the memory block: [0, {len(lines)}], or -1 to append to the end of the memory block.",
        )
    return "\n".join([*lines[:after], new, *lines[after:]])
