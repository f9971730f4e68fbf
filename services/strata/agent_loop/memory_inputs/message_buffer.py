"""Determines which messages of a voice agent's window can be archived and evicted. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from strata.agent_loop.context.exchanges import UnitKind, leaving, units_of
from strata.agent_loop.domain.agent.message_buffer import BufferLengths
from strata.agent_loop.domain.conversation.messages import Message
from strata.agent_loop.domain.run.events import MessageBuffer
from strata.shared.messages import MessageRole


def first_sequence(window: Sequence[Message]) -> int:
    """Returns the lowest sequence in a window; for an empty window, the next message's sequence.

    Args:
        window: The window, the system message first.
    """
    units = units_of(window[1:])
    messages = [m for unit in units if unit.kind is not UnitKind.SUMMARY for m in unit.messages]
    return min((message.sequence for message in messages), default=window[0].sequence + 1)


def buffer_of(
    window: Sequence[Message], lengths: BufferLengths, before: Sequence[Message]
) -> MessageBuffer:
    """Returns which of the oldest messages of a window can be archived.

    Whole exchanges leave, oldest first, until the shortest length is reached. The last exchange
    and pinned messages stay. Messages that a compaction took out in the turn can be archived as
    well, and make the buffer full: in a small context window it would never hold more messages
    than it may, and they would not be archived at all.

    Args:
        window: The window after the turn, the system message first.
        lengths: The agent's shortest and longest length of the window.
        before: The window at the start of the turn.
    """
    units = units_of(window[1:])
    sizes = [0 if unit.kind is UnitKind.SUMMARY else len(unit.messages) for unit in units]
    count = remaining_count = sum(sizes)
    in_view = {message.id for message in window}
    compacted = [m for m in before[1:] if m.role is not MessageRole.SUMMARY and m.id not in in_view]
    last = max(compacted, key=lambda m: m.sequence, default=None)
    for group in leaving(units).exchanges:
        if remaining_count <= lengths.shortest:
            break
        remaining_count -= sum(sizes[i] for i in group)
        last = max((m for i in group for m in units[i].messages), key=lambda m: m.sequence)
    return MessageBuffer(
        after_sequence=first_sequence(before) - 1,
        until_sequence=-1 if last is None else last.sequence,
        until_message_id="" if last is None else last.id,
        full=count > lengths.longest or bool(compacted),
    )
