"""Converts results of searches to protos."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from strata.api.common.v1 import search_pb2 as pb
from strata.shared.search.reranking import RerankingOutcome, RerankingReport
from strata.shared.search.results import Exclusion, SearchHit
from strata.shared.search.time_expressions import TimeRange

_OUTCOMES = {
    RerankingOutcome.DONE: pb.RERANK_OUTCOME_DONE,
    RerankingOutcome.OUT_OF_TIME: pb.RERANK_OUTCOME_OUT_OF_TIME,
    RerankingOutcome.FAILED: pb.RERANK_OUTCOME_FAILED,
}


def relevance_to_proto(hit: SearchHit[Any]) -> pb.Relevance:
    """Returns why a text was found as a proto."""
    return pb.Relevance(
        search_mode=hit.mode,
        rrf_score=hit.score,
        vector_rank=hit.vector_rank,
        fts_rank=hit.fts_rank,
        explanation=hit.why,
        rerank_score=hit.rerank_score,
        rerank_rank=hit.rerank_rank,
    )


def outdated_to_proto(hit: SearchHit[Any]) -> pb.PossiblyOutdated | None:
    """Returns what seems to replace a text as a proto; None if nothing does."""
    outdated = hit.outdated
    if outdated is None:
        return None
    wire = pb.PossiblyOutdated(
        newer_id=outdated.newer_id,
        statement=outdated.statement,
        newer_statement=outdated.newer_statement,
    )
    wire.newer_time.FromDatetime(datetime.fromtimestamp(outdated.newer_time, UTC))
    return wire


def exclusion_to_proto(exclusion: Exclusion) -> pb.Exclusion:
    """Returns an exclusion as a proto."""
    return pb.Exclusion(
        condition=exclusion.condition, count=exclusion.count, best_id=exclusion.best_id
    )


def report_to_proto(report: RerankingReport | None) -> pb.Reranking | None:
    """Returns the report of a reranking as a proto; None if nothing was reranked."""
    if report is None:
        return None
    return pb.Reranking(
        model=report.model, candidate_count=report.candidates, outcome=_OUTCOMES[report.outcome]
    )


def time_to_proto(time_range: TimeRange) -> pb.TimeExpression:
    """Returns a time that a query names as a proto."""
    wire = pb.TimeExpression(words=time_range.words)
    if time_range.start is not None:
        wire.start_time.FromDatetime(time_range.start)
    if time_range.end is not None:
        wire.end_time.FromDatetime(time_range.end)
    return wire
