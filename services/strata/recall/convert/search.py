"""Converts searches of messages and their results, and validates requests."""

from __future__ import annotations

from strata.api.recall.v1 import message_service_pb2 as pb
from strata.recall.convert.messages import (
    message_to_proto,
    messages_to_proto,
    to_roles,
)
from strata.recall.domain.messages import Message
from strata.recall.domain.search import DEFAULT_ROLES, Mode, SearchQuery
from strata.shared.checks import Checks
from strata.shared.db import rows_that_fit
from strata.shared.search.convert import (
    exclusion_to_proto,
    outdated_to_proto,
    relevance_to_proto,
    report_to_proto,
    time_to_proto,
)
from strata.shared.search.results import SearchHit, SearchResult

MAX_QUERY_CHARS = 2_000
MAX_SEARCH_LIMIT = 100
DEFAULT_SEARCH_LIMIT = 5
MAX_NEIGHBOURS = 5

_MODES = {
    pb.SEARCH_MODE_UNSPECIFIED: Mode.HYBRID,
    pb.SEARCH_MODE_FULL_TEXT: Mode.FULL_TEXT,
    pb.SEARCH_MODE_SEMANTIC: Mode.SEMANTIC,
    pb.SEARCH_MODE_HYBRID: Mode.HYBRID,
}


def to_search(request: pb.SearchMessagesRequest) -> SearchQuery:
    """Returns the query of a SearchMessages request.

    Raises:
        InvalidArgumentError: The agent is not an id, the query is blank or too long, a
            number or a role is out of range, or the time range is empty.
    """
    checks = Checks()
    checks.id(request.agent_id, "agent", "agent_id")
    checks.id(request.conversation_id, "conversation", "conversation_id", optional=True)
    checks.id(request.exclude_run_id, "run", "exclude_run_id", optional=True)
    start = checks.optional_time(request, "start_time")
    end = checks.optional_time(request, "end_time")
    reference = checks.optional_time(request, "reference_time")
    checks.time_range(start, end)
    checks.query(request.query, "query", most=MAX_QUERY_CHARS)
    checks.not_negative(request.limit, "limit")
    valid = 0 <= request.neighbours <= MAX_NEIGHBOURS
    checks.unless(valid, "neighbours", f"must be 0 to {MAX_NEIGHBOURS}")
    checks.unless(request.mode in _MODES, "mode", "is not a known mode")
    roles = to_roles(checks, request.roles)
    checks.done()
    return SearchQuery(
        agent_id=request.agent_id,
        conversation_id=request.conversation_id,
        text=request.query.replace("\x00", " "),
        limit=min(request.limit or DEFAULT_SEARCH_LIMIT, MAX_SEARCH_LIMIT),
        roles=roles or DEFAULT_ROLES,
        start_time=start,
        end_time=end,
        exclude_run_id=request.exclude_run_id,
        neighbours=request.neighbours,
        mode=_MODES[request.mode],
        explain=request.explain,
        timezone=request.timezone,
        reference_time=reference,
    )


def answer_to_proto(answer: SearchResult[Message]) -> pb.SearchMessagesResponse:
    """Returns the result of a search as a response, with as many hits as fit into a message."""
    return pb.SearchMessagesResponse(
        hits=[_hit(hit) for hit in answer.hits[: rows_that_fit(answer.hits)]],
        exclusions=map(exclusion_to_proto, answer.exclusions),
        spoken_times=map(time_to_proto, answer.time_ranges),
        reranking=report_to_proto(answer.reranking),
    )


def _hit(hit: SearchHit[Message]) -> pb.MessageHit:
    return pb.MessageHit(
        message=message_to_proto(hit.item),
        relevance=relevance_to_proto(hit),
        neighbours=messages_to_proto(hit.neighbours),
        possibly_outdated=outdated_to_proto(hit),
    )
