"""The priority of background work at the scheduler of the operating system."""

from __future__ import annotations

import contextlib
import os
import sys
import threading

MORE_NICENESS = 10
"""Niceness of background work, relative to the process that starts it.

If other work uses a processor, background work gets a tenth of it. With 19 it would get a sixtieth,
and an import would never end on a server whose turns use all processors.
"""
_MOST_NICENESS = 19


def lower_priority() -> None:
    """Permanently gives the calling thread, and those that it starts, background priority.

    An ordinary user cannot raise it again: call it in threads and processes that do nothing else.
    On Linux each thread has its own niceness; elsewhere the whole process changes. On Linux the
    thread also never interrupts another one when it wakes (`SCHED_BATCH`).
    """
    if sys.platform == "win32":
        return
    if sys.platform != "linux":
        os.nice(MORE_NICENESS)
        return
    thread = threading.get_native_id()
    # Relative: the process may have a niceness of its own, which must not be lowered.
    niceness = os.getpriority(os.PRIO_PROCESS, thread) + MORE_NICENESS
    os.setpriority(os.PRIO_PROCESS, thread, min(niceness, _MOST_NICENESS))
    with contextlib.suppress(OSError):  # a container may forbid it
        os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))
