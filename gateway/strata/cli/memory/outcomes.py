"""What becomes of each file of a pull or push, for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from rich.text import Text

from strata.cli.diffs import diff_text, unified_diff
from strata.cli.memory.markdown import FIELDS, Document
from strata.cli.output import console, print_json, safe

_DIFF_LINES = 200


class Result(StrEnum):
    """What was done, or would be."""

    UNCHANGED = "unchanged"
    WRITTEN = "written"
    UPDATED = "updated"
    MERGED = "merged"
    CREATED = "created"
    DETACHED = "detached"
    REMOVED = "removed"
    AHEAD = "changed here"
    BEHIND = "older"
    MISSING = "missing"
    GONE = "gone"
    SKIPPED = "skipped"
    CONFLICT = "conflict"
    REFUSED = "refused"


FAILURES = frozenset({Result.CONFLICT, Result.REFUSED})
"""After these the command ends with exit code 1."""

_QUIET = frozenset({Result.UNCHANGED})
_STYLES = {
    Result.CONFLICT: "bold red",
    Result.REFUSED: "bold red",
    Result.MERGED: "bold yellow",
    Result.AHEAD: "yellow",
    Result.BEHIND: "yellow",
    Result.MISSING: "yellow",
    Result.GONE: "yellow",
    Result.UNCHANGED: "dim",
    Result.SKIPPED: "dim",
}


@dataclass(frozen=True, slots=True)
class Difference:
    """What was changed by one side.

    Attributes:
        title: Whose change it is; empty if that goes without saying.
        fields: Changes of what is not the text, in words.
        diff: Unified diff of the text, without headers.
    """

    title: str
    fields: tuple[str, ...]
    diff: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one file.

    Attributes:
        file: Its name.
        result: What was done.
        detail: More of it in words.
        revision: Revision of the block after it; 0 if there is none.
        differences: What is or would be changed; of a conflict, each side.
    """

    file: str
    result: Result
    detail: str = ""
    revision: int = 0
    differences: tuple[Difference, ...] = ()


def difference(before: Document, after: Document, title: str = "") -> Difference:
    """Returns what leads from one document to another."""
    fields = tuple(
        f"{name.replace('_', '-')}: {_shown(getattr(before, name))} → "
        f"{_shown(getattr(after, name))}"
        for name in FIELDS
        if name != "value" and getattr(before, name) != getattr(after, name)
    )
    return Difference(title, fields, unified_diff(before.value, after.value))


def both_sides(base: Document | None, theirs: Document, mine: Document) -> tuple[Difference, ...]:
    """Returns both sides of a conflict."""
    if base is None:
        return (difference(theirs, mine, "from the agent's text to the file"),)
    return (
        difference(base, theirs, f"changed by others, up to revision {theirs.revision}"),
        difference(base, mine, "changed in the file"),
    )


def print_outcomes(outcomes: Sequence[Outcome], *, as_json: bool, dry_run: bool) -> None:
    """Prints what became of all files."""
    if as_json:
        print_json([_as_json(outcome) for outcome in outcomes])
        return
    screen = console()
    for outcome in outcomes:
        style = _STYLES.get(outcome.result, "bold green")
        heading = Text(f"{safe(outcome.file)}: ", style="bold")
        heading.append(_would(outcome.result, dry_run=dry_run), style=style)
        if outcome.detail:
            heading.append(f"; {safe(outcome.detail)}", style="dim" if style == "dim" else "")
        screen.print(heading, soft_wrap=True)
        for difference in outcome.differences:
            _print_difference(difference)
    if not [outcome for outcome in outcomes if outcome.result not in _QUIET]:
        screen.print(Text("Nothing to do.", style="dim"))


def _print_difference(shown: Difference) -> None:
    screen = console()
    if shown.title:
        screen.print(Text(f"  {shown.title}:", style="italic"), soft_wrap=True)
    for field in shown.fields:
        screen.print(Text(f"  {safe(field)}", style="cyan"), soft_wrap=True)
    for line in diff_text(shown.diff, limit=_DIFF_LINES):
        screen.print(Text("  ") + line, soft_wrap=True)


def _would(result: Result, *, dry_run: bool) -> str:
    done = {
        Result.WRITTEN,
        Result.UPDATED,
        Result.MERGED,
        Result.CREATED,
        Result.DETACHED,
        Result.REMOVED,
    }
    return f"would be {result}" if dry_run and result in done else str(result)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f'"{value}"' if isinstance(value, str) else str(value)


def _as_json(outcome: Outcome) -> dict[str, object]:
    return {
        "file": outcome.file,
        "result": outcome.result.replace(" ", "_"),
        "detail": outcome.detail,
        "revision": outcome.revision,
        "differences": [
            {"title": difference.title, "fields": list(difference.fields), "diff": difference.diff}
            for difference in outcome.differences
        ],
    }
