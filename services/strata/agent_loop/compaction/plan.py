"""Plans which messages leave a window and which stay (docs/wire-format.md#compaction). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from strata.agent_loop.context.exchanges import UnitKind, WindowUnit, leaving, units_of
from strata.agent_loop.context.requests import View
from strata.agent_loop.domain.agent.agents import CompactionMode, CompactionSettings
from strata.agent_loop.domain.conversation.messages import Message, SummaryPart

MIN_SUMMARY_BYTES = 600
"""Bytes of the shortest useful summary in packed form."""

_SUMMARY_SHARE = 0.25
_PACKING_BYTES = 300


@dataclass(frozen=True, slots=True)
class Plan:
    """A planned compaction.

    Attributes:
        evicted: Messages that leave, in order, without earlier summaries.
        earlier: Earlier summaries, which the new one replaces.
        kept: Messages that stay, in order, without the system message.
        summary_bytes: Most bytes of the packed summary.
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
) -> Plan | None:
    """Plans the compaction of a window; None if no message can leave it, or if it would not help.

    Finished exchanges leave as a whole, oldest first: in mode ``sliding_window`` until the share
    from the settings is free, in mode ``all`` all of them. If the current exchange still does not
    fit, its older steps leave too. If pinned messages alone fill the space, nothing leaves: each
    turn would pay for a summary and be too large again.

    Args:
        messages: The window, the system message first.
        view: How messages are shown.
        space: Bytes for all messages but the system message.
        settings: The compaction settings.
        forced: A manual compaction, which is made even if pinned messages fill the space.
    """
    units = units_of(messages[1:])
    sizes = [view.size(unit.messages) for unit in units]
    summaries = {i for i, unit in enumerate(units) if unit.kind is UnitKind.SUMMARY}
    reserve = _reserve(space, settings)
    size = sum(size for i, size in enumerate(sizes) if i not in summaries)
    gone: set[int] = set()
    order = leaving(units)
    if not forced and order.fixed and sum(sizes[i] for i in order.fixed) > space - reserve:
        return None
    everything = settings.evicts is CompactionMode.ALL
    share = space * (1.0 - settings.evicted_share) - reserve
    for group in order.exchanges:
        if not everything and size <= share:
            break
        gone.update(group)
        size -= sum(sizes[i] for i in group)
    for group in order.current:
        if size <= space - reserve:
            break
        gone.update(group)
        size -= sum(sizes[i] for i in group)
    if not gone:
        return None
    return Plan(
        _messages(units, gone),
        _earlier(units, summaries),
        _messages(units, set(range(len(units))) - gone - summaries),
        max(MIN_SUMMARY_BYTES, int(space) - size),
    )


def _reserve(space: float, settings: CompactionSettings) -> float:
    return max(
        MIN_SUMMARY_BYTES, min(settings.limit_chars + _PACKING_BYTES, space * _SUMMARY_SHARE)
    )


def _messages(units: Sequence[WindowUnit], wanted: set[int]) -> tuple[Message, ...]:
    return tuple(message for i in sorted(wanted) for message in units[i].messages)


def _earlier(units: Sequence[WindowUnit], summaries: set[int]) -> tuple[SummaryPart, ...]:
    return tuple(
        part
        for message in _messages(units, summaries)
        for part in message.parts
        if isinstance(part, SummaryPart)
    )
