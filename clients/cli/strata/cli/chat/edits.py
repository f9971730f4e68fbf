"""Lines that show memory edits in the chat."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from strata.api.common.v1.run_event_pb2 import MemoryEdit
from strata.cli.diffs import diff_text
from strata.cli.output import safe

_DIFF_LINES = 12

_OPERATION_LABELS = {
    "append": "text appended",
    "replace": "text replaced",
    "string_replace": "text replaced",
    "insert": "lines inserted",
    "rethink": "rewritten",
    "patch": "patched",
    "update": "changed",
    "revert": "an edit undone",
}


def edit_lines(edit: MemoryEdit) -> Iterator[Text]:
    """Yields a sentence about the edit, and the changed lines of the text."""
    yield Text(safe(f"  {_sentence(edit)}"), style="bold")
    for line in diff_text(edit.diff, limit=_DIFF_LINES):
        yield Text("  ") + line


def _sentence(edit: MemoryEdit) -> str:
    block, revision = f"memory block {edit.label}", f"revision {edit.revision}"
    match edit.operation:
        case "":
            return f"{block}, {revision}"
        case "create":
            return f"new {block}, {revision}"
        case "rename":
            return f"{block} has a new label or description, {revision}"
        case "delete":
            return f"{block} removed from memory; strata memory restore brings it back"
        case operation:
            return f"{block}: {_OPERATION_LABELS.get(operation, operation)}, {revision}"
