"""Plans which messages leave a window and which stay (docs/wire-format.md#compaction). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from strata.agent_loop.context.exchanges import Leaving, UnitKind, WindowUnit, leaving, units_of
from strata.agent_loop.context.requests import View
from strata.agent_loop.domain.agent.agents import CompactionMode, CompactionSettings
from strata.agent_loop.domain.conversation.messages import Message, SummaryPart
from strata.shared.messages import MessageRole

MIN_SUMMARY_BYTES = 600
"""Bytes of the shortest useful summary in packed form."""

_SUMMARY_SHARE = 0.25
_PACKING_BYTES = 300
# It is the newest message, and so the last one of those that stay.
_UNKNOWN_INPUT = Message("", MessageRole.USER, ())


class Obstacle(Enum):
    """Why a compaction is not made."""

    SPACE_IS_FREE = auto()
    """Without summaries, the messages leave the share free that a compaction frees."""
    NO_OLDER_EXCHANGE = auto()
    """Besides summaries and pinned inputs, the window holds only the exchange under way."""
    OLDER_MESSAGES_PINNED = auto()
    """All that is older than the exchange under way is pinned."""
    PINNED_MESSAGES_FILL_SPACE = auto()
    """Pinned messages alone fill the space. Each turn would pay for a summary and be too large
    again."""
    WINDOW_NOT_FULL = auto()
    """The request of the turn fits."""
    PROMPT_FILLS_WINDOW = auto()
    """System message and tools leave messages too little space, see `compaction_helps`."""
    WINDOW_IS_CLEARED = auto()
    """Each turn of the agent begins with an empty window."""
    NO_MODEL = auto()
    """No model is configured."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A planned compaction.

    Attributes:
        evicted: Messages that leave, in order, without earlier summaries.
        earlier: Earlier summaries, which the new one replaces.
        kept: Messages that stay, in order, without the system message.
        summary_bytes: Maximum bytes of the packed summary.
    """

    evicted: tuple[Message, ...]
    earlier: tuple[SummaryPart, ...]
    kept: tuple[Message, ...]
    summary_bytes: int


def plan(
    messages: Sequence[Message],
    view: View,
    space: float,
    settings: CompactionSettings,
    *,
    forced: bool = False,
) -> Plan | Obstacle:
    """Plans the compaction of a window; returns an obstacle if no message leaves it.

    Finished exchanges leave as a whole, oldest first: in mode ``sliding_window`` until the share
    from the settings is free, in mode ``all`` all of them. If the current exchange still does not
    fit, its older steps leave too.

    Args:
        messages: The window, the system message first.
        view: How messages are shown.
        space: Bytes for all messages but the system message.
        settings: The compaction settings.
        forced: A manual compaction, which is made even if pinned messages fill the space.
    """
    units = units_of(messages[1:])
    sizes = view.sizes(unit.messages for unit in units)
    summaries = {i for i, unit in enumerate(units) if unit.kind is UnitKind.SUMMARY}
    reserve = _reserve(space, settings)
    size = sum(size for i, size in enumerate(sizes) if i not in summaries)
    removed: set[int] = set()
    order = leaving(units)
    if not forced and order.fixed and sum(sizes[i] for i in order.fixed) > space - reserve:
        return Obstacle.PINNED_MESSAGES_FILL_SPACE
    everything = settings.evicts is CompactionMode.ALL
    share = space * (1.0 - settings.evicted_share) - reserve
    for group in order.exchanges:
        if not everything and size <= share:
            break
        removed.update(group)
        size -= sum(sizes[i] for i in group)
    for group in order.current:
        if size <= space - reserve:
            break
        removed.update(group)
        size -= sum(sizes[i] for i in group)
    if not removed:
        return _obstacle(order)
    return Plan(
        _messages(units, removed),
        _earlier(units, summaries),
        _messages(units, set(range(len(units))) - removed - summaries),
        max(MIN_SUMMARY_BYTES, int(space) - size),
    )


def plan_of_next_turn(
    messages: Sequence[Message], view: View, space: float, settings: CompactionSettings
) -> Plan | Obstacle:
    """Plans the compaction that the next turn of a conversation makes.

    The input of the turn is not known and counts as empty. It ends the exchange before it, unless
    the turn continues with the answer to an approval request.

    Args:
        messages: The window before that turn, the system message first.
        view: How messages are shown.
        space: Bytes for all messages but the system message.
        settings: The compaction settings.
    """
    if messages[-1].approval_request is not None:
        return plan(messages, view, space, settings)
    planned = plan([*messages, _UNKNOWN_INPUT], view, space, settings)
    if isinstance(planned, Obstacle):
        return planned
    return replace(planned, kept=planned.kept[:-1])


def _obstacle(order: Leaving) -> Obstacle:
    """Returns why no message leaves a window."""
    if order.exchanges:
        return Obstacle.SPACE_IS_FREE
    return Obstacle.OLDER_MESSAGES_PINNED if order.fixed else Obstacle.NO_OLDER_EXCHANGE


def _reserve(space: float, settings: CompactionSettings) -> float:
    return max(
        MIN_SUMMARY_BYTES, min(settings.limit_chars + _PACKING_BYTES, space * _SUMMARY_SHARE)
    )


def _messages(units: Sequence[WindowUnit], positions: set[int]) -> tuple[Message, ...]:
    return tuple(message for i in sorted(positions) for message in units[i].messages)


def _earlier(units: Sequence[WindowUnit], summaries: set[int]) -> tuple[SummaryPart, ...]:
    return tuple(
        part
        for message in _messages(units, summaries)
        for part in message.parts
        if isinstance(part, SummaryPart)
    )
