"""Results of a pull or push for each file, printed as text or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from rich.text import Text

from strata.cli.diffs import diff_text, unified_diff
from strata.cli.memory.markdown import FIELDS, BlockFile
from strata.cli.output import console, print_json, safe

_DIFF_LINES = 200


class FileSyncResult(StrEnum):
    """The effect of a pull or push on a file."""

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


FAILURES = frozenset({FileSyncResult.CONFLICT, FileSyncResult.REFUSED})
"""Results with which the command exits with code 1."""

_NOTHING_DONE = frozenset({FileSyncResult.UNCHANGED})
_STYLES = {
    FileSyncResult.CONFLICT: "bold red",
    FileSyncResult.REFUSED: "bold red",
    FileSyncResult.MERGED: "bold yellow",
    FileSyncResult.AHEAD: "yellow",
    FileSyncResult.BEHIND: "yellow",
    FileSyncResult.MISSING: "yellow",
    FileSyncResult.GONE: "yellow",
    FileSyncResult.UNCHANGED: "dim",
    FileSyncResult.SKIPPED: "dim",
}


@dataclass(frozen=True, slots=True)
class SyncDifference:
    """Changes of one side.

    Attributes:
        title: The author of the changes; empty if there is only one side.
        fields: Changes of other fields than the text, as text.
        diff: Unified diff of the text, without headers.
    """

    title: str
    fields: tuple[str, ...]
    diff: str


@dataclass(frozen=True, slots=True)
class FileOutcome:
    """Result of a pull or push for one file.

    Attributes:
        file: Its name.
        result: The effect.
        detail: An explanation.
        revision: Revision of the block afterwards; 0 if there is none.
        differences: The changes; in a conflict, the changes of each side.
    """

    file: str
    result: FileSyncResult
    detail: str = ""
    revision: int = 0
    differences: tuple[SyncDifference, ...] = ()


def difference(before: BlockFile, after: BlockFile, title: str = "") -> SyncDifference:
    """Returns the changes between two documents."""
    fields = tuple(
        f"{name.replace('_', '-')}: {_value_text(getattr(before, name))} → "
        f"{_value_text(getattr(after, name))}"
        for name in FIELDS
        if name != "value" and getattr(before, name) != getattr(after, name)
    )
    return SyncDifference(title, fields, unified_diff(before.value, after.value))


def both_sides(
    base: BlockFile | None, theirs: BlockFile, mine: BlockFile
) -> tuple[SyncDifference, ...]:
    """Returns the changes of both sides of a conflict."""
    if base is None:
        return (difference(theirs, mine, "from the agent's text to the file"),)
    return (
        difference(base, theirs, f"changed by others, up to revision {theirs.revision}"),
        difference(base, mine, "changed in the file"),
    )


def print_outcomes(outcomes: Sequence[FileOutcome], *, as_json: bool, dry_run: bool) -> None:
    """Prints the results for all files."""
    if as_json:
        print_json([_as_json(outcome) for outcome in outcomes])
        return
    screen = console()
    for outcome in outcomes:
        style = _STYLES.get(outcome.result, "bold green")
        heading = Text(f"{safe(outcome.file)}: ", style="bold")
        heading.append(_result_text(outcome.result, dry_run=dry_run), style=style)
        if outcome.detail:
            heading.append(f"; {safe(outcome.detail)}", style="dim" if style == "dim" else "")
        screen.print(heading, soft_wrap=True)
        for difference in outcome.differences:
            _print_difference(difference)
    if not [outcome for outcome in outcomes if outcome.result not in _NOTHING_DONE]:
        screen.print(Text("Nothing to do.", style="dim"))


def _print_difference(sync_difference: SyncDifference) -> None:
    screen = console()
    if sync_difference.title:
        screen.print(Text(f"  {sync_difference.title}:", style="italic"), soft_wrap=True)
    for field in sync_difference.fields:
        screen.print(Text(f"  {safe(field)}", style="cyan"), soft_wrap=True)
    for line in diff_text(sync_difference.diff, limit=_DIFF_LINES):
        screen.print(Text("  ") + line, soft_wrap=True)


def _result_text(result: FileSyncResult, *, dry_run: bool) -> str:
    done = {
        FileSyncResult.WRITTEN,
        FileSyncResult.UPDATED,
        FileSyncResult.MERGED,
        FileSyncResult.CREATED,
        FileSyncResult.DETACHED,
        FileSyncResult.REMOVED,
    }
    return f"would be {result}" if dry_run and result in done else str(result)


def _value_text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f'"{value}"' if isinstance(value, str) else str(value)


def _as_json(outcome: FileOutcome) -> dict[str, object]:
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
