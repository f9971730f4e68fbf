"""Reads the messages that a summary replaces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from strata.protocol.errors import FieldViolation, InvalidArgumentError
from strata.recall.domain.messages import Message, MessageFilter
from strata.recall.domain.store import MessageStore
from strata.shared.messages import MessageRole

_SHOWN = (MessageRole.USER, MessageRole.ASSISTANT, MessageRole.TOOL, MessageRole.APPROVAL)


@dataclass(frozen=True, slots=True)
class SummaryExpansion:
    """The summary to expand: the newest one in a conversation's window, or one by its id."""

    limit: int
    conversation_id: str = ""
    summary_id: str = ""
    from_sequence: int = 0
    start_time: datetime | None = None


@dataclass(frozen=True, slots=True)
class ExpandedSummary:
    """A summary and a page of its messages; ``next_sequence`` is 0 at the end."""

    summary: Message | None = None
    messages: Sequence[Message] = field(default_factory=tuple)
    next_sequence: int = 0


async def expand(store: MessageStore, expansion: SummaryExpansion) -> ExpandedSummary:
    """Returns the messages that a summary replaces, oldest first.

    Raises:
        NotFoundError: ``MESSAGE_NOT_FOUND``.
        InvalidArgumentError: The message is not a summary.
    """
    summary = await _summary(store, expansion)
    if summary is None:
        return ExpandedSummary()
    [part] = [part for part in summary.parts if part["type"] == "summary"] or [{}]
    first = max(int(part.get("first_sequence", 0)), expansion.from_sequence)
    last = int(part.get("last_sequence", -1))
    if expansion.start_time is not None:
        since = await store.first_since(summary.conversation_id, expansion.start_time, first, last)
        if since is None:
            return ExpandedSummary(summary)
        first = since
    page = await store.page(
        MessageFilter(
            conversation_id=summary.conversation_id,
            roles=_SHOWN,
            from_sequence=first,
            to_sequence=last,
        ),
        expansion.limit,
        None,
    )
    following = page.messages[-1].sequence + 1 if page.next_cursor else 0
    return ExpandedSummary(summary, page.messages, following)


async def _summary(store: MessageStore, expansion: SummaryExpansion) -> Message | None:
    if not expansion.summary_id:
        return await store.newest_summary(expansion.conversation_id)
    message = await store.get(expansion.summary_id)
    if message.role is not MessageRole.SUMMARY:
        problem = "must be the id of a summary"
        raise InvalidArgumentError(
            f"summary_message_id {problem}.",
            violations=[FieldViolation("summary_message_id", problem)],
        )
    return message
