"""The contract of the vector index, on every target."""

from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qdrant_local_mode import LocalModeClient
from strata.protocol.errors import FailedPreconditionError, InternalError, Reason
from strata.shared.search.qdrant_wire import points
from strata.shared.search.vectors import (
    Collection,
    FieldKind,
    Hit,
    IndexedDocument,
    Preference,
    SparseVector,
    Where,
)
from strata.shared.search.vectors.client import QdrantClient
from strata.shared.search.vectors.qdrant import QdrantIndex

from .conftest import DIM, ENCODER, EPOCH, FIELDS, MODEL, document, vector

PROJECT = "project-a"
EAST = vector(1.0)


def names(hits: list[Hit]) -> list[str]:
    return [hit.document_id for hit in hits]


async def test_search_by_meaning_orders_by_cosine(
    index: QdrantIndex, collection: Collection
) -> None:
    documents = [document("far", (0, 1)), document("near", (2, 0.1)), document("mid", (1, 1))]
    await index.upsert(collection, PROJECT, documents)
    hits = await index.query(collection, PROJECT, dense=EAST)
    assert names(hits) == ["near", "mid", "far"]
    assert [hit.vector_rank for hit in hits] == [1, 2, 3]
    assert hits[1].vector_score == pytest.approx(0.7071, abs=1e-3)
    assert {hit.fts_rank for hit in hits} == {None}


async def test_search_by_words_finds_only_documents_with_a_word(
    index: QdrantIndex, collection: Collection
) -> None:
    documents = [
        document("peanuts", text="I am allergic to peanuts"),
        document("both", text="The allergy test showed peanuts and shrimps"),
        document("chess", text="We play chess on Sundays"),
    ]
    await index.upsert(collection, PROJECT, documents)
    hits = await index.query(collection, PROJECT, sparse=ENCODER.query("shrimp and peanut"))
    assert names(hits) == ["both", "peanuts"]
    assert [hit.fts_rank for hit in hits] == [1, 2]
    assert 1 > hits[0].score > hits[1].score > 0
    assert {hit.vector_rank for hit in hits} == {None}


async def test_hits_of_hybrid_search_have_both_ranks(
    index: QdrantIndex, collection: Collection
) -> None:
    documents = [
        document("meaning", (1, 0), "something else entirely"),
        document("words", (0.95, 0.3), "the zebra crossing"),
        document("neither", (0, 1), "nothing"),
    ]
    await index.upsert(collection, PROJECT, documents)
    hits = await index.query(collection, PROJECT, dense=EAST, sparse=ENCODER.query("zebra"))
    assert names(hits) == ["words", "meaning", "neither"]
    assert [(hit.vector_rank, hit.fts_rank) for hit in hits] == [(2, 1), (1, None), (3, None)]


async def test_preferences_raise_scores_and_exclude_no_document(
    index: QdrantIndex, collection: Collection
) -> None:
    documents = [
        document("near", (1, 0.1), archive_id="a", create_time=EPOCH),
        document("far", (1, 0.6), archive_id="b", create_time=EPOCH + timedelta(days=9)),
    ]
    await index.upsert(collection, PROJECT, documents)

    async def order(*prefer: Preference) -> list[tuple[str, float]]:
        hits = await index.query(collection, PROJECT, dense=EAST, prefer=prefer)
        return [(hit.document_id, hit.bonus) for hit in hits]

    week = EPOCH + timedelta(days=7)
    assert await order() == [("near", 0), ("far", 0)]
    assert await order(Preference(0.3, "archive_id", "b")) == [("far", 0.3), ("near", 0)]
    assert await order(Preference(0.3, "create_time", since=week)) == [("far", 0.3), ("near", 0)]
    assert await order(Preference(0.3, "create_time", until=week)) == [("near", 0.3), ("far", 0)]
    both = (Preference(0.25, "archive_id", "b"), Preference(0.5, "create_time", since=week))
    assert await order(*both) == [("far", 0.75), ("near", 0)]
    assert await order(Preference(0.3, "archive_id", "c")) == [("near", 0), ("far", 0)]


