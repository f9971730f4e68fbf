"""Groups the messages of a window into units and exchanges, and orders them for removal. Pure.

A unit is shown or left out as a whole: an input, a summary, or a reply with the returns of its
calls. An exchange is one or more inputs with the steps that answer them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from strata.agent_loop.domain.conversation.messages import Message
from strata.shared.messages import MessageRole

# They answer or gate calls of the message before them, and always stay with it.
_FOLLOWERS = frozenset({MessageRole.TOOL, MessageRole.APPROVAL})


class UnitKind(Enum):
    """The kind of a unit."""

    SUMMARY = auto()
    INPUT = auto()
    STEP = auto()


_KINDS = {
    MessageRole.SUMMARY: UnitKind.SUMMARY,
    MessageRole.USER: UnitKind.INPUT,
    MessageRole.SYSTEM: UnitKind.INPUT,
}


class WindowUnit(NamedTuple):
    """Messages that stay in the window or leave it together."""

    kind: UnitKind
    messages: tuple[Message, ...]

    @property
    def pinned(self) -> bool:
        """Whether one of its messages is pinned to the window."""
        return any(message.pinned for message in self.messages)


@dataclass(frozen=True, slots=True)
class Leaving:
    """Positions of units, in the order in which they may leave a window.

    Attributes:
        exchanges: Finished exchanges, oldest first; the units of one leave together.
        current: Units of the current exchange: its older steps, then its older inputs.
        fixed: Units of finished exchanges that never leave, since they are pinned.
    """

    exchanges: tuple[tuple[int, ...], ...]
    current: tuple[tuple[int, ...], ...]
    fixed: tuple[int, ...] = ()


def units_of(messages: Sequence[Message]) -> list[WindowUnit]:
    """Returns the units of a window without its system message, in order."""
    units: list[WindowUnit] = []
    for message in messages:
        # A hidden system message belongs to the reply before it.
        follower = message.role in _FOLLOWERS or message.hidden
        follows = follower and units and units[-1].kind is not UnitKind.SUMMARY
        if follows:
            units[-1] = WindowUnit(units[-1].kind, (*units[-1].messages, message))
        else:
            kind = _KINDS.get(message.role, UnitKind.STEP)
            units.append(WindowUnit(kind, (message,)))
    return units


def leaving(units: Sequence[WindowUnit]) -> Leaving:
    """Returns the units that may leave a window, in order.

    These always stay: the newest unit, the newest user message, pinned units with the inputs that
    they answer, and summaries, which are only ever replaced. Finished exchanges leave as a whole,
    so that no reply is shown without its question.
    """
    exchanges = _exchanges(units)
    if not exchanges:
        return Leaving((), ())
    protected = _protected(units, exchanges)
    *over, current = exchanges
    steps = [i for i in current if units[i].kind is UnitKind.STEP and i not in protected]
    inputs = [i for i in current if units[i].kind is UnitKind.INPUT and i not in protected]
    groups = (tuple(i for i in exchange if i not in protected) for exchange in over)
    return Leaving(
        tuple(group for group in groups if group),
        tuple((i,) for i in (*steps, *inputs)),
        tuple(i for exchange in over for i in exchange if i in protected),
    )


def _exchanges(units: Sequence[WindowUnit]) -> list[list[int]]:
    exchanges: list[list[int]] = []
    has_reply = True
    for position, unit in enumerate(units):
        if unit.kind is UnitKind.SUMMARY:
            continue
        if not exchanges or (unit.kind is UnitKind.INPUT and has_reply):
            exchanges.append([])
        exchanges[-1].append(position)
        has_reply = unit.kind is UnitKind.STEP
    return exchanges


def _protected(units: Sequence[WindowUnit], exchanges: Sequence[Sequence[int]]) -> set[int]:
    protected = {len(units) - 1}
    user_units = [i for i, unit in enumerate(units) if unit.messages[0].role is MessageRole.USER]
    protected.update(user_units[-1:])
    for exchange in exchanges:
        pinned = [i for i in exchange if units[i].pinned]
        protected.update(pinned)
        if any(units[i].kind is UnitKind.STEP for i in pinned):
            protected.update(i for i in exchange if units[i].kind is UnitKind.INPUT)
    return protected
