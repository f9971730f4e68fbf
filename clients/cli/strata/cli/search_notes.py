"""Notes about a search: conditions that exclude results, and time expressions in the query."""

from __future__ import annotations

from strata.api.archival.v1.passage_service_pb2 import SearchPassagesResponse
from strata.api.recall.v1.message_service_pb2 import SearchMessagesResponse
from strata.cli.output import note, when


def print_search_notes(response: SearchMessagesResponse | SearchPassagesResponse) -> None:
    """Prints a note for each condition that excludes results, and for each time expression."""
    for exclusion in response.exclusions:
        note(f"{exclusion.condition} excludes {exclusion.count}, best {exclusion.best_id}.")
    for expression in response.spoken_times:
        start, end = when(expression.start_time) or "ever", when(expression.end_time) or "now"
        note(f"{expression.words!r}: from {start} to {end} counts more.")
