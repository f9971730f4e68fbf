"""Output of a chat: to a terminal, or as plain lines without one."""

from __future__ import annotations

import re
import sys
from typing import Protocol, TextIO

from rich.cells import get_character_cell_size
from rich.console import Console
from rich.markdown import Markdown
from rich.status import Status
from rich.text import Text

from strata.cli.output import safe
from strata.shared.text_buffer import TextBuffer

_TAB = 8
# Headings, lists, quotes, code, tables and emphasis.
_MARKDOWN = re.compile(
    r"^(#{1,6} |[-*+] |\d+[.)] |> |```|~~~|\|.+\|)|\*\*[^*\s][^*]*\*\*|`[^`\n]+`", re.MULTILINE
)
_REPLY = ""
_REASONING = "dim italic"


class Screen(Protocol):
    """Output of a turn.

    Streamed text since the last `mark` can be removed again (`retract`), unless a line followed it.
    """

    def stream(self, piece: str, *, reasoning: bool = False) -> None:
        """Appends to the text that is being streamed."""
        ...

    def settle(self) -> None:
        """Ends the text that is being streamed."""
        ...

    def line(self, text: Text) -> None:
        """Shows a line about an event, which `retract` does not remove."""
        ...

    def notice(self, text: Text) -> None:
        """Shows a line about an event in the middle of a text; `retract` removes both."""
        ...

    def mark(self) -> None:
        """Marks this place for `retract`."""
        ...

    def retract(self) -> bool:
        """Removes the text streamed since the mark; returns False if that is not possible."""
        ...

    def waiting(self, label: str) -> None:
        """Shows a label for work in progress, until the next output."""
        ...


class TerminalScreen:
    """A terminal: shows text as it is streamed, and a spinner while there is none.

    Args:
        console: A console on a terminal.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._streamed = TextBuffer()
        self._reply = TextBuffer()
        self._retractable = True
        self._style: str | None = None
        self._status: Status | None = None

    def stream(self, piece: str, *, reasoning: bool = False) -> None:
        """Writes the piece where the cursor is."""
        style = _REASONING if reasoning else _REPLY
        if self._style is not None and self._style != style:
            self._end_line()
        text = safe(piece)
        if text:
            self._write(text, style)
            self._style = style
            if not reasoning:
                self._reply.add(text)

    def settle(self) -> None:
        """Ends the current text; a reply in Markdown is replaced by its rendered form."""
        reply = self._reply.text
        self._reply.clear()
        self._end_line()
        self._stop_waiting()
        if self._retractable and has_markdown(reply):
            self._render(reply)

    def line(self, text: Text) -> None:
        """Shows a line below the output."""
        self.settle()
        self._console.print(text, soft_wrap=True)
        self._retractable = False

    def notice(self, text: Text) -> None:
        """Shows a line that `retract` removes like streamed text."""
        self._end_line()
        self._reply.clear()  # the reply is shown in two parts
        self._write(text.plain + "\n", str(text.style))

    def mark(self) -> None:
        """Marks the beginning of the next line."""
        self._end_line()
        self._streamed.clear()
        self._reply.clear()
        self._retractable = True

    def retract(self) -> bool:
        """Clears the streamed text, if all of it is still on the screen."""
        self._stop_waiting()
        rows = rows_of(self._streamed.text, self._console.width)
        if not self._retractable or rows >= self._console.height:
            self._end_line()
            return False
        up = f"\x1b[{rows}A" if rows else ""
        self._console.file.write(f"{up}\r\x1b[J")
        self._console.file.flush()
        self._streamed.clear()
        self._reply.clear()
        self._style = None
        return True

    def waiting(self, label: str) -> None:
        """Shows a spinner."""
        self._end_line()
        if self._status is None:
            self._status = self._console.status(Text(safe(label), style="dim"))
            self._status.start()
        else:
            self._status.update(Text(safe(label), style="dim"))

    def _render(self, reply: str) -> None:
        """Replaces the reply, which was streamed last, if it is whole on the screen."""
        raw = reply if reply.endswith("\n") else f"{reply}\n"
        rows = rows_of(raw, self._console.width)
        if not self._streamed.text.endswith(raw) or rows >= self._console.height:
            return
        with self._console.capture() as captured:
            self._console.print(Markdown(reply, code_theme="ansi_dark", hyperlinks=False))
        self._console.file.write(f"\x1b[{rows}A\r\x1b[J")
        self._console.file.write(captured.get())
        self._console.file.flush()
        # Versions of rich differ in whether this keeps the last end of line.
        plain = Text.from_ansi(captured.get()).plain.removesuffix("\n")
        self._streamed.set(f"{self._streamed.text.removesuffix(raw)}{plain}\n")

    def _write(self, text: str, style: str) -> None:
        self._stop_waiting()
        self._console.print(Text(text, style=style), end="", soft_wrap=True)
        self._streamed.add(text)

    def _end_line(self) -> None:
        if self._style is not None:
            if not self._streamed.ends_with("\n"):
                self._write("\n", _REPLY)
            self._style = None

    def _stop_waiting(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None


class PlainScreen:
    """No terminal: writes each text when it is complete.

    The agent's replies go to standard output, everything else to standard error, so that a pipe
    receives only the replies.
    """

    def __init__(self) -> None:
        self._reply: TextIO = sys.stdout
        self._activity: TextIO = sys.stderr
        self._pieces: list[tuple[bool, str]] = []
        self._retractable = True

    def stream(self, piece: str, *, reasoning: bool = False) -> None:
        """Keeps the piece until the text is complete."""
        self._pieces.append((reasoning, piece))

    def settle(self) -> None:
        """Writes the buffered text."""
        reasoning = "".join(piece for kind, piece in self._pieces if kind)
        reply = "".join(piece for kind, piece in self._pieces if not kind)
        self._pieces.clear()
        for line in reasoning.splitlines():
            self._put(self._activity, f"[thinking] {line}")
        if reply:
            self._put(self._reply, reply.rstrip("\n"))
        if reply or reasoning:
            self._retractable = False

    def line(self, text: Text) -> None:
        """Writes a line about what happens."""
        self._put(self._activity, text.plain)

    def notice(self, text: Text) -> None:
        """Writes a line about an event; the text continues."""
        self._put(self._activity, text.plain)

    def mark(self) -> None:
        """Writes the buffered text, and starts an empty buffer."""
        self.settle()
        self._retractable = True

    def retract(self) -> bool:
        """Drops the buffered text, unless some of it is written already."""
        if not self._retractable:
            self.settle()
            return False
        self._pieces.clear()
        return True

    def waiting(self, label: str) -> None:
        """Shows nothing."""

    def _put(self, stream: TextIO, line: str) -> None:
        stream.write(safe(line) + "\n")
        stream.flush()


def has_markdown(text: str) -> bool:
    """Whether a text contains Markdown that is worth rendering."""
    return _MARKDOWN.search(text) is not None


def rows_of(text: str, width: int) -> int:
    """Returns how many rows below the first one the cursor is after writing the text.

    Terminals wrap lazily: the character that no longer fits opens the next row.
    """
    rows = column = 0
    for character in text:
        if character == "\n":
            rows, column = rows + 1, 0
            continue
        if character == "\t":
            column = min((column // _TAB + 1) * _TAB, width - 1)
            continue
        cells = get_character_cell_size(character)
        if column + cells > width:
            rows, column = rows + 1, 0
        column += cells
    return rows


def screen_for(console: Console) -> Screen:
    """Returns the screen for the kind of standard output."""
    if console.is_terminal and not console.is_dumb_terminal:
        return TerminalScreen(console)
    return PlainScreen()
