"""Entry point of the program ``strata``; imports nothing before it can be interrupted."""

from __future__ import annotations

import gc
import signal


def main() -> None:
    """Runs the command line.

    While its modules are imported, Ctrl-C ends the process as it ends other programs. Python would
    print a traceback. Garbage collections are off until the command is imported: they would take a
    quarter of the CPU time of a short command.
    """
    gc.disable()
    interrupt = signal.getsignal(signal.SIGINT)
    is_default = interrupt is signal.default_int_handler
    if is_default:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from strata.cli.main import main as run  # noqa: PLC0415 - after the signal is set

    if is_default:
        signal.signal(signal.SIGINT, interrupt)
    run()