async def test_documents_of_many_chunks_do_not_hide_others(
    index: QdrantIndex, client: QdrantClient
) -> None:
    deep = Collection(f"test-{uuid4().hex[:12]}", FIELDS, depth=80)
    await index.ensure(deep, MODEL, DIM)
    chunks = [((1.0, 0.01), "word")] * 35
    documents = [document(name, (1,), "word", chunks) for name in ("long-1", "long-2")]
    await index.upsert(deep, PROJECT, [*documents, document("short", (1, 0.5), "word")])
    hits = names(await index.query(deep, PROJECT, dense=EAST, limit=3))
    assert sorted(hits) == ["long-1", "long-2", "short"]
    for generation in await index.generations(deep):
        await client.delete_collection(generation)


async def test_a_query_of_stop_words_is_answered_by_meaning_alone(
    index: QdrantIndex, collection: Collection
) -> None:
    await index.upsert(collection, PROJECT, [document("a", (1,), "who are you")])
    stop_words = ENCODER.query("who are you")
    assert not stop_words
    assert names(await index.query(collection, PROJECT, dense=EAST, sparse=stop_words)) == ["a"]
    assert await index.query(collection, PROJECT, sparse=stop_words) == []


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("寿司", "私は寿司が好きです"),
        ("好", "我喜欢吃北京烤鸭。也好喝茶"),
        ("北京烤鸭", "我喜欢吃北京烤鸭"),
        ("김치", "나는 김치를 좋아한다"),
        ("ข้าวผัด", "ฉันชอบกินข้าวผัด"),
        ("ｽｼ", "スシを食べた"),
        ("cafe", "Das Café am Markt"),
        ("E-1042", "error e-1042 occurred"),
        ("3.5", "it costs 3.5 dollars"),
    ],
)
async def test_words_are_found_in_any_script(
    index: QdrantIndex, collection: Collection, query: str, text: str
) -> None:
    documents = [document("right", text=text), document("wrong", text="ぶんぽう 文法 문법 grammar")]
    await index.upsert(collection, PROJECT, documents)
    assert names(await index.query(collection, PROJECT, sparse=ENCODER.query(query))) == ["right"]


WHERES = [
    (Where(eq={"archive_id": "archive-1"}), {"a", "b"}),
    (Where(eq={"kind": 2}), {"b"}),
    (Where(any_of={"archive_id": ["archive-2", "archive-3"]}), {"c"}),
    (Where(any_of={"kind": [1, 2]}), {"a", "b"}),
    (Where(any_of={"tags": ["red", "blue"]}), {"a", "b"}),
    (Where(any_of={"tags": []}), set()),
    (Where(all_of={"tags": ["red", "green"]}), {"a"}),
    (Where(all_of={"tags": []}), {"a", "b", "c"}),
    (Where(none_of={"tags": ["red"]}), {"b", "c"}),
    (Where(none_of={"tags": ["red", "blue"], "archive_id": []}), {"c"}),
    (Where(since=EPOCH + timedelta(days=1)), {"b", "c"}),
    (Where(until=EPOCH + timedelta(days=1)), {"a", "b"}),
    (Where(since=EPOCH + timedelta(days=1), until=EPOCH + timedelta(days=1)), {"b"}),
    (Where(until=EPOCH + timedelta(days=1) - timedelta(microseconds=1)), {"a"}),
    (Where(any_of={"document_id": ["c", "x"]}), {"c"}),
    (Where(eq={"archive_id": "archive-1"}, none_of={"tags": ["green"]}), {"b"}),
]


