"""A terminal emulator: the screen after a program has written to it."""

from __future__ import annotations

import re

from rich.cells import get_character_cell_size

_SEQUENCE = re.compile(r"\x1b\[(\??)([\d;]*)([A-Za-z])")
_BEGUN = re.compile(r"\x1b(\[\??[\d;]*)?\Z")


class Terminal:
    """Interprets the output of rich and of our screens: text, CR, LF, cursor up, erase.

    Args:
        width: Columns.
        height: Rows; rows that scroll off the top cannot be changed.
    """

    def __init__(self, width: int = 40, height: int = 12) -> None:
        self.width = width
        self.height = height
        self._rows: list[list[str]] = [[]]
        self._row = self._column = 0
        self._begun = ""

    @property
    def text(self) -> str:
        """All rows, also those that scrolled away, without blank ends."""
        return "\n".join("".join(row).rstrip() for row in self._rows).rstrip("\n")

    def feed(self, written: str) -> None:
        """Writes program output to the screen; it may end inside an escape sequence."""
        written, self._begun = self._begun + written, ""
        at = 0
        while at < len(written):
            if _BEGUN.match(written, at):
                self._begun = written[at:]
                return
            if sequence := _SEQUENCE.match(written, at):
                self._control(sequence[1], sequence[2], sequence[3])
                at = sequence.end()
                continue
            self._put(written[at])
            at += 1

    def _put(self, character: str) -> None:
        match character:
            case "\n":
                self._down()
            case "\r":
                self._column = 0
            case "\b":
                self._column = max(0, self._column - 1)
            case _ if character < " ":
                pass
            case _:
                cells = get_character_cell_size(character)
                if self._column + cells > self.width:
                    self._column = 0
                    self._down()
                row = self._rows[self._row]
                row.extend(" " * (self._column + cells - len(row)))
                row[self._column : self._column + cells] = [character] + [""] * (cells - 1)
                self._column += cells

    def _down(self) -> None:
        self._row += 1
        if self._row == len(self._rows):
            self._rows.append([])

    def _control(self, private: str, parameter: str, letter: str) -> None:
        if private:
            return
        match letter:
            case "A":
                top = max(0, len(self._rows) - self.height)
                self._row = max(top, self._row - int(parameter or 1))
            case "J":
                assert parameter in {"", "0"}
                del self._rows[self._row][self._column :]
                del self._rows[self._row + 1 :]
            case "K":
                start = 0 if parameter == "2" else self._column
                del self._rows[self._row][start:]
            case "C":
                self._column += int(parameter or 1)
            case "G":
                self._column = int(parameter or 1) - 1
            case "m":
                pass
            case _:
                raise AssertionError(f"this terminal does not know CSI {parameter}{letter}")
