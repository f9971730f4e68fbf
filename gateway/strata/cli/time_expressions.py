"""Says which times a query speaks of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from google.protobuf.timestamp_pb2 import Timestamp

from strata.cli.output import note, when


class TimeExpression(Protocol):
    """A stretch of time as search of any service returns it."""

    @property
    def words(self) -> str:
        """The words of the query."""
        ...

    @property
    def start_time(self) -> Timestamp:
        """From then on; unset if open."""
        ...

    @property
    def end_time(self) -> Timestamp:
        """Before then; unset if open."""
        ...


def print_time_expressions(times: Iterable[TimeExpression]) -> None:
    """Prints a note for each."""
    for spoken in times:
        start, end = when(spoken.start_time) or "ever", when(spoken.end_time) or "now"
        note(f"{spoken.words!r}: from {start} to {end} counts more.")
