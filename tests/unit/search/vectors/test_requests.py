"""The index sends what Qdrant's own client would send for the same operations."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from qdrant_client import AsyncQdrantClient, models

from qdrant_server import RecordingServer, recording_server
from strata.shared.search.qdrant_wire import collections, points
from strata.shared.search.vectors import (
    Collection,
    FieldKind,
    IndexedChunk,
    IndexedDocument,
    NeighbourFields,
    SparseVector,
    Where,
)
from strata.shared.search.vectors.client import connect
from strata.shared.search.vectors.points import point_id
from strata.shared.search.vectors.qdrant import QdrantConfig, QdrantIndex

FIELDS = {
    "archive_id": FieldKind.KEYWORD,
    "tags": FieldKind.KEYWORD,
    "kind": FieldKind.INTEGER,
    "create_time": FieldKind.DATETIME,
}
THINGS = Collection("things", FIELDS, neighbours=NeighbourFields("archive_id", "place", "chars"))
GENERATION = THINGS.generation("model")
DIM = 4
KEY = "secret"
INDEX = QdrantConfig(shard_number=3, replication_factor=2, write_consistency_factor=2)

ASYNC = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
PROJECTS = st.text(min_size=1, max_size=8).filter(str.strip)
WORDS = st.text(max_size=3)
NUMBERS = st.integers(-(2**40), 2**40)
ZONES = st.sampled_from([UTC, timezone(timedelta(hours=-7, minutes=30))])
TIMES = st.datetimes(datetime(1980, 1, 1), datetime(2100, 1, 1), timezones=ZONES)  # noqa: DTZ001
WHERES = st.builds(
    Where,
    eq=st.fixed_dictionaries({}, optional={"archive_id": WORDS, "kind": NUMBERS}),
    any_of=st.fixed_dictionaries(
        {},
        optional={
            "tags": st.lists(WORDS, min_size=1, max_size=3),
            "kind": st.lists(NUMBERS, min_size=1, max_size=3),
        },
    ),
    all_of=st.fixed_dictionaries({}, optional={"tags": st.lists(WORDS, max_size=3)}),
    none_of=st.fixed_dictionaries(
        {}, optional={"tags": st.lists(WORDS, max_size=3), "kind": st.lists(NUMBERS, max_size=3)}
    ),
    since=st.none() | TIMES,
    until=st.none() | TIMES,
)
DENSE = st.lists(st.floats(-1, 1, width=32), min_size=DIM, max_size=DIM)
SPARSE = st.dictionaries(st.integers(0, 2**32 - 1), st.floats(0, 3, width=32), max_size=4).map(
    lambda terms: SparseVector(list(terms), list(terms.values()))
)
DOCUMENTS = st.lists(
    st.builds(
        IndexedDocument,
        id=st.text(min_size=1, max_size=3),
        chunks=st.lists(st.builds(IndexedChunk, DENSE, SPARSE), min_size=1, max_size=3),
        payload=st.fixed_dictionaries(
            {},
            optional={
                "archive_id": WORDS,
                "tags": st.lists(WORDS, max_size=3),
                "kind": NUMBERS,
                "create_time": TIMES,
            },
        ),
    ),
    max_size=4,
)


@pytest.fixture
async def server() -> AsyncIterator[RecordingServer]:
    async with recording_server() as recording:
        info = collections.GetCollectionInfoResponse()
        vectors = info.result.config.params.vectors_config.params_map.map
        vectors["dense"].size = DIM
        recording.replies["Get"] = info
        recording.replies["Count"] = points.CountResponse(result=points.CountResult(count=7))
        done = points.UpdateResult(status=points.UpdateStatus.Completed)
        for method in ("Upsert", "Delete", "CreateFieldIndex"):
            recording.replies[method] = points.PointsOperationResponse(result=done)
        yield recording


@pytest.fixture
async def index(server: RecordingServer) -> AsyncIterator[QdrantIndex]:
    made = QdrantIndex(connect(f"http://127.0.0.1:{server.port}", KEY), INDEX)
    yield made
    await made.close()


@pytest.fixture
async def peer(server: RecordingServer) -> AsyncIterator[AsyncQdrantClient]:
    """Qdrant's own client, which builds messages from models."""
    made = AsyncQdrantClient(
        host="127.0.0.1",
        grpc_port=server.port,
        prefer_grpc=True,
        https=False,
        headers={"api-key": KEY},
        check_compatibility=False,
    )
    yield made
    await made.close()


async def assert_equal_requests(
    server: RecordingServer, ours: Awaitable[object], theirs: Sequence[Awaitable[object]]
) -> None:
    await ours
    sent = [(call.method, call.request, call.api_key) for call in server.taken()]
    for operation in theirs:
        await operation
    assert sent == [(call.method, call.request, call.api_key) for call in server.taken()]
    assert {key for _, _, key in sent} <= {KEY}


