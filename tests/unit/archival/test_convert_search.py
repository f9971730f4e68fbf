"""Conversion of searches and their results."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from archival_stores import NOW, new_passage
from strata.api.archival.v1 import passage_service_pb2 as pb
from strata.api.common.v1 import search_pb2
from strata.archival.convert.search import answer_to_proto, to_search
from strata.archival.domain.passages import Origin, Passage, TagMatch
from strata.archival.domain.search import Search
from strata.protocol.errors import InvalidArgumentError
from strata.shared.ids import new_id
from strata.shared.search.outdated import Outdated
from strata.shared.search.reranking import RerankingOutcome, RerankingReport
from strata.shared.search.result_merge import ResultRank
from strata.shared.search.results import Exclusion, SearchHit, SearchResult, exclusions
from strata.shared.search.time_expressions import TimeRange

AGENT = new_id("agent")
TAGS = st.frozensets(st.sampled_from("abc"))
TIMES = st.integers(-3, 3).map(lambda hours: NOW + timedelta(hours=hours))


def passage(tags: frozenset[str] = frozenset(), created: datetime = NOW) -> Passage:
    new = new_passage("text", tuple(sorted(tags)), created)
    return Passage(
        new.id, new_id("archive"), "text", new.tags, {}, Origin(), 1, 1, True, created, created
    )


def wire(**fields: Any) -> pb.SearchPassagesRequest:
    return pb.SearchPassagesRequest(**{"agent_id": AGENT, "query": "q", **fields})


def test_a_request_becomes_a_search() -> None:
    start, end, asked = (Timestamp(seconds=number) for number in (10, 20, 30))
    search = to_search(
        wire(
            tags=["b", "a", "b"],
            tag_match_mode=pb.TAG_MATCH_MODE_ALL,
            start_time=start,
            end_time=end,
            reference_time=asked,
            timezone="Asia/Tokyo",
            explain=True,
            top_k=1_000,
        )
    )
    first = datetime.fromtimestamp(10, UTC)
    assert search == Search(
        query="q",
        top_k=100,
        agent_id=AGENT,
        tags=("a", "b"),
        tag_match=TagMatch.ALL,
        start_time=first,
        end_time=first + timedelta(seconds=10),
        explain=True,
        timezone="Asia/Tokyo",
        reference_time=first + timedelta(seconds=20),
    )
    assert to_search(wire()) == Search(query="q", top_k=5, agent_id=AGENT)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"archive_ids": [new_id("archive")]}, "agent_id"),
        ({"agent_id": ""}, "agent_id"),
        ({"query": "q" * 10_001}, "query"),
        ({"query": ""}, "query"),
        ({"query": " \u200b\n"}, "query"),
        ({"top_k": -1}, "top_k"),
        ({"tag_match_mode": 9}, "tag_match_mode"),
        ({"tags": [" "]}, "tags[0]"),
        ({"start_time": Timestamp(seconds=5), "end_time": Timestamp(seconds=5)}, "end_time"),
        ({"reference_time": Timestamp(seconds=2**60)}, "reference_time"),
    ],
)
def test_wrong_fields_are_named(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        to_search(wire(**fields))
    assert [violation.field for violation in refused.value.violations] == [field]


def test_search_result_is_converted_to_proto() -> None:
    found_passage = SearchHit(passage(), "hybrid", 0.75, 2, None, "because")
    answer = SearchResult(
        (found_passage,),
        (Exclusion("tags", 3, "passage-1"),),
        (TimeRange("since May", NOW, None),),
    )
    response = answer_to_proto(answer)
    (hit,) = response.hits
    assert hit.passage.id == found_passage.item.id
    relevance = hit.relevance
    assert (relevance.search_mode, relevance.rrf_score) == ("hybrid", 0.75)
    assert (relevance.vector_rank, relevance.HasField("fts_rank")) == (2, False)
    assert relevance.explanation == "because"
    (exclusion,) = response.exclusions
    assert (exclusion.condition, exclusion.count, exclusion.best_id) == (
        "tags",
        3,
        "passage-1",
    )
    (spoken,) = response.spoken_times
    assert spoken.words == "since May"
    assert spoken.start_time.ToDatetime(tzinfo=UTC) == NOW
    assert not spoken.HasField("end_time")


def test_a_possibly_outdated_passage_has_the_id_of_the_newer_one() -> None:
    outdated = Outdated("passage-2", NOW.timestamp(), "Ada smokes.", "Ada no longer smokes.")
    answer = SearchResult((SearchHit(passage(), "hybrid", 0.75, 2, None, outdated=outdated),))
    (hit,) = answer_to_proto(answer).hits
    assert hit.possibly_outdated.newer_id == "passage-2"
    assert hit.possibly_outdated.newer_statement == "Ada no longer smokes."


def test_reranking_is_converted_to_proto() -> None:
    assert not answer_to_proto(SearchResult()).HasField("reranking")
    hits = (
        SearchHit(passage(), "hybrid", 0.75, 2, None, rerank_score=-3.5, rerank_rank=1),
        SearchHit(passage(), "hybrid", 0.7, 1, None),
    )
    outcomes = {
        RerankingOutcome.DONE: search_pb2.RERANK_OUTCOME_DONE,
        RerankingOutcome.OUT_OF_TIME: search_pb2.RERANK_OUTCOME_OUT_OF_TIME,
        RerankingOutcome.FAILED: search_pb2.RERANK_OUTCOME_FAILED,
    }
    for outcome in RerankingOutcome:
        answer = SearchResult(hits, reranking=RerankingReport("mini@1234", 12, outcome))
        response = answer_to_proto(answer)
        reranking = response.reranking
        assert (reranking.model, reranking.candidate_count) == ("mini@1234", 12)
        assert reranking.outcome == outcomes[outcome]
        first, second = (hit.relevance for hit in response.hits)
        assert (first.rerank_score, first.rerank_rank, first.rrf_score) == (-3.5, 1, 0.75)
        assert not second.HasField("rerank_score")
        assert not second.HasField("rerank_rank")


@given(
    wanted=TAGS,
    has=TAGS,
    match=st.sampled_from(TagMatch),
    created=TIMES,
    start=st.none() | TIMES,
    end=st.none() | TIMES,
)
def test_conditions_that_are_not_met_are_named(
    wanted: frozenset[str],
    has: frozenset[str],
    match: TagMatch,
    created: datetime,
    start: datetime | None,
    end: datetime | None,
) -> None:
    search = Search("q", 5, AGENT, (), tuple(wanted), match, start, end)
    one = passage(has, created)
    expected = set()
    if wanted and not (wanted <= has if match is TagMatch.ALL else wanted & has):
        expected.add("tags")
    if start and created < start:
        expected.add("start_time")
    if end and created >= end:
        expected.add("end_time")
    assert set(search.left_out_by(one)) == expected
    matches = [(one, ResultRank("fts", 1, None, 1))] * 2
    assert exclusions(search.left_out_by, matches, lambda match: match.id) == tuple(
        Exclusion(name, 2, one.id) for name in search.left_out_by(one)
    )
