"""Notes about the time expressions in a query."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from google.protobuf.timestamp_pb2 import Timestamp

from strata.cli.output import note, when


class TimeExpression(Protocol):
    """A time expression in the response of a search."""

    @property
    def words(self) -> str:
        """The words in the query, such as ``last week``."""
        ...

    @property
    def start_time(self) -> Timestamp:
        """Start; unset if open."""
        ...

    @property
    def end_time(self) -> Timestamp:
        """End, exclusive; unset if open."""
        ...


def print_time_expressions(expressions: Iterable[TimeExpression]) -> None:
    """Prints one note per expression."""
    for expression in expressions:
        start, end = when(expression.start_time) or "ever", when(expression.end_time) or "now"
        note(f"{expression.words!r}: from {start} to {end} counts more.")
