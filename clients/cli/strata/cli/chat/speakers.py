"""Orders the events of group members that answer in parallel, so that each turn is shown whole."""

from __future__ import annotations

from collections.abc import Sequence

from strata.api.common.v1.run_event_pb2 import RunEvent


class SpeakersInTurn:
    """Passes on the events of one member's turn at a time.

    Members that a manager agent calls answer in parallel, while its own turn is still open. The
    events of the first turn to start are passed on at once. Events of the other turns are kept
    until that turn ends, and follow turn by turn; then the manager's turn continues, with its
    `turn_started` event repeated. Events of turns in sequence are passed on at once.
    """

    def __init__(self) -> None:
        self._shown: int | None = None
        self._suspended: RunEvent | None = None
        self._start: RunEvent | None = None
        self._kept: dict[int, list[RunEvent]] = {}

    def take(self, event: RunEvent) -> Sequence[RunEvent]:
        """Takes the next event and returns the events to show now."""
        if event.HasField("run_finished"):
            kept = [kept_event for turn in sorted(self._kept) for kept_event in self._kept[turn]]
            self._kept.clear()
            return [*kept, event]
        if not event.HasField("member"):
            return [event]
        turn, begins = event.member.turn, event.HasField("turn_started")
        if begins and self._shown not in (None, turn) and self._suspended is None:
            # Only the turn of a manager agent is still open when another one starts.
            self._suspended, self._shown = self._start, None
        if self._shown is None:
            self._shown, outer = turn, self._suspended
            if outer is not None and turn == outer.member.turn:
                self._suspended, self._start = None, outer
                return [outer, *self._pass_on(event)]
        if turn != self._shown:
            self._kept.setdefault(turn, []).append(event)
            return []
        if begins:
            self._start = event
        return self._pass_on(event)

    def _pass_on(self, event: RunEvent) -> list[RunEvent]:
        """Returns an event of the shown turn, and after its last event those that were waiting."""
        if not event.HasField("turn_finished"):
            return [event]
        self._shown = None
        return [event, *self._next_turns()]

    def _next_turns(self) -> list[RunEvent]:
        """Returns the kept events of the turns that are next."""
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
            if not any(kept_event.HasField("turn_finished") for kept_event in kept):
                self._shown = turn
        return shown
