"""How many messages the window of a voice agent holds."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_MAX_BUFFER = 30
DEFAULT_MIN_BUFFER = 15
MAX_BUFFER = 1000


@dataclass(frozen=True, slots=True)
class BufferLengths:
    """Messages of a window, without the system message and summaries.

    Attributes:
        longest: Above this number the oldest messages are archived and leave the window.
        shortest: So many are left then.
    """

    longest: int = DEFAULT_MAX_BUFFER
    shortest: int = DEFAULT_MIN_BUFFER

    @property
    def problem(self) -> str | None:
        """What is wrong with the shortest length; None if nothing is."""
        if self.shortest < self.longest:
            return None
        return (
            f"is {self.shortest}, must be less than max_message_buffer_length, which is"
            f" {self.longest}"
        )


def buffer_lengths(longest: int, shortest: int) -> BufferLengths:
    """Returns lengths, with the defaults in the place of 0."""
    return BufferLengths(longest or DEFAULT_MAX_BUFFER, shortest or DEFAULT_MIN_BUFFER)
