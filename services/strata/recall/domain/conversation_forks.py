"""Which messages a fork starts with. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from strata.recall.domain.messages import Message, Role


def unanswered(messages: Iterable[Message]) -> set[str]:
    """Returns the ids of the calls in some messages, in order, that have no return in them."""
    calls: set[str] = set()
    for message in messages:
        calls.difference_update(message.tool_return_ids())
        calls.update(message.tool_call_ids())
    return calls


def completed(window: Sequence[Message], following: Iterable[Message]) -> list[Message]:
    """Returns a window with the returns of its last calls, out of what follows it in the log."""
    whole = list(window)
    for message in following:
        if not unanswered(whole):
            break
        whole.append(message)
    return whole


def in_view(messages: Iterable[Message]) -> list[Message]:
    """Returns messages in the order of a window: the system message, the summary, the rest."""

    def place(message: Message) -> tuple[int, int]:
        rank = 1 if message.role is Role.SUMMARY else 2
        return (rank if message.sequence else 0, message.sequence)

    return sorted({message.sequence: message for message in messages}.values(), key=place)
