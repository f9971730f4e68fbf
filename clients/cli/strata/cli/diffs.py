"""Coloured diffs of memory blocks."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from rich.text import Text

from strata.cli.output import safe
from strata.shared.one_line import clipped

_LINE_CHARS = 200
_STYLES = {"+": "green", "-": "red"}


def unified_diff(before: str, after: str) -> str:
    """Returns a unified diff without file headers."""
    old, new = (text.split("\n") if text else [] for text in (before, after))
    lines = difflib.unified_diff(old, new, lineterm="", n=1)
    return "\n".join(list(lines)[2:])


def diff_text(diff: str, *, limit: int) -> Iterator[Text]:
    """Yields the changed lines of a unified diff without file headers.

    Args:
        diff: The diff.
        limit: Maximum number of lines; one more line then counts the rest.
    """
    changed = [line for line in diff.split("\n") if line[:1] in _STYLES]
    for line in changed[:limit]:
        shortened = f"{line[0]} {clipped(safe(line[1:]), _LINE_CHARS)}"
        yield Text(shortened, style=_STYLES[line[0]])
    if len(changed) > limit:
        rest = len(changed) - limit
        yield Text(f"… {rest} more {'line' if rest == 1 else 'lines'}", style="dim")


def whole_diff(diff: str) -> Iterator[Text]:
    """Yields every line of a unified diff, coloured."""
    for line in diff.split("\n"):
        style = _STYLES.get(line[:1], "cyan" if line.startswith("@@") else "")
        yield Text(safe(line), style=style)
