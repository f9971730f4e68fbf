"""Messages and errors of edits.

Models read them; their texts are fixed (docs/wire-format.md#memory-tools).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from strata.core_memory.domain.blocks import Block
from strata.core_memory.domain.text_edits.verbs import (
    Append,
    Patch,
    Replace,
    TextEdit,
)
from strata.protocol.errors import (
    AbortedError,
    AlreadyExistsError,
    FailedPreconditionError,
    NotFoundError,
    Reason,
)

REVIEW = (
    "Review the changes and make sure they are as expected (correct indentation, no duplicate "
    "lines, etc). Edit the memory block again if necessary."
)
"""The advice at the end of a success message."""
# A status message has at most 600 bytes: quoted text leaves space for the sentence around it.
_QUOTE_BYTES = 240
_LABELS_BYTES = 400
_MOST_LINES_NAMED = 20
# A conflict quotes the newest text up to this length; the rest can be read from the block.
_SHOWN_CHARS = 4_000


class TextMissingError(FailedPreconditionError):
    """The text that an edit refers to is not in the block (``EDIT_NOT_APPLICABLE``)."""


def edit_conflict(block: Block) -> AbortedError:
    """Returns the error for an edit of text that others changed since the editor saw it."""
    value = block.value
    if len(value) > _SHOWN_CHARS:
        half = _SHOWN_CHARS // 2
        left_out = f"[... {len(value) - 2 * half} characters left out ...]"
        value = f"{value[:half]}\n{left_out}\n{value[-half:]}"
    return AbortedError(
        f"Memory block '{block.label}' was changed by others since you read it, and your edit "
        f"overlaps with their change. Nothing was done. Edit its current text (revision "
        f"{block.revision}), which is:\n{value}",
        reason=Reason.EDIT_CONFLICT,
        metadata={"label": block.label, "revision": block.revision},
    )


def success_message(edit: TextEdit | Patch, label: str) -> str:
    """Returns the message to the model after an edit."""
    if isinstance(edit, Append | Replace):
        return "None"
    return f"The core memory block with label `{label}` has been edited. {REVIEW}"


def unknown_label(label: str, labels: Sequence[str]) -> NotFoundError:
    """Returns the error for a label that the agent does not have."""
    existing_labels = shortened(", ".join(labels), _LABELS_BYTES) or "none"
    return NotFoundError(
        f"Block field {shortened(label)} does not exist (available sections = {existing_labels})",
        reason=Reason.BLOCK_NOT_FOUND,
        metadata={"label": label},
    )


def block_not_attached(label: str) -> NotFoundError:
    """Returns the error for a block that was renamed or detached."""
    return NotFoundError(
        f"The block that was memory block '{shortened(label)}' no longer has that label. Nothing "
        "was done.",
        reason=Reason.BLOCK_NOT_FOUND,
        metadata={"label": label},
    )


def label_taken(label: str) -> AlreadyExistsError:
    """Returns the error for a label that another block of the agent has."""
    return AlreadyExistsError(
        f"There is a memory block '{label}' already. Edit that one, or choose another label.",
        metadata={"name": label},
    )


def bad_label(label: str, rule: str) -> FailedPreconditionError:
    """Returns the error for an invalid label."""
    return not_applicable(label, f"'{shortened(label)}' cannot be a label: it {rule}.")


def lines_with(value: str, text: str) -> str:
    """Returns, as text, the numbers of the lines in which occurrences of a text start."""
    ends = [at for at, character in enumerate(value) if character == "\n"]
    numbers: list[int] = []
    at = value.find(text)
    while at >= 0 and len(numbers) <= _MOST_LINES_NAMED:
        number = bisect_right(ends, at - 1) + 1
        numbers.append(number)
        # The next one of interest begins in a later line.
        at = value.find(text, ends[number - 1] + 1) if number <= len(ends) else -1
    return named_lines(numbers)


def named_lines(numbers: Sequence[int]) -> str:
    """Returns line numbers as text, ``[1, 5, 9]``; long lists are cut."""
    line_numbers = ", ".join(str(number) for number in numbers[:_MOST_LINES_NAMED])
    return f"[{line_numbers}, ...]" if len(numbers) > _MOST_LINES_NAMED else f"[{line_numbers}]"


def not_applicable(label: str, message: str, **metadata: str) -> FailedPreconditionError:
    """Returns the error for an edit that cannot be applied."""
    return FailedPreconditionError(
        message, reason=Reason.EDIT_NOT_APPLICABLE, metadata={"label": label, **metadata}
    )


def text_missing(label: str, message: str) -> TextMissingError:
    """Returns the error for an edit of text that is not in the block."""
    return TextMissingError(message, reason=Reason.EDIT_NOT_APPLICABLE, metadata={"label": label})


def shortened(text: str, most: int = _QUOTE_BYTES) -> str:
    """Cuts the middle out of a text of more than `most` bytes, to quote it in an error."""
    raw = text.encode()
    if len(raw) <= most:
        return text
    half = most // 2
    return f"{raw[:half].decode(errors='ignore')} [...] {raw[-half:].decode(errors='ignore')}"
