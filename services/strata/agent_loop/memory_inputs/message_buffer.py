"""Determines which messages of a voice agent's window can be archived and evicted. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from strata.agent_loop.context.exchanges import UnitKind, leaving, units_of
from strata.agent_loop.domain.agent.message_buffer import BufferLengths
from strata.agent_loop.domain.conversation.messages import Message
from strata.agent_loop.domain.run.events import MessageBuffer


def first_sequence(window: Sequence[Message]) -> int:
    """Returns the lowest sequence in a window; for an empty window that of the next message.

    Args:
        window: The window, the system message first.
    """
    units = units_of(window[1:])
    messages = [m for unit in units if unit.kind is not UnitKind.SUMMARY for m in unit.messages]
    return min((message.sequence for message in messages), default=window[0].sequence + 1)


def buffer_of(window: Sequence[Message], lengths: BufferLengths, began_at: int) -> MessageBuffer:
    """Returns which of the oldest messages of a window can be archived.

    Whole exchanges leave, oldest first, until the shortest length is reached. The last exchange
    and pinned messages stay.

    Args:
        window: The window after the turn, the system message first.
        lengths: The agent's shortest and longest length of the window.
        began_at: Sequence of the first message of the window at the start of the turn.
    """
    units = units_of(window[1:])
    sizes = [0 if unit.kind is UnitKind.SUMMARY else len(unit.messages) for unit in units]
    count = left = sum(sizes)
    last: Message | None = None
    for group in leaving(units).exchanges:
        if left <= lengths.shortest:
            break
        left -= sum(sizes[i] for i in group)
        last = max((m for i in group for m in units[i].messages), key=lambda m: m.sequence)
    return MessageBuffer(
        after_sequence=began_at - 1,
        until_sequence=-1 if last is None else last.sequence,
        until_message_id="" if last is None else last.id,
        full=count > lengths.longest,
    )
