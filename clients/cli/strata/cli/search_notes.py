"""Notes about a search: conditions that exclude results, and time expressions in the query."""

from __future__ import annotations

from strata.api.archival.v1.passage_service_pb2 import PassageHit, SearchPassagesResponse
from strata.api.recall.v1.message_service_pb2 import MessageHit, SearchMessagesResponse
from strata.cli.output import note, when


def outdated_mark(hit: MessageHit | PassageHit) -> str:
    """Returns the mark before a text that a newer result seems to replace; empty if none does."""
    newer_id = hit.possibly_outdated.newer_id
    return f"[possibly outdated: see {newer_id}] " if newer_id else ""


def print_search_notes(response: SearchMessagesResponse | SearchPassagesResponse) -> None:
    """Prints a note for each condition that excludes results, and for each time expression."""
    for exclusion in response.exclusions:
        note(f"{exclusion.condition} excludes {exclusion.count}, best {exclusion.best_id}.")
    for expression in response.spoken_times:
        start, end = (
            when(expression.start_time) or "the beginning",
            when(expression.end_time) or "now",
        )
        note(f"{expression.words!r}: texts from {start} to {end} are ranked higher.")
