"""Computes the messages that a fork of a conversation starts with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from strata.recall.domain.messages import Message
from strata.shared.messages import MessageRole


def unanswered_calls(messages: Iterable[Message]) -> set[str]:
    """Returns the ids of tool calls that have no return in the (ordered) messages."""
    calls: set[str] = set()
    for message in messages:
        calls.difference_update(message.tool_return_ids())
        calls.update(message.tool_call_ids())
    return calls


def with_returns(window: Sequence[Message], following: Iterable[Message]) -> list[Message]:
    """Returns a window with the returns of its open calls added from the following messages."""
    whole = list(window)
    for message in following:
        if not unanswered_calls(whole):
            break
        whole.append(message)
    return whole


def in_window_order(messages: Iterable[Message]) -> list[Message]:
    """Sorts messages in the order of a window: system message, summary, others by sequence."""

    def place(message: Message) -> tuple[int, int]:
        rank = 1 if message.role is MessageRole.SUMMARY else 2
        return (rank if message.sequence else 0, message.sequence)

    return sorted({message.sequence: message for message in messages}.values(), key=place)
