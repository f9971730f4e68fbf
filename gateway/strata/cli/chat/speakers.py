"""Puts the events of members that speak at the same time in an order that a person can read."""

from __future__ import annotations

from collections.abc import Sequence

from strata.api.common.v1.run_event_pb2 import RunEvent


class SpeakersInTurn:
    """Lets one member of a group speak at a time.

    The members that a manager agent asks answer at the same time, while its own turn goes on. The
    first one that begins is shown as it speaks. What the others do meanwhile is kept and shown when
    that one has ended, turn by turn; then the turn of the manager agent goes on, under its name
    again. Where turns follow each other, events are passed on as they come.
    """

    def __init__(self) -> None:
        self._shown: int | None = None
        self._suspended: RunEvent | None = None
        self._start: RunEvent | None = None
        self._kept: dict[int, list[RunEvent]] = {}

    def take(self, event: RunEvent) -> Sequence[RunEvent]:
        """Takes the next event in and returns what is to be shown now."""
        if event.HasField("run_finished"):
            kept = [each for turn in sorted(self._kept) for each in self._kept[turn]]
            self._kept.clear()
            return [*kept, event]
        if not event.HasField("member"):
            return [event]
        turn, begins = event.member.turn, event.HasField("turn_started")
        if begins and self._shown not in (None, turn) and self._suspended is None:
            # Only a turn within which others are asked is still open when another one begins.
            self._suspended, self._shown = self._start, None
        if self._shown is None:
            self._shown, outer = turn, self._suspended
            if outer is not None and turn == outer.member.turn:
                self._suspended, self._start = None, outer
                return [outer, *self._go_on(event)]
        if turn != self._shown:
            self._kept.setdefault(turn, []).append(event)
            return []
        if begins:
            self._start = event
        return self._go_on(event)

    def _go_on(self, event: RunEvent) -> list[RunEvent]:
        """Shows an event of the turn that is shown, and what may be shown behind its end."""
        if not event.HasField("turn_finished"):
            return [event]
        self._shown = None
        return [event, *self._following()]

    def _following(self) -> list[RunEvent]:
        """Returns what was kept of the turns that may be shown now."""
        shown: list[RunEvent] = []
        while self._shown is None:
            outer = self._suspended
            waiting = [turn for turn in self._kept if outer is None or turn != outer.member.turn]
            if waiting:
                turn = min(waiting)
            elif outer is not None and outer.member.turn in self._kept:
                turn, self._suspended, self._start = outer.member.turn, None, outer
                shown.append(outer)
            else:
                break
            kept = self._kept.pop(turn, [])
            shown += kept
            if not any(each.HasField("turn_finished") for each in kept):
                self._shown = turn
        return shown