@pytest.mark.parametrize(("where", "expected"), WHERES, ids=range(len(WHERES)))
async def test_conditions_filter_searches_and_counts(
    index: QdrantIndex, collection: Collection, where: Where, expected: set[str]
) -> None:
    await index.upsert(collection, PROJECT, three_documents())
    query = ENCODER.query("word")
    for hits in (
        await index.query(collection, PROJECT, dense=EAST, where=where),
        await index.query(collection, PROJECT, sparse=query, where=where),
        await index.query(collection, PROJECT, dense=EAST, sparse=query, where=where),
    ):
        assert set(names(hits)) == expected
    assert await index.count(collection, PROJECT, where) == len(expected)


@pytest.mark.parametrize(("where", "expected"), WHERES, ids=range(len(WHERES)))
async def test_delete_where_removes_matching_points(
    index: QdrantIndex, collection: Collection, where: Where, expected: set[str]
) -> None:
    await index.upsert(collection, PROJECT, three_documents())
    await index.delete_where(collection, PROJECT, where)
    left = await index.query(collection, PROJECT, dense=EAST)
    assert set(names(left)) == {"a", "b", "c"} - expected


def three_documents() -> list[IndexedDocument]:
    days = [EPOCH + timedelta(days=number) for number in range(3)]
    one, two = "archive-1", "archive-2"
    return [
        document(
            "a", text="word", archive_id=one, create_time=days[0], tags=["red", "green"], kind=1
        ),
        document("b", text="word", archive_id=one, create_time=days[1], tags=["blue"], kind=2),
        document("c", text="word", archive_id=two, create_time=days[2]),
    ]


async def test_the_limit_counts_results_that_meet_the_conditions(
    index: QdrantIndex, collection: Collection
) -> None:
    near = [document(f"near{number}", (1,), tags=["no"]) for number in range(150)]
    far = [document(f"far{number}", (1, 1), tags=["yes"]) for number in range(5)]
    await index.upsert(collection, PROJECT, near + far)
    where = Where(any_of={"tags": ["yes"]})
    hits = await index.query(collection, PROJECT, dense=EAST, where=where, limit=3)
    assert names(hits) == ["far0", "far1", "far2"]
    assert len(await index.query(collection, PROJECT, dense=EAST, limit=120)) == 120
    assert await index.query(collection, PROJECT, dense=EAST, limit=0) == []


async def test_a_document_is_found_once_by_its_best_chunk(
    index: QdrantIndex, collection: Collection
) -> None:
    long = document("long", (0, 1), "intro", more=[((0.5, 0.5), "middle"), ((1,), "zebra end")])
    await index.upsert(collection, PROJECT, [long, document("short", (1, 0.2), "zebra")])
    hits = await index.query(collection, PROJECT, dense=EAST, sparse=ENCODER.query("zebra"))
    assert sorted(names(hits)) == ["long", "short"]
    best = next(hit.vector_score for hit in hits if hit.document_id == "long")
    assert best == pytest.approx(1.0, abs=0.01)
    assert await index.count(collection, PROJECT) == 2


async def test_upsert_replaces_all_chunks_of_a_document(
    index: QdrantIndex, collection: Collection
) -> None:
    long = document("a", (0, 1), "old", more=[((1,), "older"), ((1,), "oldest")], tags=["x"])
    other = document("b", (0, 1), "old", more=[((1,), "older")])
    await index.upsert(collection, PROJECT, [long, other])
    new = [document("a", (0, 1), "new", tags=["y"]), replace(other)]
    await index.upsert(collection, PROJECT, new, replace=True)
    words = ENCODER.query("oldest older")
    assert names(await index.query(collection, PROJECT, sparse=words)) == ["b"]
    hits = await index.query(collection, PROJECT, dense=EAST)
    scores = {hit.document_id: hit.vector_score for hit in hits}
    assert scores == {"a": pytest.approx(0.0, abs=0.01), "b": pytest.approx(1.0, abs=0.01)}
    assert await index.count(collection, PROJECT, Where(any_of={"tags": ["x"]})) == 0


