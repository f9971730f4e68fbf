"""Where a pinned message stands in a window. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from strata.recall.domain.messages import Message, Role


def brought_back(window: Sequence[Message], messages: Iterable[Message]) -> list[Message]:
    """Returns the window with messages that had left it, in the order in which all were said.

    The system message and the summaries stay in front: what comes back is older than the rest,
    so it stands right after them.
    """
    front = {Role.SYSTEM, Role.SUMMARY}
    leading = sorted(
        (message for message in window if message.role in front),
        key=lambda message: message.sequence,
    )
    rest = {message.id: message for message in window if message.role not in front}
    rest |= {message.id: message for message in messages}
    return leading + sorted(rest.values(), key=lambda message: message.sequence)
