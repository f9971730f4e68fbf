"""Progress of the demo model as lines, for terminals and logs alike."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console

from strata.embedded.chat_model.progress import Progress

_PAUSE_S = 2.0
_MB = 1_000_000


def progress_lines(console: Console) -> Callable[[Progress], None]:
    """Returns a callback that prints each new step at once, and its progress now and then."""
    last_message, last_time = "", 0.0

    def report(progress: Progress) -> None:
        nonlocal last_message, last_time
        now = time.monotonic()
        is_new = progress.message != last_message
        is_done = progress.total > 0 and progress.done >= progress.total
        if not is_new and not is_done and now - last_time < _PAUSE_S:
            return
        last_message, last_time = progress.message, now
        console.print(f"  {progress.message}{_amount(progress)}", highlight=False)

    return report


def _amount(progress: Progress) -> str:
    if not progress.total:
        return ""
    if progress.unit == "bytes":
        return f" ({progress.done // _MB} of {progress.total // _MB} MB)"
    return f" ({progress.done} of {progress.total})"
