"""Reorders the events of group members that answer in parallel: turn by turn."""

from __future__ import annotations

from collections.abc import Sequence

from strata.api.common.v1.run_event_pb2 import RunEvent


class SpeakersInTurn:
    """Passes on the events of one member's turn at a time.

    Members that a manager agent calls answer in parallel, while its own turn is still open. The
    events of the first turn to start are passed on at once. Events of the other turns are queued
    until that turn ends, and follow turn by turn; then the manager's turn continues, with its
    `turn_started` event repeated. Events of turns in sequence are passed on at once.
    """

    def __init__(self) -> None:
        # The turn whose events are passed on; None between turns.
        self._current_turn: int | None = None
        # Its `turn_started` event.
        self._current_start: RunEvent | None = None
        # The `turn_started` event of a manager agent whose turn is interrupted by members' turns.
        self._manager_start: RunEvent | None = None
        # Events of the other turns, by number of the turn.
        self._queued: dict[int, list[RunEvent]] = {}

    def take(self, event: RunEvent) -> Sequence[RunEvent]:
        """Adds the next event of the run; returns the events to show now."""
        if event.HasField("run_finished"):
            queued = [
                queued_event for turn in sorted(self._queued) for queued_event in self._queued[turn]
            ]
            self._queued.clear()
            return [*queued, event]
        if not event.HasField("member"):
            return [event]
        turn, begins = event.member.turn, event.HasField("turn_started")
        if begins and self._current_turn not in (None, turn) and self._manager_start is None:
            # Only the turn of a manager agent is still open when another one starts.
            self._manager_start, self._current_turn = self._current_start, None
        if self._current_turn is None:
            self._current_turn, outer = turn, self._manager_start
            if outer is not None and turn == outer.member.turn:
                self._manager_start, self._current_start = None, outer
                return [outer, *self._pass_on(event)]
        if turn != self._current_turn:
            self._queued.setdefault(turn, []).append(event)
            return []
        if begins:
            self._current_start = event
        return self._pass_on(event)

    def _pass_on(self, event: RunEvent) -> list[RunEvent]:
        """Returns an event of the current turn; after its last event, also the queued ones."""
        if not event.HasField("turn_finished"):
            return [event]
        self._current_turn = None
        return [event, *self._next_turns()]

    def _next_turns(self) -> list[RunEvent]:
        """Starts the next turns, until one is not finished; returns their queued events."""
        events: list[RunEvent] = []
        while self._current_turn is None:
            outer = self._manager_start
            waiting = [turn for turn in self._queued if outer is None or turn != outer.member.turn]
            if waiting:
                turn = min(waiting)
            elif outer is not None and outer.member.turn in self._queued:
                turn, self._manager_start, self._current_start = outer.member.turn, None, outer
                events.append(outer)
            else:
                break
            queued = self._queued.pop(turn, [])
            events += queued
            if not any(queued_event.HasField("turn_finished") for queued_event in queued):
                self._current_turn = turn
        return events
