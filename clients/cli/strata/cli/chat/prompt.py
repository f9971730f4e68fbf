"""Reads the user's messages of a chat from the terminal or from a pipe."""

from __future__ import annotations

import contextlib
import importlib
import signal
import sys
import threading
from collections.abc import Iterator

PROMPT = "you> "
CONTINUED = "...> "


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
    that ends in a backslash continues on the next line. Without a terminal each line is a message.
    It blocks the event loop, where nothing else runs while the person types.
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
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1][:-1]
        lines.append(input(CONTINUED))
    return "\n".join(lines)


def is_interactive() -> bool:
    """Whether there is a person to ask: input and output are a terminal."""
    return sys.stdin.isatty() and sys.stdout.isatty()
