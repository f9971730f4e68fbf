"""Converts searches of passages and their results, and validates requests."""

from __future__ import annotations

from strata.api.archival.v1 import passage_service_pb2 as pb
from strata.archival.convert.archives import (
    MAX_QUERY_CHARS,
    checked_time,
    passage_to_proto,
    refuse,
    tag_violations,
)
from strata.archival.domain.passages import Passage, TagMatch
from strata.archival.domain.search import Search
from strata.protocol.errors import FieldViolation
from strata.shared.db import rows_that_fit
from strata.shared.ids import check_id
from strata.shared.search.convert import (
    exclusion_to_proto,
    query_violations,
    relevance_to_proto,
    report_to_proto,
    time_to_proto,
)
from strata.shared.search.results import SearchHit, SearchResult

DEFAULT_TOP_K = 5
MAX_TOP_K = 100

_MATCH = {
    pb.TAG_MATCH_MODE_UNSPECIFIED: TagMatch.ANY,
    pb.TAG_MATCH_MODE_ANY: TagMatch.ANY,
    pb.TAG_MATCH_MODE_ALL: TagMatch.ALL,
}


def to_search(request: pb.SearchPassagesRequest) -> Search:
    """Returns the search of a request.

    Raises:
        InvalidArgumentError: Neither or both of agent and archives are set, or a value is
            out of range.
    """
    violations: list[FieldViolation] = []
    if bool(request.agent_id) == bool(request.archive_ids):
        violations.append(FieldViolation("agent_id", "set exactly one of agent_id and archive_ids"))
    violations += query_violations(request.query, MAX_QUERY_CHARS)
    if request.top_k < 0:
        violations.append(FieldViolation("top_k", "must not be negative"))
    if request.tag_match_mode not in _MATCH:
        violations.append(FieldViolation("tag_match_mode", "is not a known mode"))
    violations += tag_violations("tags", request.tags)
    times = {
        name: checked_time(getattr(request, name), name, violations)
        if request.HasField(name)
        else None
        for name in ("start_time", "end_time", "reference_time")
    }
    start, end = times["start_time"], times["end_time"]
    if start is not None and end is not None and start >= end:
        violations.append(FieldViolation("end_time", "must be after start_time"))
    refuse(violations)
    if request.agent_id:
        check_id(request.agent_id, "agent", field="agent_id")
    for index, archive_id in enumerate(request.archive_ids):
        check_id(archive_id, "archive", field=f"archive_ids[{index}]")
    return Search(
        query=request.query,
        top_k=min(request.top_k or DEFAULT_TOP_K, MAX_TOP_K),
        agent_id=request.agent_id,
        archive_ids=tuple(request.archive_ids),
        tags=tuple(sorted(set(request.tags))),
        tag_match=_MATCH[request.tag_match_mode],
        start_time=start,
        end_time=end,
        explain=request.explain,
        timezone=request.timezone,
        reference_time=times["reference_time"],
    )


def answer_to_proto(answer: SearchResult[Passage]) -> pb.SearchPassagesResponse:
    """Returns the result of a search as a response, with as many hits as fit into a message."""
    return pb.SearchPassagesResponse(
        hits=[_hit(hit) for hit in answer.hits[: rows_that_fit(answer.hits)]],
        exclusions=map(exclusion_to_proto, answer.exclusions),
        spoken_times=map(time_to_proto, answer.spoken_times),
        reranking=report_to_proto(answer.reranking),
    )


def _hit(hit: SearchHit[Passage]) -> pb.PassageHit:
    return pb.PassageHit(passage=passage_to_proto(hit.item), relevance=relevance_to_proto(hit))
