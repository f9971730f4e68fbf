"""Shows the progress of the demo model: a bar on a terminal, lines without one."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import (
    Progress as Bar,
)
from rich.text import Text

from strata.standalone.chat_model.progress import Progress, StartPhase

_PAUSE_S = 2.0
_MB = 1_000_000
_PREFIX = "PROGRESS "

Report = Callable[[Progress], None]


class ProgressBar:
    """A bar with the present step, its progress and an estimate of the time left.

    It is on the terminal from the first report to the end of the block, and is then erased.

    Args:
        console: A terminal.
    """

    def __init__(self, console: Console) -> None:
        self._bar = Bar(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            _Amount(),
            TimeRemainingColumn(compact=True),
            console=console,
            transient=True,
        )
        self._task: TaskID | None = None
        self._message = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Takes the bar off the terminal."""
        self._bar.stop()

    def report(self, progress: Progress) -> None:
        """Shows a step forward. May be called from any thread."""
        total = progress.total or None
        if self._task is None or progress.message != self._message:
            if self._task is not None:
                self._bar.remove_task(self._task)
            # A separate task, so that the estimate uses the speed of this step.
            self._task = self._bar.add_task(progress.message, total=total, unit=progress.unit)
            self._message = progress.message
            self._bar.start()
        self._bar.update(self._task, completed=progress.done, total=total)


class _Amount(ProgressColumn):
    """How much is done, in the unit of the step."""

    def render(self, task: Task) -> Text:
        """Returns the amount; empty while the total is not known."""
        if not task.total:
            return Text("")
        return Text(amount(round(task.completed), round(task.total), task.fields["unit"]))


def progress_lines(console: Console) -> Report:
    """Returns a callback that prints each new step immediately, and its progress occasionally."""
    last_message, last_time = "", 0.0

    def report(progress: Progress) -> None:
        nonlocal last_message, last_time
        now = time.monotonic()
        is_new = progress.message != last_message
        is_done = progress.total > 0 and progress.done >= progress.total
        if not is_new and not is_done and now - last_time < _PAUSE_S:
            return
        last_message, last_time = progress.message, now
        progress_text = amount(progress.done, progress.total, progress.unit)
        suffix = f" ({progress_text})" if progress_text else ""
        console.print(f"  {progress.message}{suffix}", highlight=False)

    return report


def progress_documents(write: Callable[[str], object]) -> Report:
    """Returns a callback that writes each report as a line for `parse_progress`."""

    def report(progress: Progress) -> None:
        write(_PREFIX + json.dumps(asdict(progress)) + "\n")

    return report


def parse_progress(line: str) -> Progress | None:
    """Returns the report that another process wrote; None if the line is something else."""
    if not line.startswith(_PREFIX):
        return None
    try:
        fields = json.loads(line.removeprefix(_PREFIX))
        return Progress(**{**fields, "phase": StartPhase(fields["phase"])})
    except (ValueError, TypeError, KeyError):
        # The line is still being written.
        return None


def amount(done: int, total: int, unit: str) -> str:
    """Returns "12 of 90 MB" or "3 of 7"; empty while the total is not known."""
    if not total:
        return ""
    if unit == "bytes":
        return f"{done // _MB} of {total // _MB} MB"
    return f"{done} of {total}"
