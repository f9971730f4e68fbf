"""What the lean client sends, beside what the client that it inherits from would send."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from qdrant_client import grpc, models
from qdrant_client.conversions.conversion import RestToGrpc

from strata.shared.search.vectors import lean_client
from strata.shared.search.vectors.filters import tenant_corpus
from strata.shared.search.vectors.qdrant import connect

NUMBERS = st.floats(-1, 1, width=32)
WORDS = st.dictionaries(st.integers(0, 1 << 31), NUMBERS, max_size=4)
CONDITIONS = st.lists(
    st.builds(
        lambda name, value: models.FieldCondition(key=name, match=models.MatchValue(value=value)),
        st.sampled_from(["project_id", "agent_id"]),
        st.text(min_size=1, max_size=3),
    ),
    max_size=3,
)


@st.composite
def requests(draw: st.DrawFn) -> models.QueryRequest:
    words = draw(WORDS)
    query: Any = draw(
        st.one_of(
            st.lists(NUMBERS, min_size=1, max_size=4),
            st.just(models.SparseVector(indices=list(words), values=list(words.values()))),
            # What only the inherited form knows.
            st.lists(st.lists(NUMBERS, min_size=2, max_size=2), min_size=1, max_size=2),
            st.just(models.RrfQuery(rrf=models.Rrf())),
        )
    )
    given_fields: dict[str, Any] = {
        "using": draw(st.none() | st.sampled_from(["dense", "bm25"])),
        "limit": draw(st.none() | st.integers(1, 50)),
        "filter": draw(st.none() | st.builds(lambda must: models.Filter(must=must), CONDITIONS)),
        "params": draw(st.sampled_from([None, tenant_corpus("project-1")])),
        "with_payload": draw(st.sampled_from([None, True, ["document_id"]])),
        "offset": draw(st.sampled_from([None, 3])),
        "score_threshold": draw(st.sampled_from([None, 0.5])),
    }
    fields = {name: value for name, value in given_fields.items() if value is not None}
    return models.QueryRequest(query=query, **fields)


class Points:
    """Takes a batch and finds nothing."""

    def __init__(self) -> None:
        self.asked: list[grpc.QueryBatchPoints] = []

    async def QueryBatch(self, batch: grpc.QueryBatchPoints, **_options: Any) -> Any:
        self.asked.append(batch)
        return grpc.QueryBatchResponse()


@settings(max_examples=20)
@given(st.lists(requests(), max_size=10))
async def test_a_batch_equals_that_of_the_inherited_client(
    asked: list[models.QueryRequest],
) -> None:
    points = Points()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lean_client.LeanQdrantClient, "grpc_points", points)
        client = connect("http://127.0.0.1:1")
        await client.query_batch_points("c", [*asked, *asked])  # a filter may serve twice
        await client.close()
    expected = [RestToGrpc.convert_query_request(request, "c") for request in [*asked, *asked]]
    assert list(points.asked[0].query_points) == expected
