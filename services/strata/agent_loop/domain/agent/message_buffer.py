"""Limits of the number of messages in the window of a voice agent."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_MAX_BUFFER = 30
DEFAULT_MIN_BUFFER = 15
MAX_BUFFER = 1000


@dataclass(frozen=True, slots=True)
class BufferLengths:
    """Limits of the messages in a window, not counting the system message and summaries.

    Attributes:
        longest: Above this number the oldest messages are archived and leave the window.
        shortest: Number of messages that stay then.
    """

    longest: int = DEFAULT_MAX_BUFFER
    shortest: int = DEFAULT_MIN_BUFFER

    @property
    def problem(self) -> str | None:
        """Why the shortest length is invalid; None if it is valid."""
        if self.shortest < self.longest:
            return None
        return (
            f"is {self.shortest}, must be less than max_message_buffer_length, which is"
            f" {self.longest}"
        )


def buffer_lengths(longest: int, shortest: int) -> BufferLengths:
    """Returns lengths; 0 means the default."""
    return BufferLengths(longest or DEFAULT_MAX_BUFFER, shortest or DEFAULT_MIN_BUFFER)
