"""A context window as a bar with a legend."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from strata.api.agent_loop.v1 import agent_service_pb2 as pb
from strata.cli.output import safe

_MAX_WIDTH = 72
_FULL, _FREE, _MARK = "█", "░", "┊"
_STYLES = {
    "system": "blue",
    "blocks": "cyan",
    "files": "magenta",
    "rules": "bright_blue",
    "metadata": "bright_black",
    "tools": "yellow",
    "summary": "green",
    "messages": "bright_green",
}
_ITEMS = {
    "blocks": "block",
    "files": "file",
    "rules": "rule",
    "tools": "tool",
    "messages": "message",
}


def picture(window: pb.GetContextWindowResponse, width: int) -> list[Text]:
    """Returns the bar and its legend.

    Args:
        window: The parts of the window with their tokens.
        width: Columns of the terminal.
    """
    cells = max(10, min(_MAX_WIDTH, width - 2))
    whole = max(window.context_window, window.used_tokens, 1)
    filled = _shares([part.tokens for part in window.parts], whole, cells)
    bar = Text(" ")
    for part, count in zip(window.parts, filled, strict=True):
        bar.append(_FULL * count, style=_STYLES.get(part.name, "white"))
    bar.append(_free(window, sum(filled), whole, cells), style="bright_black")
    share = window.used_tokens / window.context_window if window.context_window else 0
    about = "about " if window.estimated else ""
    total = f" {about}{window.used_tokens:,} of {window.context_window:,} tokens ({share:.0%})"
    if window.compaction_tokens:
        total += f", compacted from {window.compaction_tokens:,} on"
    legend = [_legend(part, whole) for part in window.parts if part.tokens]
    return [bar, Text(total, style="dim"), *_next_steps(window), Text(""), *legend]


def _next_steps(window: pb.GetContextWindowResponse) -> list[Text]:
    """Returns lines about the steps by which the next turn makes the request fit."""
    lines = []
    if window.files_to_close:
        names = ", ".join(map(safe, window.files_to_close))
        lines.append(f" the next turn closes {names}")
    if window.compaction_due:
        lines.append(" the next turn replaces older messages with a summary")
    return [Text(line, style="yellow") for line in lines]


def _legend(part: pb.ContextWindowPart, whole: int) -> Text:
    line = Text(" ")
    line.append(_FULL, style=_STYLES.get(part.name, "white"))
    line.append(f" {safe(part.name):<10}{part.tokens:>9,}{part.tokens / whole:>6.0%}")
    item = _ITEMS.get(part.name)
    if item and part.count:
        line.append(f"   {part.count:,} {item}{'s' if part.count != 1 else ''}", style="dim")
    return line


def _free(window: pb.GetContextWindowResponse, filled: int, whole: int, cells: int) -> str:
    free = [_FREE] * (cells - filled)
    mark = round(window.compaction_tokens * cells / whole) - filled
    if window.compaction_tokens and 0 <= mark < len(free):
        free[mark] = _MARK
    return "".join(free)


def _shares(tokens: Sequence[int], whole: int, cells: int) -> list[int]:
    """Divides the cells of the bar among the parts; a part with tokens gets at least one cell."""
    counts = [max(1, round(token * cells / whole)) if token else 0 for token in tokens]
    while sum(counts) > cells:
        largest = max(range(len(counts)), key=counts.__getitem__)
        counts[largest] -= 1
    return counts