async def test_writes_can_be_repeated(index: QdrantIndex, collection: Collection) -> None:
    for _ in range(3):
        await index.upsert(collection, PROJECT, [document("a"), document("b")])
    assert await index.count(collection, PROJECT) == 2
    for _ in range(2):
        await index.delete(collection, PROJECT, ["a", "unknown"])
    assert names(await index.query(collection, PROJECT, dense=EAST)) == ["b"]
    await index.upsert(collection, PROJECT, [])
    await index.delete(collection, PROJECT, [])
    assert await index.count(collection, PROJECT) == 1


async def test_many_documents_are_written_in_batches(
    index: QdrantIndex, collection: Collection
) -> None:
    documents = [document(f"d{number:04}", (1, number / 1000)) for number in range(700)]
    await index.upsert(collection, PROJECT, documents)
    assert await index.count(collection, PROJECT) == 700
    await index.delete(collection, PROJECT, [one.id for one in documents[:600]])
    assert await index.count(collection, PROJECT) == 100


async def test_equal_scores_are_ordered_by_id(index: QdrantIndex, collection: Collection) -> None:
    documents = [document(f"d{number}", text="same") for number in (3, 1, 2, 0)]
    await index.upsert(collection, PROJECT, documents)
    query = ENCODER.query("same")
    hits = await index.query(collection, PROJECT, dense=EAST, sparse=query)
    assert names(hits) == ["d0", "d1", "d2", "d3"]


async def test_ensure_can_be_repeated(index: QdrantIndex, collection: Collection) -> None:
    await index.upsert(collection, PROJECT, [document("a")])
    generation = await index.ensure(collection, MODEL, DIM)
    assert generation == f"{collection.name}__{MODEL}__v1"
    assert await index.serving(collection) == generation
    assert await index.generations(collection) == [generation]
    assert await index.count(collection, PROJECT) == 1


