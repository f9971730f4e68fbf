"""Output that the code of a tool prints."""

from __future__ import annotations

from dataclasses import dataclass

_PRINTED_CHARS = 4_000


@dataclass(frozen=True, slots=True)
class PrintedLines:
    """The lines that a tool printed, which the model is not shown.

    Attributes:
        stdout: Lines of its standard output.
        stderr: Lines of its standard error.
    """

    stdout: tuple[str, ...] = ()
    stderr: tuple[str, ...] = ()

    @classmethod
    def of(cls, stdout: str, stderr: str) -> PrintedLines:
        """Returns the lines of two outputs, each shortened to some thousand characters."""
        return cls(_lines(stdout), _lines(stderr))


def shortened(text: str, most_chars: int) -> str:
    """Returns an output; one of more characters is reduced to its beginning and its end."""
    if len(text) <= most_chars:
        return text
    half = most_chars // 2
    left_out = len(text) - 2 * half
    return f"{text[:half]}\n... [{left_out:,} characters left out] ...\n{text[-half:]}"


def _lines(text: str) -> tuple[str, ...]:
    # PostgreSQL cannot store NUL.
    return tuple(shortened(text.replace("\0", "\ufffd"), _PRINTED_CHARS).splitlines())
