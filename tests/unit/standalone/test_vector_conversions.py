"""Conversions between the engine and Qdrant's messages."""

from __future__ import annotations

import subprocess
import sys
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.shared.search import qdrant_wire as wire
from strata.standalone.vectors.convert_filters import filter_of
from strata.standalone.vectors.convert_points import (
    payload,
    payload_message,
    point_id,
    point_id_message,
    sparse_vector,
    value_message,
)
from strata.standalone.vectors.convert_queries import query_request
from strata.standalone.vectors.errors import (
    BadRequestError,
    UnsupportedError,
    VectorsError,
    from_engine,
)

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), inner)
    ),
    max_leaves=12,
)


@settings(max_examples=40)
@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), VALUES))
def test_a_payload_is_unchanged_after_conversion(fields: dict[str, object]) -> None:
    message = wire.points.PointStruct(payload=payload_message(fields))
    parsed = wire.points.PointStruct.FromString(message.SerializeToString())

    assert payload(parsed.payload) == fields


@given(st.integers(0, 2**64 - 1) | st.uuids())
def test_an_id_is_unchanged_after_conversion(value: int | UUID) -> None:
    assert point_id(point_id_message(value)) == value


def test_values_that_json_cannot_express_are_refused() -> None:
    with pytest.raises(BadRequestError, match="bytes"):
        value_message(b"x")


@pytest.mark.parametrize(("indices", "values"), [([1, 1], [1.0, 2.0]), ([1], []), ([], [1.0])])
def test_a_malformed_sparse_vector_is_refused(indices: list[int], values: list[float]) -> None:
    with pytest.raises(BadRequestError):
        sparse_vector(indices, values)


def test_an_empty_condition_is_refused_and_not_dropped() -> None:
    """Dropping a condition would widen a filter, possibly beyond the project."""
    common = wire.common
    for condition in (
        common.Condition(),
        common.Condition(field=common.FieldCondition(key="project_id")),
        common.Condition(field=common.FieldCondition(key="project_id", match=common.Match())),
    ):
        with pytest.raises(BadRequestError):
            filter_of(common.Filter(must=[condition]))


@pytest.mark.parametrize("kind", ["geo_radius", "geo_bounding_box", "geo_polygon"])
def test_an_unknown_condition_is_refused_by_name(kind: str) -> None:
    field = wire.common.FieldCondition(key="place")
    getattr(field, kind).SetInParent()
    with pytest.raises(UnsupportedError, match=kind):
        filter_of(wire.common.Filter(must=[wire.common.Condition(field=field)]))
    sliced = wire.common.Condition(slice=wire.common.SliceCondition(total=2, index=1))
    with pytest.raises(UnsupportedError, match="slice"):
        filter_of(wire.common.Filter(must_not=[sliced]))


@pytest.mark.parametrize(
    "kind", ["recommend", "discover", "context", "formula", "relevance_feedback", "text"]
)
def test_an_unknown_query_is_refused_by_name(kind: str) -> None:
    query = wire.points.Query()
    getattr(query, kind).SetInParent()
    with pytest.raises(UnsupportedError, match=kind):
        query_request(wire.points.QueryPoints(query=query))


def test_errors_of_the_engine_are_classified_by_their_text() -> None:
    class PanicException(BaseException):
        """Not an `Exception`, as PyO3 raises it."""

    assert isinstance(from_engine(Exception("Vector dimension error: 4, 2")), BadRequestError)
    for broken in (Exception("Service runtime error: disk"), PanicException("oh")):
        sorted_error = from_engine(broken)
        assert type(sorted_error) is VectorsError


@pytest.mark.child_process
def test_the_engine_process_does_not_import_the_whole_client() -> None:
    program = (
        "import sys, strata.standalone.vectors.server;"
        "assert 'qdrant_client' not in sys.modules, 'the stand-in stayed';"
        "assert not any(m in sys.modules for m in ('httpx', 'numpy', 'pydantic'));"
        "import qdrant_client;"
        "from qdrant_client import AsyncQdrantClient, models, grpc;"
        "from strata.shared.search import qdrant_wire as wire; assert wire.points.PointStruct"
        " is grpc.PointStruct"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": ":".join(entry for entry in sys.path if entry)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