async def test_an_unchanged_collection_is_not_written(
    index: QdrantIndex, collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isinstance(index._client, LocalModeClient):
        pytest.skip("Qdrant's local mode has no indexes of fields")
    created: list[str] = []
    create = QdrantClient.create_field_index

    async def counted(client: QdrantClient, request: points.CreateFieldIndexCollection) -> None:
        created.append(request.field_name)
        await create(client, request)

    monkeypatch.setattr(QdrantClient, "create_field_index", counted)
    await index.ensure(collection, MODEL, DIM)
    assert created == []
    kinds = {"kind": FieldKind.KEYWORD, "region": FieldKind.KEYWORD}
    await index.ensure(replace(collection, fields={**FIELDS, **kinds}), MODEL, DIM)
    assert sorted(created) == ["kind", "region"], "another type, and a new field"


async def test_another_dimension_is_refused(index: QdrantIndex, collection: Collection) -> None:
    with pytest.raises(FailedPreconditionError, match="4 dimensions, not 5") as caught:
        await index.ensure(collection, MODEL, 5)
    assert caught.value.reason is Reason.MODEL_NOT_CONFIGURED


async def test_a_new_generation_is_filled_while_the_old_one_serves_until_the_switch(
    index: QdrantIndex, collection: Collection
) -> None:
    old = await index.serving(collection)
    assert old is not None
    await index.upsert(collection, PROJECT, [document("a")])
    new = await index.ensure(collection, "Other/Model", 2)
    assert await index.serving(collection) == old
    small = replace(document("a"), chunks=[replace(document("a").chunks[0], dense=[0.0, 1.0])])
    await index.upsert(collection, PROJECT, [small], generation=new)
    hits = await index.query(collection, PROJECT, dense=[0.0, 1.0], generation=new)
    assert names(hits) == ["a"]
    await index.switch(collection, new)
    assert names(await index.query(collection, PROJECT, dense=[0.0, 1.0])) == ["a"]
    with pytest.raises(FailedPreconditionError, match="serves") as caught:
        await index.drop(collection, new)
    assert caught.value.reason is Reason.IN_USE
    assert await index.generations(collection) == sorted([old, new])
    await index.drop(collection, old)
    await index.drop(collection, old)
    assert await index.generations(collection) == [new]


async def test_one_model_can_have_several_generations(
    index: QdrantIndex, collection: Collection
) -> None:
    first = await index.serving(collection)
    second = await index.ensure(collection, MODEL, DIM, generation=f"{first}-r1")
    assert await index.serving(collection) == first
    await index.upsert(collection, PROJECT, [document("a")], generation=second)
    assert await index.count(collection, PROJECT) == 0
    assert await index.count(collection, PROJECT, generation=second) == 1
    with pytest.raises(InternalError):
        await index.ensure(collection, MODEL, DIM, generation="another__model__v1")


async def test_the_cosine_of_unrelated_texts_scores_zero(
    index: QdrantIndex, collection: Collection
) -> None:
    await index.upsert(collection, PROJECT, [document("a", (1.0,)), document("b", (0.8, 0.6))])
    hits = await index.query(collection, PROJECT, dense=EAST, unrelated=0.8)
    assert [(hit.document_id, round(hit.score, 3)) for hit in hits] == [("a", 1.0), ("b", 0.0)]


async def test_invalid_arguments_of_the_code_raise_internal_error(
    index: QdrantIndex, collection: Collection
) -> None:
    naive = EPOCH.replace(tzinfo=None)
    for where in (
        Where(eq={"unknown": "x"}),
        Where(since=naive),
        Where(eq={"project_id": "project-b"}),
        Where(eq={"kind": True}),
        Where(any_of={"kind": ["x", 1]}),
    ):
        with pytest.raises(InternalError):
            await index.query(collection, PROJECT, dense=EAST, where=where)
    for broken in (
        document("a", unknown="x"),
        document("a", project_id="project-b"),
        document("a", create_time=naive),
        document("a", kind=True),
        IndexedDocument("a", [], {}),
    ):
        with pytest.raises(InternalError):
            await index.upsert(collection, PROJECT, [broken])
    with pytest.raises(InternalError):
        await index.query(collection, PROJECT)
    with pytest.raises(InternalError):
        await index.switch(collection, "other__model__v1")
    assert await index.count(collection, PROJECT) == 0


TAGS = st.lists(st.sampled_from("rgb"), unique=True, max_size=3)
DAYS = st.integers(0, 4)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    stored=st.lists(st.tuples(TAGS, DAYS), min_size=1, max_size=8),
    any_of=TAGS,
    all_of=TAGS,
    none_of=TAGS,
    days=st.tuples(st.none() | DAYS, st.none() | DAYS),
)
async def test_conditions_select_the_matching_documents(
    index: QdrantIndex,
    collection: Collection,
    stored: list[tuple[list[str], int]],
    any_of: list[str],
    all_of: list[str],
    none_of: list[str],
    days: tuple[int | None, int | None],
) -> None:
    await index.delete_where(collection, PROJECT, Where())
    documents = [
        document(f"d{place}", tags=tags, create_time=EPOCH + timedelta(days=day))
        for place, (tags, day) in enumerate(stored)
    ]
    await index.upsert(collection, PROJECT, documents)
    since, until = (None if day is None else EPOCH + timedelta(days=day) for day in days)
    where = Where(
        any_of={"tags": any_of} if any_of else {},
        all_of={"tags": all_of},
        none_of={"tags": none_of},
        since=since,
        until=until,
    )
    expected = {
        f"d{place}"
        for place, (tags, day) in enumerate(stored)
        if (not any_of or set(any_of) & set(tags))
        and set(all_of) <= set(tags)
        and not set(none_of) & set(tags)
        and (days[0] is None or day >= days[0])
        and (days[1] is None or day <= days[1])
    }
    hits = await index.query(collection, PROJECT, dense=EAST, where=where)
    assert set(names(hits)) == expected
    assert await index.count(collection, PROJECT, where) == len(expected)


def test_sparse_vector_is_false_without_terms() -> None:
    assert not SparseVector((), ())
    assert SparseVector((1,), (0.5,))
