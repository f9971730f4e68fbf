"""Converts searches of passages and their results, and validates requests."""

from __future__ import annotations

from strata.api.archival.v1 import passage_service_pb2 as pb
from strata.archival.convert.archives import (
    MAX_QUERY_CHARS,
    check_tags,
    passage_to_proto,
)
from strata.archival.domain.passages import Passage, TagMatch
from strata.archival.domain.search import Search
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
    checks = Checks()
    checks.exactly_one(request, "agent_id", "archive_ids")
    checks.id(request.agent_id, "agent", "agent_id", optional=True)
    checks.ids(request.archive_ids, "archive", "archive_ids")
    checks.query(request.query, "query", most=MAX_QUERY_CHARS)
    checks.not_negative(request.top_k, "top_k")
    checks.unless(request.tag_match_mode in _MATCH, "tag_match_mode", "is not a known mode")
    check_tags(checks, request.tags, "tags")
    start = checks.optional_time(request, "start_time")
    end = checks.optional_time(request, "end_time")
    reference = checks.optional_time(request, "reference_time")
    checks.time_range(start, end)
    checks.done()
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
        reference_time=reference,
    )


def answer_to_proto(answer: SearchResult[Passage]) -> pb.SearchPassagesResponse:
    """Returns the result of a search as a response, with as many hits as fit into a message."""
    return pb.SearchPassagesResponse(
        hits=[_hit(hit) for hit in answer.hits[: rows_that_fit(answer.hits)]],
        exclusions=map(exclusion_to_proto, answer.exclusions),
        spoken_times=map(time_to_proto, answer.time_ranges),
        reranking=report_to_proto(answer.reranking),
    )


def _hit(hit: SearchHit[Passage]) -> pb.PassageHit:
    return pb.PassageHit(
        passage=passage_to_proto(hit.item),
        relevance=relevance_to_proto(hit),
        possibly_outdated=outdated_to_proto(hit),
    )
