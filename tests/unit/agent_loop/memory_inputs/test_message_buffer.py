"""Which of the oldest messages of a voice agent's window can be archived."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strata.agent_loop.domain.agent.message_buffer import BufferLengths
from strata.agent_loop.domain.conversation.messages import Message
from strata.agent_loop.memory_inputs.message_buffer import buffer_of, first_sequence
from strata.shared.messages import MessageRole

ROLES = {
    "s": MessageRole.SYSTEM,
    "S": MessageRole.SUMMARY,
    "u": MessageRole.USER,
    "a": MessageRole.ASSISTANT,
    "t": MessageRole.TOOL,
}
LENGTHS = BufferLengths(6, 3)


def window(letters: str, first: int = 0) -> list[Message]:
    """Returns a window of messages with these roles, numbered from a sequence."""
    return [
        Message(f"message-{first + n}", ROLES[letter], (), sequence=first + n)
        for n, letter in enumerate(letters)
    ]


@pytest.mark.parametrize(
    ("letters", "until", "full"),
    [
        ("s", -1, False),
        ("suat", -1, False),
        # Down to the shortest length, by whole exchanges.
        ("suatuat", 3, False),
        ("suatuatuat", 6, True),
        ("suaua", 2, False),
        # The last exchange is kept, however long it is.
        ("suatatatat", -1, True),
        ("suuatuat", 4, True),
    ],
)
def test_whole_exchanges_are_archived_oldest_first(letters: str, until: int, full: bool) -> None:
    buffer = buffer_of(window(letters), LENGTHS, window(letters))
    assert (buffer.until_sequence, buffer.full) == (until, full)
    assert buffer.until_message_id == (f"message-{until}" if until >= 0 else "")
    assert buffer.after_sequence == 0


def test_summaries_are_neither_counted_nor_archived() -> None:
    shown = [*window("s"), *window("S", first=20), *window("uatuat", first=8)]
    buffer = buffer_of(shown, LENGTHS, shown)
    assert (buffer.until_sequence, buffer.full, buffer.after_sequence) == (10, False, 7)


@pytest.mark.parametrize(("kept", "until"), [("ua", 5), ("uauaua", 9)])
def test_compacted_messages_are_archived_whatever_the_length_of_the_window(
    kept: str, until: int
) -> None:
    before = window("suauau")
    now = [*window("s"), *window("S", first=20), *window(kept, first=6)]
    buffer = buffer_of(now, LENGTHS, before)
    assert (buffer.after_sequence, buffer.until_sequence, buffer.full) == (0, until, True)
    assert buffer.until_message_id == f"message-{until}"


def test_pinned_messages_stay_while_their_neighbours_are_archived() -> None:
    shown = [replace(m, pinned=m.sequence == 1) for m in window("suatuatuat")]
    buffer = buffer_of(shown, LENGTHS, shown)
    assert (buffer.until_sequence, buffer.full) == (6, True)


def test_the_first_sequence_of_an_empty_window_is_that_of_the_next_message() -> None:
    assert first_sequence(window("s")) == 1
    assert first_sequence([*window("s"), *window("ua", first=9)]) == 9
