"""Computes the position of pinned messages in a window."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from strata.recall.domain.messages import Message
from strata.shared.messages import MessageRole


def with_added(window: Sequence[Message], messages: Iterable[Message]) -> list[Message]:
    """Returns the window with messages of the log added, in order of sequence.

    The system message and the summaries stay in front; added messages are older than the rest,
    so they come right after them.
    """
    front = {MessageRole.SYSTEM, MessageRole.SUMMARY}
    leading = sorted(
        (message for message in window if message.role in front),
        key=lambda message: message.sequence,
    )
    by_id = {message.id: message for message in window if message.role not in front}
    by_id |= {message.id: message for message in messages}
    return leading + sorted(by_id.values(), key=lambda message: message.sequence)
