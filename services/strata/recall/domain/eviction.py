"""Computes which messages stay in a window when older ones, which were archived, are evicted."""

from __future__ import annotations

from collections.abc import Sequence

from strata.recall.domain.messages import Message
from strata.shared.messages import MessageRole

_OF_BOOT = frozenset({MessageRole.ASSISTANT, MessageRole.TOOL})


def remaining_messages(messages: Sequence[Message], until: int) -> list[Message]:
    """Returns the messages that stay in a window, in order.

    The messages of a step are evicted together or not at all, so that no call is separated from
    its return. A pinned message stays with all messages of its step.

    Args:
        messages: The window, the system message first.
        until: Sequence of the last message that may be evicted.
    """
    ends: dict[tuple[str, int], int] = {}
    pinned: set[tuple[str, int]] = set()
    for message in messages:
        step = _step_of(message)
        if step is not None:
            ends[step] = max(ends.get(step, -1), message.sequence)
            if message.pinned:
                pinned.add(step)

    def stays(message: Message) -> bool:
        if message.role is MessageRole.SUMMARY or message.pinned:
            return True
        step = _step_of(message)
        if step is None:
            return message.sequence > until
        return step in pinned or ends[step] > until

    system, *others = messages
    return [system, *filter(stays, others)]


def _step_of(message: Message) -> tuple[str, int] | None:
    """Returns the key of a message's step: run and number; None for an input."""
    boot = not message.run_id and message.role in _OF_BOOT
    return (message.run_id, message.step) if message.step > 0 or boot else None
