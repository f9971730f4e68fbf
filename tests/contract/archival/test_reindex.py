"""An index is rebuilt, with another model too, while it serves."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from archival_reindexing import MORE, SUBJECTS, TEXTS, World
from archival_support import NOW, Stores, new_passage
from contract.search.embedding.conftest import Reply
from other_models import NOISE, WORDS, answer, endpoints, serve
from strata.api.common.v1 import search_pb2 as pb
from strata.archival.convert.archives import new_archive
from strata.archival.domain.history import Author, PassageChange
from strata.archival.domain.passages import ArchiveRef
from strata.archival.domain.search import Search
from strata.archival.search.index import ARCHIVE_PASSAGES, FILE_CHUNKS, PASSAGES
from strata.archival.search.indexes import wire
from strata.archival.settings import ArchivalSettings
from strata.protocol.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
)
from strata.shared.idempotency.keys import RequestKey
from strata.shared.ids import new_id
from strata.shared.search import engines
from strata.shared.search.embedding import Embedder, EmbeddingModels
from strata.shared.search.embedding.base import LOCAL_MODEL
from strata.shared.search.engines import open_models
from strata.shared.search.fusion import FusionConfig
from strata.shared.search.reindexing.routes import StoredRoutes
from strata.shared.search.reindexing.state import ReindexConfig
from strata.shared.search.vectors import Where
from strata.shared.search.vectors.qdrant import QdrantConfig, QdrantIndex, connect
from strata.shared.shared_resources import SharedResources
from strata.standalone.vectors import EmbeddedVectors


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def engine(session_folder: Path) -> AsyncIterator[EmbeddedVectors]:
    """An engine of these tests alone: they drop what others ask."""
    made = EmbeddedVectors(session_folder / "vectors-to-rebuild")
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def world(
    stores: Stores,
    embedder: Embedder,
    engine: EmbeddedVectors,
    project: str,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[World]:
    endpoint = await serve()
    client = connect(engine.url, engine.api_key)
    for collection in (await client.get_collections()).collections:
        await client.delete_collection(collection.name)
    # Texts of a model of few words have little to do with any question.
    vectors = QdrantIndex(client, QdrantConfig(fusion=FusionConfig(floor=0)))
    settings = ArchivalSettings(
        database_url="postgresql://unused",
        embedding_models=endpoints(endpoint.base_url),
    )
    monkeypatch.setattr(engines, "EMBEDDING_RETRIES", 0)
    reindex = ReindexConfig(settings.reindex_grace_s, batch=3, sample=5)
    async with AsyncExitStack() as stack:
        opened = await open_models(settings, SharedResources(), stack)
        indexes = await wire(
            settings, opened, vectors, stores.database, stores.worker, reindex=reindex
        )
        made = World(stores, settings, reindex, opened, vectors, indexes, endpoint, project)
        for backlog in indexes.indexer._backlogs:
            await backlog.ensure()
        yield made
    await vectors.close()
    await endpoint.stop()


async def test_the_model_is_changed_while_searches_go_on(world: World) -> None:
    ids = await world.insert(*TEXTS)
    await world.index_all()
    admin = world.indexes.admin
    [old] = await world.generations()
    begun = await admin.start("passages", WORDS, "request-1")
    assert (await admin.start("passages", WORDS, "request-1")).id == begun.id
    assert (begun.total, begun.old_model, begun.new_model) == (len(TEXTS), LOCAL_MODEL, WORDS)
    steps = 0
    while await world.step():
        steps += 1
        if steps == 2:
            # Before the cursor and after it: what changes is written in both places.
            history, author = world.stores.history, Author("key")
            await world.insert("A heron stands in the reeds.")
            changed = PassageChange(author, text=None, tags=("kept",))
            await history.update(ids[0], changed, NOW)
            await history.delete(ids[1], author, NOW)
            await history.delete(ids[7], author, NOW)
            await world.index_all()
        assert TEXTS[2] in await world.find("glacier")
    state = await admin.state("passages")
    assert state.reindex.phase == pb.REINDEX_PHASE_SWITCHED
    assert (state.embedding_model, state.embedding_dim, state.waiting) == (WORDS, 256, 0)
    assert 0 < state.reindex.checked == state.reindex.found_by_new <= 5
    assert steps >= len(TEXTS) / 3 + 2
    # Questions are embedded with the new model now, and both collections hold the same.
    before = len(world.endpoint.requests)
    assert (await world.find("who has the telescope"))[0] == TEXTS[4]
    assert world.endpoint.requests[before]["input"] == ["who has the telescope"]
    assert (await world.find("heron"))[0] == "A heron stands in the reeds."
    assert await world.find("otter", tags=("kept",)) == [TEXTS[0]]
    assert TEXTS[1] not in await world.find("violin", limit=20)
    new = state.generation
    assert await world.generations() == sorted([old, new])
    assert await world.vectors.serving(PASSAGES) == new
    assert await world.held(old) == await world.held(new) == len(TEXTS) - 1
    await world.insert("Both are written until the end.")
    await world.index_all()
    assert await world.held(old) == await world.held(new) == len(TEXTS)
    assert (await admin.finish("passages")).phase == pb.REINDEX_PHASE_FINISHED
    await world.reindex()
    assert await world.generations() == [new]
    assert await world.vectors.serving(PASSAGES) == new
    # An archive that follows the default says which model that is now.
    [archive] = (await world.stores.archives.page(world.agent, 5, None)).archives
    assert (archive.embedding_model, archive.embedding_dim) == (WORDS, 256)


async def test_rebuild_can_be_rolled_back_until_it_is_finished(world: World) -> None:
    await world.insert(*TEXTS)
    await world.index_all()
    [old] = await world.generations()
    admin = world.indexes.admin
    await admin.start("passages", WORDS, "")
    assert (await world.reindex()).phase == pb.REINDEX_PHASE_SWITCHED
    await world.insert("Said while the new one served.")
    await world.index_all()
    reader = await world.again()
    assert (await reader.find("glacier"))[0] == TEXTS[2]
    routes = reader.indexes.passages.texts.routes
    assert isinstance(routes, StoredRoutes)
    routes._until = math.inf
    assert (await admin.roll_back("passages")).phase == pb.REINDEX_PHASE_ROLLED_BACK
    assert (await admin.roll_back("passages")).phase == pb.REINDEX_PHASE_ROLLED_BACK
    await world.reindex()
    assert await world.generations() == [old]
    # This reader still believes in the new one, which is gone.
    assert (await routes.serving()).generation != old
    assert (await reader.find("Said while the new one served"))[0].startswith("Said while")
    assert (await admin.state("passages")).embedding_model == LOCAL_MODEL
    with pytest.raises(FailedPreconditionError):
        await admin.finish("passages")


async def test_a_model_that_finds_nothing_does_not_get_to_serve(world: World) -> None:
    await world.insert(*TEXTS, *(f"{text} Again, in other words." for text in TEXTS))
    await world.index_all()
    [old] = await world.generations()
    # Every text is asked for: of a few, chance may find all.
    asked = 2 * len(TEXTS)
    thorough = await world.again(sample=asked)
    await thorough.indexes.admin.start("passages", NOISE, "")
    job = await thorough.reindex()
    assert job.phase == pb.REINDEX_PHASE_FAILED
    assert job.checked == job.found_by_old == asked
    assert job.found_by_new < asked
    assert f"the new index found {job.found_by_new}, the serving one {asked}" in job.note
    assert await world.generations() == [old]
    assert (await world.indexes.admin.state("passages")).embedding_model == LOCAL_MODEL
    assert (await world.find("glacier"))[0].startswith(TEXTS[2])


async def test_rebuild_fails_if_the_model_refuses_the_key(world: World) -> None:
    await world.insert(*TEXTS)
    await world.index_all()
    world.endpoint.script = lambda request: Reply(status=401, body={"error": {"message": "no"}})
    await world.indexes.admin.start("passages", WORDS, "")
    job = await world.reindex()
    assert (job.phase, "refuses the key" in job.note) == (pb.REINDEX_PHASE_FAILED, True)
    assert (await world.find("otter"))[0] == TEXTS[0]


async def test_rebuild_waits_for_an_unavailable_model(world: World) -> None:
    await world.insert(*TEXTS)
    await world.index_all()
    world.endpoint.script = lambda request: Reply(status=503, body={"error": {"message": "no"}})
    await world.indexes.admin.start("passages", WORDS, "")
    assert (await world.reindex()).phase == pb.REINDEX_PHASE_BUILDING
    world.endpoint.script = answer
    # Another replica has had no trouble, and does not wait.
    assert (await (await world.again()).reindex()).phase == pb.REINDEX_PHASE_SWITCHED


async def test_another_replica_goes_on_where_one_died(world: World) -> None:
    await world.insert(*TEXTS)
    await world.index_all()
    await world.indexes.admin.start("passages", WORDS, "")
    for _ in range(2):
        assert await world.step()
    assert (await world.indexes.admin.state("passages")).reindex.done == 6
    other = await world.again()
    before = len(world.endpoint.requests)
    job = await other.reindex()
    assert (job.phase, job.done) == (pb.REINDEX_PHASE_SWITCHED, len(TEXTS))
    sent = [text for one in world.endpoint.requests[before:] for text in one["input"]]
    assert not set(TEXTS[:6]) & set(sent), "what was copied is copied again"


async def test_claimed_rebuild_is_not_run_by_other_replicas(world: World) -> None:
    await world.insert(*TEXTS)
    await world.indexes.admin.start("passages", WORDS, "")
    ledger = world.indexes.admin._ledger
    assert ledger is not None
    async with ledger.claim(["passages"], 0) as job:
        assert job is not None
        assert not await world.step()
    assert await world.step()


async def test_a_copy_does_not_bring_back_what_was_changed_meanwhile(world: World) -> None:
    [first, second, _] = await world.insert(*TEXTS[:3])
    await world.index_all()
    await world.indexes.admin.start("passages", WORDS, "")
    ledger = world.indexes.admin._ledger
    assert ledger is not None
    whole = world.indexes.admin._indexes["passages"].rebuild
    async with ledger.claim(["passages"], 0) as job:
        assert job is not None
        target = whole.place(job.target)
        await target.make(job.target)
        batch = await whole.batch(job, 10)
        assert batch is not None
        history, author = world.stores.history, Author("key")
        text = new_passage("A walrus sleeps on the ice.").content
        await history.update(first, PassageChange(author, text=text), NOW)
        await history.delete(second, author, NOW)
        await world.index_all()
        # Only now the batch arrives, as of before.
        await target.put(batch.project_id, batch.entries, replace=True, into=[job.target])
        await whole.settle(job, batch)
    assert await world.held(job.target.generation) == 2
    await world.index_all()
    assert (await world.reindex()).phase == pb.REINDEX_PHASE_SWITCHED
    assert (await world.find("walrus"))[0] == "A walrus sleeps on the ice."
    hits = await world.indexes.passages.texts.search(
        world.project, "The otter number 0", Where(), 5, words=False
    )
    assert sorted(hit.document_id for hit in hits if (hit.vector_score or 0) > 0.9) == []


async def test_a_lost_collection_is_filled_from_the_start(world: World) -> None:
    await world.insert(*TEXTS)
    await world.index_all()
    await world.indexes.admin.start("passages", WORDS, "")
    await world.step()
    await world.step()
    [target] = [name for name in await world.generations() if "words" in name]
    await world.vectors._client.delete_collection(target)
    assert (await world.reindex()).phase == pb.REINDEX_PHASE_SWITCHED
    assert await world.held(target) == len(TEXTS)


async def test_only_one_rebuild_is_open(world: World) -> None:
    await world.insert(*TEXTS)
    admin = world.indexes.admin
    await admin.start("passages", WORDS, "")
    with pytest.raises(FailedPreconditionError):
        await admin.start("passages", NOISE, "")
    assert (await admin.roll_back("passages")).phase == pb.REINDEX_PHASE_CANCELLED
    await world.reindex()
    again = await admin.start("passages", WORDS, "")
    await world.index_all()
    assert (await world.reindex()).id == again.id


async def test_rebuild_is_finished_after_the_grace_period(world: World) -> None:
    await world.insert(*TEXTS)
    await world.index_all()
    hasty = await world.again(grace=0.0)
    await hasty.indexes.admin.start("passages", "", "")
    job = await hasty.reindex()
    # Without a model's name it is the same model, in a collection of its own.
    assert (job.phase, job.new_model) == (pb.REINDEX_PHASE_FINISHED, LOCAL_MODEL)
    assert [name.endswith("-r1") for name in await world.generations()] == [True]
    assert (await hasty.find("otter"))[0] == TEXTS[0]


async def test_invalid_rebuild_requests_are_refused(world: World) -> None:
    admin = world.indexes.admin
    with pytest.raises(InvalidArgumentError, match=f"there are .*{LOCAL_MODEL}.*{WORDS}"):
        await admin.start("passages", "no-such-model", "")
    with pytest.raises(InvalidArgumentError):
        await admin.state("messages")
    with pytest.raises(NotFoundError):
        await admin.finish("passages")
    shut = await world.again_with_settings(reindex_by_key=False)
    with pytest.raises(PermissionDeniedError):
        await shut.indexes.admin.start("passages", "", "")


async def test_chunks_of_files_are_rebuilt(world: World) -> None:
    folder, files = new_id("folder"), [new_id("file") for _ in range(3)]
    for number, file in enumerate(files):
        texts = [f"Page {page} of book {number}: {SUBJECTS[page]}." for page in range(5)]
        await world.stores.index_file(folder, file, *texts)
    await world.index_all()
    await world.indexes.admin.start("files", WORDS, "")
    await world.step()
    await world.step()
    # One file is cut anew while it is copied.
    await world.stores.index_file(folder, files[0], "Only a walrus is left.")
    await world.index_all()
    job = await world.reindex("files")
    assert (job.phase, job.total) == (pb.REINDEX_PHASE_SWITCHED, 15)
    state = await world.indexes.admin.state("files")
    result = await world.file_search.search([folder], "walrus", 3)
    assert result.hits[0].stored.chunk.text == "Only a walrus is left."
    await world.index_all()
    assert await world.held(state.generation, FILE_CHUNKS) == 11


async def test_an_archive_has_a_model_of_its_own(world: World) -> None:
    stores = world.stores
    await world.insert(*TEXTS)
    words = world.models.known(WORDS)
    archive = await stores.archives.create(
        new_archive("shared", words.id, words.dim, NOW, own_model=words.id),
        world.agent,
        RequestKey(),
    )
    more = [new_passage("A walrus sleeps on the ice."), new_passage("A narwhal dives below it.")]
    await stores.passages.insert(ArchiveRef(archive_id=archive.id), more, archive, "")
    await world.index_all()
    own = world.indexes.passages.generation_of(WORDS).generation
    assert await world.held(own, ARCHIVE_PASSAGES) == 2
    assert await world.held(PASSAGES.generation(LOCAL_MODEL)) == len(TEXTS)
    assert (await world.find("narwhal"))[0] == "A narwhal dives below it."
    assert (await world.find("telescope"))[0] == TEXTS[4]
    # Both were asked, each with its own vector, and found by meaning.
    answer = await world.search.search(Search("walrus ice", 20, agent_id=world.agent))
    ranks = {hit.item.text: hit.vector_rank for hit in answer.hits}
    assert ranks["A walrus sleeps on the ice."] == 1
    assert len(ranks) == len(TEXTS) + 2
    before = len(world.endpoint.requests)
    alone = Search("bicycle of aunt", 3, archive_ids=(archive.id,))
    assert len((await world.search.search(alone)).hits) == 2
    assert len(world.endpoint.requests) == before + 1
    # What is deleted goes from there, too.
    assert await stores.archives.delete(archive.id) == 2
    await world.index_all()
    assert await world.held(own, ARCHIVE_PASSAGES) == 0


async def test_archives_of_several_models_make_one_ranking(world: World) -> None:
    await world.insert(*TEXTS)
    words = world.models.known(WORDS)
    archive = await world.stores.archives.create(
        new_archive("shared", words.id, words.dim, NOW, own_model=words.id),
        world.agent,
        RequestKey(),
    )
    more = [new_passage(text) for text in MORE]
    await world.stores.passages.insert(ArchiveRef(archive_id=archive.id), more, archive, "")
    await world.index_all()
    for query in ("walrus ice", "who has the telescope", "the aunt's bicycle", "zzz"):
        search = Search(query, 50, agent_id=world.agent)
        hits = (await world.search.search(search)).hits
        assert len(hits) == len(TEXTS) + len(MORE)
        ranks = [hit.vector_rank for hit in hits]
        assert sorted(ranks) == list(range(1, len(hits) + 1)), query  # type: ignore[type-var]
        by_words = [hit.fts_rank for hit in hits if hit.fts_rank is not None]
        assert sorted(by_words) == list(range(1, len(by_words) + 1)), query
        # A page of three tells the same of its hits: places among all, not among the three.
        few = (await world.search.search(replace(search, top_k=3))).hits
        assert [(h.item.id, h.vector_rank, h.fts_rank) for h in few] == [
            (h.item.id, h.vector_rank, h.fts_rank) for h in hits[:3]
        ]
    # The ranks of one model alone are those of its own arm.
    alone = Search("walrus ice", 50, archive_ids=(archive.id,))
    ranks = [hit.vector_rank for hit in (await world.search.search(alone)).hits]
    assert sorted(ranks) == list(range(1, len(MORE) + 1))  # type: ignore[type-var]


async def test_an_archive_moves_to_another_model_and_back(world: World) -> None:
    await world.insert(*TEXTS)
    other = new_id("agent")
    await world.stores.insert(other, "This one stays where it is.")
    await world.index_all()
    [archive] = (await world.stores.archives.page(world.agent, 5, None)).archives
    default = PASSAGES.generation(LOCAL_MODEL)
    own = world.indexes.passages.generation_of(WORDS).generation
    with pytest.raises(NotFoundError):
        await world.archives.latest(archive.id)
    begun = await world.archives.start(archive.id, WORDS, "move-1")
    assert begun.total == len(TEXTS)
    while await world.step():
        assert (await world.find("orchid"))[0] == TEXTS[7]
    moved = await world.archives.latest(archive.id)
    assert moved.phase.new_serves
    assert (await world.stores.archives.get(archive.id)).embedding_model == WORDS
    await world.insert("Written in both while it can go back.")
    await world.index_all()
    assert await world.held(own, ARCHIVE_PASSAGES) == len(TEXTS) + 1
    assert await world.held(default) == len(TEXTS) + 2
    await world.archives.roll_back(archive.id)
    await world.reindex()
    assert (await world.stores.archives.get(archive.id)).embedding_model == LOCAL_MODEL
    assert await world.held(own, ARCHIVE_PASSAGES) == 0
    assert (await world.find("Written in both"))[0].startswith("Written in both")
    # And for good.
    await world.archives.start(archive.id, WORDS, "")
    await world.reindex()
    await world.archives.finish(archive.id)
    await world.reindex()
    assert (await world.held(default), await world.held(own, ARCHIVE_PASSAGES)) == (1, 9)
    assert (await world.find("orchid"))[0] == TEXTS[7]
    # The default changes, and it stays.
    hasty = await world.again(grace=0.0)
    await hasty.indexes.admin.start("passages", NOISE, "")
    await hasty.reindex()
    assert (await world.stores.archives.get(archive.id)).embedding_model == WORDS


async def test_the_vectors_of_an_archive_are_made_anew(world: World) -> None:
    await world.insert(*TEXTS)
    await world.index_all()
    [archive] = (await world.stores.archives.page(world.agent, 5, None)).archives
    [generation] = await world.generations()
    await world.vectors.delete_where(PASSAGES, world.project, Where())
    job = await world.archives.start(archive.id, "", "")
    await world.reindex()
    assert (await world.archives.latest(archive.id)).id == job.id
    assert (await world.archives.latest(archive.id)).phase.value == "finished"
    assert await world.held(generation) == len(TEXTS)


async def test_an_index_whose_model_left_the_settings_is_replaced(world: World) -> None:
    await world.insert(*TEXTS)
    await world.index_all()
    hasty = await world.again(grace=0.0)
    await hasty.indexes.admin.start("passages", WORDS, "")
    await hasty.reindex()
    alone = EmbeddingModels.of(await world.models.get(LOCAL_MODEL))
    stores = world.stores
    bare = await wire(
        world.settings,
        alone,
        world.vectors,
        stores.database,
        stores.worker,
        reindex=world.reindexing,
    )
    later = replace(world, indexes=bare, models=alone)
    hits = (await later.search.search(Search("otter", 3, agent_id=world.agent))).hits
    assert [(hit.item.text, hit.mode) for hit in hits] == [(TEXTS[0], "fts")]
    await bare.admin.start("passages", LOCAL_MODEL, "")
    await later.insert("Stored while there was no index.")
    await later.index_all()
    assert (await later.reindex()).phase == pb.REINDEX_PHASE_SWITCHED
    assert (await later.find("Stored while there was no index"))[0].startswith("Stored while")


async def test_a_limited_model_leaves_the_words(world: World) -> None:
    await world.insert(*TEXTS)
    await world.index_all()
    await world.indexes.admin.start("passages", WORDS, "")
    assert (await world.reindex()).phase == pb.REINDEX_PHASE_SWITCHED
    for status in (429, 401, 503):
        body = {"error": {"message": "no"}}
        world.endpoint.script = lambda request, status=status, body=body: Reply(status, body)  # type: ignore[misc]
        hits = (await world.search.search(Search("violin", 3, agent_id=world.agent))).hits
        assert [(hit.item.text, hit.mode) for hit in hits] == [(TEXTS[1], "fts")]
