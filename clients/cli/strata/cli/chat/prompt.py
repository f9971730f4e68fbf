"""Reads the user's messages of a chat from the terminal or from a pipe."""

from __future__ import annotations

import contextlib
import importlib
import select
import signal
import sys
import threading
from collections.abc import Iterator

from strata.cli.output import console

PROMPT = "you> "
CONTINUED = "...> "

_PASTE_PAUSE_S = 0.02
"""Longest pause between two lines that are pasted into a terminal without bracketed paste."""


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Lets Ctrl-C interrupt a blocking read in an event loop, whose handler would ignore it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def read_message() -> str | None:
    """Returns the next message from standard input; None at its end.

    On a terminal there is a prompt with line editing and history; Ctrl-C drops the message. A line
    that ends in a backslash continues on the next line, and lines that are pasted together are one
    message. Without a terminal each line is a message. It blocks the event loop, where nothing else
    runs while the person types.
    """
    if not sys.stdin.isatty():
        line = sys.stdin.readline()
        return line.rstrip("\n") if line else None
    with contextlib.suppress(ImportError):
        # Importing it adds editing and history to `input`.
        importlib.import_module("readline")
    while True:
        try:
            with interruptible():
                return _typed()
        except EOFError:
            sys.stdout.write("\n")
            return None
        except KeyboardInterrupt:
            sys.stdout.write("\n(Ctrl-D leaves)\n")


def _typed() -> str:
    lines = [input(PROMPT)]
    while lines[-1].endswith("\\") or _is_within_paste():
        lines[-1] = lines[-1].removesuffix("\\")
        lines.append(input(CONTINUED))
    return "\n".join(lines)


def _is_within_paste() -> bool:
    """Whether another line follows at once, if the terminal does not mark where pastes begin."""
    if _has_bracketed_paste():
        return False
    ready, _, _ = select.select([sys.stdin], [], [], _PASTE_PAUSE_S)
    return bool(ready)


def _has_bracketed_paste() -> bool:
    """Whether a pasted line break does not end the line: only with GNU Readline.

    Some builds of Python have `libedit` in its place, those that `uv` installs among them.
    """
    library = sys.modules.get("readline")
    uses_readline = library is not None and "libedit" not in (library.__doc__ or "")
    return uses_readline and not console().is_dumb_terminal


def is_interactive() -> bool:
    """Whether there is a person to ask: input and output are a terminal."""
    return sys.stdin.isatty() and sys.stdout.isatty()
