"""Small, coloured diffs of memory blocks."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from rich.text import Text

from strata.cli.output import clipped, safe

_LINE_CHARS = 200
_STYLES = {"+": "green", "-": "red"}


def unified_diff(before: str, after: str) -> str:
    """Returns a unified diff without file headers."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=1)
    return "\n".join(list(lines)[2:])


def diff_text(diff: str, *, limit: int) -> Iterator[Text]:
    """Yields the changed lines of a unified diff without file headers.

    Args:
        diff: The diff.
        limit: Most lines; what is beyond is counted on one more.
    """
    changed = [line for line in diff.splitlines() if line[:1] in _STYLES]
    for line in changed[:limit]:
        shown = f"{line[0]} {clipped(safe(line[1:]), _LINE_CHARS)}"
        yield Text(shown, style=_STYLES[line[0]])
    if len(changed) > limit:
        yield Text(f"… {len(changed) - limit} more lines", style="dim")
