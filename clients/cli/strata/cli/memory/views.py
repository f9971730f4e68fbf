"""Prints memory blocks, versions and changes."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from rich.text import Text

from strata.api.core_memory.v1 import block_service_pb2 as pb
from strata.cli.diffs import diff_text, unified_diff
from strata.cli.memory.history import Names, VersionChange
from strata.cli.memory.markdown import document_of_version
from strata.cli.memory.sync_results import difference
from strata.cli.output import console, labels_line, print_table, safe, when
from strata.shared.one_line import clipped

_DIFF_LINES = 60
_REASON_CHARS = 200
_REASON_CHARS_OF_ROW = 60


def print_blocks(blocks: Sequence[pb.Block]) -> None:
    """Prints blocks for a person."""
    screen = console()
    if not blocks:
        screen.print(Text("The agent has no memory blocks.", style="dim"))
    for number, block in enumerate(blocks):
        if number:
            screen.print()
        heading = Text(safe(block.label), style="bold cyan")
        flags = ", read-only" if block.read_only else ""
        flags += f", untrusted: {labels_line(block.taint)}" if block.taint else ""
        shared = f", shared by {len(block.agent_ids)} agents" if len(block.agent_ids) > 1 else ""
        heading.append(
            f"  {len(block.value):,} of {block.limit:,} characters, revision {block.revision}"
            f"{flags}{shared}, changed {when(block.update_time)}",
            style="dim",
        )
        screen.print(heading, soft_wrap=True)
        if block.description:
            screen.print(Text(safe(block.description), style="dim italic"), soft_wrap=True)
        screen.print(
            Text(safe(block.value)) if block.value else Text("(empty)", style="dim"), soft_wrap=True
        )


def print_log(steps: Sequence[VersionChange], names: Names) -> None:
    """Prints versions, one per line."""
    columns = ["block", "revision", "when", "who", "did", "why", "model", "run", "untrusted"]
    rows = [
        (
            version.label,
            str(version.revision),
            when(version.create_time),
            names.who(version.origin, version.principal),
            version.operation + (" (merged)" if version.base_revision else ""),
            clipped(version.origin.reason, _REASON_CHARS_OF_ROW),
            version.origin.model,
            version.origin.run_id,
            labels_line(version.taint),
        )
        for version in (step.version for step in steps)
    ]
    column_indices = list(range(len(columns)))
    if sys.stdout.isatty():
        # Leave out empty columns, which would take up space.
        column_indices = [at for at in column_indices if not rows or any(row[at] for row in rows)]
    print_table(
        [columns[at] for at in column_indices],
        [[row[at] for at in column_indices] for row in rows],
        empty="Nothing was written yet.",
    )


def print_steps(steps: Sequence[VersionChange], names: Names) -> None:
    """Prints versions with their diffs, as `git log -p` does."""
    screen = console()
    for number, step in enumerate(steps):
        if number:
            screen.print()
        version = step.version
        screen.print(Text(safe(_heading(version)), style="bold yellow"), soft_wrap=True)
        for name, value in _facts(version, names):
            if value:
                screen.print(Text(safe(f"{name}: {value}")), soft_wrap=True)
        for line in _changes(step):
            screen.print(Text("  ") + line, soft_wrap=True)


def print_changes(changes: Sequence[pb.BlockChange], *, dry_run: bool) -> None:
    """Prints what a revert did to each block."""
    screen = console()
    if not changes:
        screen.print(Text("There is nothing to undo.", style="dim"))
    for change in changes:
        block = change.block
        would = f"{block.label} would be" if dry_run else f"{block.label} is now"
        screen.print(Text(safe(f"{would} at revision {block.revision}."), style="bold"))
        for line in diff_text(change.diff, limit=_DIFF_LINES):
            screen.print(Text("  ") + line, soft_wrap=True)


def _heading(version: pb.BlockVersion) -> str:
    merged = f", merged with what came after {version.base_revision}" * bool(version.base_revision)
    return f"{version.label} revision {version.revision}: {version.operation}{merged}"


def _facts(version: pb.BlockVersion, names: Names) -> list[tuple[str, str]]:
    origin = version.origin
    return [
        ("who", names.who(origin, version.principal)),
        ("when", when(version.create_time)),
        ("model", origin.model),
        ("run", origin.run_id),
        ("tool", origin.tool_name),
        ("untrusted", labels_line(version.taint)),
        ("why", clipped(origin.reason, _REASON_CHARS)),
    ]


def _changes(step: VersionChange) -> Iterable[Text]:
    version = step.version
    if step.before is None:
        # The first version, or the oldest that was read.
        diff = unified_diff("", version.value) if version.revision == 1 else ""
        yield from diff_text(diff, limit=_DIFF_LINES)
        return
    sync_difference = difference(document_of_version(step.before), document_of_version(version))
    for field in sync_difference.fields:
        yield Text(safe(field), style="cyan")
    yield from diff_text(sync_difference.diff, limit=_DIFF_LINES)