def matches(name: str, value: str | int) -> models.FieldCondition:
    return models.FieldCondition(key=name, match=models.MatchValue(value=value))


def matches_any(name: str, values: Any) -> models.FieldCondition:
    return models.FieldCondition(key=name, match=models.MatchAny(any=values))


def filter_of(project: str, where: Where, *more: models.Condition) -> models.Filter:
    must: list[models.Condition] = [matches("project_id", project)]
    must += [matches(name, value) for name, value in where.eq.items()]
    must += [matches_any(name, values) for name, values in where.any_of.items()]
    must += [matches(name, value) for name, values in where.all_of.items() for value in values]
    if where.since or where.until:
        period = models.DatetimeRange(gte=where.since, lte=where.until)
        must.append(models.FieldCondition(key="create_time", range=period))
    must_not: list[models.Condition] = [
        matches_any(name, values) for name, values in where.none_of.items() if values
    ]
    return models.Filter(must=[*must, *more], must_not=must_not)


def sparse_of(vector: SparseVector) -> models.SparseVector:
    return models.SparseVector(indices=list(vector.indices), values=list(vector.values))


def stored(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return value


def points_of(project: str, documents: Sequence[IndexedDocument]) -> list[models.PointStruct]:
    return [
        models.PointStruct(
            id=point_id(project, document.id, number),
            vector={
                "dense": list(chunk.dense),
                **({"bm25": sparse_of(chunk.sparse)} if chunk.sparse else {}),
            },
            payload={
                **{name: stored(value) for name, value in document.payload.items()},
                "project_id": project,
                "document_id": document.id,
                "chunk": number,
            },
        )
        for document in documents
        for number, chunk in enumerate(document.chunks)
    ]


async def test_a_collection_is_made_as_by_qdrants_client(
    server: RecordingServer, index: QdrantIndex, peer: AsyncQdrantClient
) -> None:
    kinds = models.PayloadSchemaType
    schemas: dict[str, Any] = {
        "project_id": models.KeywordIndexParams(
            type=models.KeywordIndexType.KEYWORD, is_tenant=True
        ),
        "document_id": kinds.KEYWORD,
        "chunk": kinds.INTEGER,
        "archive_id": kinds.KEYWORD,
        "tags": kinds.KEYWORD,
        "kind": kinds.INTEGER,
        "create_time": kinds.DATETIME,
    }
    cosine = models.VectorParams(size=DIM, distance=models.Distance.COSINE)
    create = peer.create_collection(
        GENERATION,
        vectors_config={"dense": cosine},
        sparse_vectors_config={"bm25": models.SparseVectorParams(modifier=models.Modifier.IDF)},
        hnsw_config=models.HnswConfigDiff(m=0, payload_m=16),
        shard_number=3,
        replication_factor=2,
        write_consistency_factor=2,
    )
    alias = models.CreateAliasOperation(
        create_alias=models.CreateAlias(collection_name=GENERATION, alias_name="things")
    )

    async def get_info() -> None:
        # Without the client's own method, which refuses the short reply of this server.
        info = collections.GetCollectionInfoRequest(collection_name=GENERATION)
        await peer._client.grpc_collections.Get(info)  # type: ignore[attr-defined]

    await assert_equal_requests(
        server,
        index.ensure(THINGS, "model", DIM),
        [
            peer.collection_exists(GENERATION),
            create,
            get_info(),
            *(peer.create_payload_index(GENERATION, *schema) for schema in schemas.items()),
            peer.get_aliases(),
            peer.update_collection_aliases([alias]),
        ],
    )


async def test_generations_are_managed_as_by_qdrants_client(
    server: RecordingServer, index: QdrantIndex, peer: AsyncQdrantClient
) -> None:
    delete = models.DeleteAliasOperation(delete_alias=models.DeleteAlias(alias_name="things"))
    create = models.CreateAliasOperation(
        create_alias=models.CreateAlias(collection_name=GENERATION, alias_name="things")
    )
    operations: list[tuple[Awaitable[object], list[Awaitable[object]]]] = [
        (index.serving(THINGS), [peer.get_aliases()]),
        (index.generations(THINGS), [peer.get_collections()]),
        (index.switch(THINGS, GENERATION), [peer.update_collection_aliases([delete, create])]),
        (index.drop(THINGS, GENERATION), [peer.get_aliases(), peer.delete_collection(GENERATION)]),
        (index.check(), [peer.get_aliases()]),
    ]
    for ours, theirs in operations:
        await assert_equal_requests(server, ours, theirs)


@ASYNC
@given(project=PROJECTS, documents=DOCUMENTS)
async def test_documents_are_stored_as_by_qdrants_client(
    server: RecordingServer,
    index: QdrantIndex,
    peer: AsyncQdrantClient,
    project: str,
    documents: list[IndexedDocument],
) -> None:
    expected = points_of(project, documents)
    await assert_equal_requests(
        server,
        index.upsert(THINGS, project, documents),
        [peer.upsert("things", expected, wait=True)] if expected else [],
    )


async def test_many_chunks_are_stored_in_requests_of_64(
    server: RecordingServer, index: QdrantIndex, peer: AsyncQdrantClient
) -> None:
    chunk = IndexedChunk([1.0, 0.0, 0.0, 0.0], SparseVector((1,), (0.5,)))
    documents = [IndexedDocument(f"d{number}", [chunk], {}) for number in range(130)]
    expected = points_of("p", documents)
    await assert_equal_requests(
        server,
        index.upsert(THINGS, "p", documents),
        [peer.upsert("things", expected[start : start + 64]) for start in (0, 64, 128)],
    )


async def test_surplus_chunks_are_deleted_as_by_qdrants_client(
    server: RecordingServer, index: QdrantIndex, peer: AsyncQdrantClient
) -> None:
    chunk = IndexedChunk([1.0, 0.0, 0.0, 0.0], SparseVector((), ()))
    documents = [IndexedDocument("a", [chunk], {}), IndexedDocument("b", [chunk] * 2, {})]

    def surplus(document: str, length: int) -> models.FilterSelector:
        beyond = models.FieldCondition(key="chunk", range=models.Range(gte=length))
        named = matches_any("document_id", [document])
        conditions = models.Filter(must=[matches("project_id", "p"), named, beyond])
        return models.FilterSelector(filter=conditions)

    await assert_equal_requests(
        server,
        index.upsert(THINGS, "p", documents, replace=True),
        [
            peer.upsert("things", points_of("p", documents)),
            peer.delete("things", surplus("a", 1), wait=True),
            peer.delete("things", surplus("b", 2), wait=True),
        ],
    )


@ASYNC
@given(project=PROJECTS, where=WHERES, dense=st.none() | DENSE, sparse=SPARSE)
async def test_searches_are_sent_as_by_qdrants_client(
    server: RecordingServer,
    index: QdrantIndex,
    peer: AsyncQdrantClient,
    project: str,
    where: Where,
    dense: list[float] | None,
    sparse: SparseVector,
) -> None:
    shared: dict[str, Any] = {
        "filter": filter_of(project, where),
        "limit": 75,
        "with_payload": ["archive_id", "chars", "create_time", "document_id", "place"],
    }
    arms = []
    if dense is not None:
        arms.append(models.QueryRequest(query=dense, using="dense", **shared))
    if sparse:
        corpus = models.IdfCorpusParams(corpus=models.Filter(must=[matches("project_id", project)]))
        params = models.SearchParams(idf=corpus)
        arms.append(
            models.QueryRequest(query=sparse_of(sparse), using="bm25", params=params, **shared)
        )
    reply = points.QueryBatchResponse(result=[points.BatchResult() for _ in arms])
    server.replies["QueryBatch"] = reply
    theirs: list[Awaitable[object]] = []
    if arms:
        theirs.append(peer.query_batch_points("things", arms))
    if sparse:
        size = filter_of(project, Where())
        theirs.append(peer.count("things", size, exact=False))
    index._corpora.clear()
    await assert_equal_requests(
        server,
        index.query(THINGS, project, dense=dense, sparse=sparse, where=where, limit=25),
        theirs,
    )


@ASYNC
@given(project=PROJECTS, where=WHERES, ids=st.lists(WORDS, min_size=1, max_size=3))
async def test_documents_are_counted_and_deleted_as_by_qdrants_client(
    server: RecordingServer,
    index: QdrantIndex,
    peer: AsyncQdrantClient,
    project: str,
    where: Where,
    ids: list[str],
) -> None:
    first_chunks = filter_of(project, where, matches("chunk", 0))
    named = filter_of(project, Where(), matches_any("document_id", ids))
    selected = filter_of(project, where)
    target = GENERATION
    operations: list[tuple[Awaitable[object], Awaitable[object]]] = [
        (
            index.count(THINGS, project, where, generation=target),
            peer.count(target, first_chunks, exact=True),
        ),
        (
            index.delete(THINGS, project, ids, generation=target),
            peer.delete(target, models.FilterSelector(filter=named), wait=True),
        ),
        (
            index.delete_where(THINGS, project, where, generation=target),
            peer.delete(target, models.FilterSelector(filter=selected), wait=True),
        ),
    ]
    for ours, theirs in operations:
        await assert_equal_requests(server, ours, [theirs])
