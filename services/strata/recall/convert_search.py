"""Converts searches of messages and their results, and validates requests."""

from __future__ import annotations

from strata.api.recall.v1 import message_service_pb2 as pb
from strata.protocol.errors import FieldViolation
from strata.recall.convert_messages import (
    message_to_proto,
    messages_to_proto,
    refuse,
    time_or_none,
    to_roles,
)
from strata.recall.domain.search import (
    DEFAULT_ROLES,
    Exclusion,
    Mode,
    SearchHit,
    SearchQuery,
    SearchResult,
)
from strata.shared.blank_text import BLANK, is_blank
from strata.shared.db import rows_that_fit
from strata.shared.ids import check_id
from strata.shared.search.reranking import Outcome, Report
from strata.shared.search.time_expressions import TimeRange

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
_OUTCOMES = {
    Outcome.DONE: pb.RERANK_OUTCOME_DONE,
    Outcome.OUT_OF_TIME: pb.RERANK_OUTCOME_OUT_OF_TIME,
    Outcome.FAILED: pb.RERANK_OUTCOME_FAILED,
}


def to_search(request: pb.SearchMessagesRequest) -> SearchQuery:
    """Returns the query of a SearchMessages request.

    Raises:
        InvalidArgumentError: The agent is not an id, the query is blank or too long, a
            number or a role is out of range, or the time range is empty.
    """
    check_id(request.agent_id, "agent", field="agent_id")
    if request.conversation_id:
        check_id(request.conversation_id, "conversation", field="conversation_id")
    if request.exclude_run_id:
        check_id(request.exclude_run_id, "run", field="exclude_run_id")
    start = time_or_none(request.start_time, request.HasField("start_time"), "start_time")
    end = time_or_none(request.end_time, request.HasField("end_time"), "end_time")
    reference = time_or_none(
        request.reference_time, request.HasField("reference_time"), "reference_time"
    )
    violations = []
    if is_blank(request.query):
        violations.append(FieldViolation("query", BLANK))
    if len(request.query) > MAX_QUERY_CHARS:
        violations.append(FieldViolation("query", f"must not exceed {MAX_QUERY_CHARS} characters"))
    if request.limit < 0:
        violations.append(FieldViolation("limit", "must not be negative"))
    if not 0 <= request.neighbours <= MAX_NEIGHBOURS:
        violations.append(FieldViolation("neighbours", f"must be 0 to {MAX_NEIGHBOURS}"))
    if start is not None and end is not None and start >= end:
        violations.append(FieldViolation("end_time", "must be after start_time"))
    if request.mode not in _MODES:
        violations.append(FieldViolation("mode", "is not a known mode"))
    roles = to_roles(request.roles, violations)
    refuse(violations)
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


def answer_to_proto(answer: SearchResult) -> pb.SearchMessagesResponse:
    """Returns the result of a search as a response, with as many hits as fit into a message."""
    hits = answer.hits[: rows_that_fit(answer.hits)]
    return pb.SearchMessagesResponse(
        hits=[_hit(hit) for hit in hits],
        exclusions=[_exclusion(exclusion) for exclusion in answer.exclusions],
        spoken_times=[_spoken_time(spoken_time) for spoken_time in answer.spoken_times],
        reranking=None if answer.reranking is None else _reranking(answer.reranking),
    )


def _hit(hit: SearchHit) -> pb.MessageHit:
    relevance = pb.Relevance(
        search_mode=hit.mode,
        rrf_score=hit.score,
        vector_rank=hit.vector_rank,
        fts_rank=hit.fts_rank,
        explanation=hit.why,
        rerank_score=hit.rerank_score,
        rerank_rank=hit.rerank_rank,
    )
    return pb.MessageHit(
        message=message_to_proto(hit.message),
        relevance=relevance,
        neighbours=messages_to_proto(hit.neighbours),
    )


def _exclusion(exclusion: Exclusion) -> pb.Exclusion:
    return pb.Exclusion(
        condition=exclusion.condition,
        count=exclusion.count,
        best_message_id=exclusion.best_message_id,
    )


def _reranking(report: Report) -> pb.Reranking:
    return pb.Reranking(
        model=report.model,
        candidate_count=report.candidates,
        outcome=_OUTCOMES[report.outcome],
    )


def _spoken_time(spoken: TimeRange) -> pb.SpokenTime:
    wire = pb.SpokenTime(words=spoken.words)
    if spoken.start is not None:
        wire.start_time.FromDatetime(spoken.start)
    if spoken.end is not None:
        wire.end_time.FromDatetime(spoken.end)
    return wire
