"""Every request on documents contains its project, and no project sees another."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qdrant_local_mode import LocalModeClient
from qdrant_requests import RecordingClient, projects_of
from security_examples import security_examples
from strata.protocol.errors import InternalError, Reason
from strata.shared.search.vectors import Collection, SparseVector, Where
from strata.shared.search.vectors.points import point_id
from strata.shared.search.vectors.qdrant import QdrantIndex

from .conftest import DIM, ENCODER, EPOCH, FIELDS, MODEL, document, vector

EAST = vector(1.0)
VALUES = st.lists(st.text(max_size=3), max_size=3)
CONDITIONS = st.dictionaries(st.sampled_from(["archive_id", "tags"]), VALUES, max_size=2)
WHERES = st.builds(
    Where,
    eq=st.dictionaries(st.sampled_from(["archive_id", "tags"]), st.text(max_size=3), max_size=2),
    any_of=CONDITIONS,
    all_of=CONDITIONS,
    none_of=CONDITIONS,
    since=st.none() | st.just(EPOCH),
    until=st.none() | st.just(EPOCH),
)
CHUNKS = st.integers(0, 3)
PROJECTS = st.text(min_size=1, max_size=12).filter(str.strip)


@settings(max_examples=60, deadline=None)
@given(project=PROJECTS, where=WHERES, both=st.booleans(), ids=VALUES, replace=st.booleans())
async def test_every_request_contains_the_project(
    project: str, where: Where, both: bool, ids: list[str], replace: bool
) -> None:
    client = RecordingClient(LocalModeClient())
    index = QdrantIndex(client)
    collection = Collection("things", FIELDS)
    sparse = SparseVector((1, 2), (1.0, 1.0)) if both else None
    await index.ensure(collection, MODEL, DIM)
    await index.upsert(collection, project, [document("a", tags=["x"])], replace=replace)
    await index.query(collection, project, dense=EAST, sparse=sparse, where=where)
    await index.count(collection, project, where)
    await index.delete(collection, project, ids)
    await index.delete_where(collection, project, where)
    await index.close()
    assert len(client.on_documents) >= 1
    for request in client.on_documents:
        assert projects_of(request) == {project}


@pytest.mark.parametrize("project", ["", "  "])
async def test_without_a_project_nothing_is_sent(
    index: QdrantIndex, collection: Collection, project: str
) -> None:
    attempts = [
        index.query(collection, project, dense=EAST),
        index.upsert(collection, project, [document("a")]),
        index.upsert(collection, project, []),
        index.delete(collection, project, ["a"]),
        index.delete_where(collection, project, Where()),
        index.count(collection, project),
    ]
    for attempt in attempts:
        with pytest.raises(InternalError) as caught:
            await attempt
        assert caught.value.reason is Reason.TENANT_MISSING


async def test_equal_document_ids_of_projects_are_separate(
    index: QdrantIndex, collection: Collection
) -> None:
    for project, tag in (("one", "mine"), ("two", "theirs")):
        documents = [document("a", text="secret", tags=[tag]), document("b", tags=[tag])]
        await index.upsert(collection, project, documents)

    async def seen(project: str) -> tuple[int, int, int]:
        hits = await index.query(
            collection, project, dense=EAST, sparse=ENCODER.query("secret"), limit=50
        )
        mine = await index.count(collection, project, Where(any_of={"tags": ["mine"]}))
        return len(hits), await index.count(collection, project), mine

    assert await seen("one") == (2, 2, 2)
    assert await seen("two") == (2, 2, 0)
    assert await seen("three") == (0, 0, 0)
    await index.delete(collection, "two", ["a"])
    assert await seen("one") == (2, 2, 2)
    await index.upsert(collection, "two", [document("b")], replace=True)
    await index.delete_where(collection, "two", Where())
    assert await seen("one") == (2, 2, 2)
    assert await seen("two") == (0, 0, 0)


async def test_scores_do_not_depend_on_words_of_other_projects(
    index: QdrantIndex, collection: Collection
) -> None:
    mine = [document("a", text="merger talks"), document("b", text="lunch menu")]
    await index.upsert(collection, "one", mine)
    before = await index.query(collection, "one", sparse=ENCODER.query("merger lunch"))
    others = [document(f"o{number}", text="merger") for number in range(30)]
    await index.upsert(collection, "two", others)
    after = await index.query(collection, "one", sparse=ENCODER.query("merger lunch"))
    assert [hit.fts_score for hit in after] == pytest.approx([hit.fts_score for hit in before])


@security_examples
@given(
    st.tuples(PROJECTS, PROJECTS),
    st.tuples(st.text(), st.text()),
    st.tuples(CHUNKS, CHUNKS),
)
def test_points_of_two_documents_never_have_one_id(
    projects: tuple[str, str], documents: tuple[str, str], chunks: tuple[int, int]
) -> None:
    left = (projects[0].replace("\0", ""), documents[0].replace("\0", ""), chunks[0])
    right = (projects[1].replace("\0", ""), documents[1].replace("\0", ""), chunks[1])
    assert (point_id(*left) == point_id(*right)) == (left == right)
