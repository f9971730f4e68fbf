"""An index is rebuilt, with another model too, while it serves."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from archival_reindexing import MORE, SUBJECTS, TEXTS, RebuiltIndexes
from archival_stores import NOW, Stores, new_passage
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
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    Reason,
)
from strata.shared.idempotency.keys import RequestKey
from strata.shared.ids import new_id
from strata.shared.search import engines
from strata.shared.search.embedding import Embedder, EmbeddingModels
from strata.shared.search.embedding.base import ENGLISH_MODEL, MULTILINGUAL_MODEL
from strata.shared.search.engines import open_models
from strata.shared.search.fusion import FusionConfig
from strata.shared.search.reindexing.routes import StoredRoutes
from strata.shared.search.reindexing.state import ReindexConfig
from strata.shared.search.vectors import Where
from strata.shared.search.vectors.client import connect
from strata.shared.search.vectors.qdrant import QdrantConfig, QdrantIndex
from strata.shared.shared_resources import SharedResources
from strata.standalone.vectors import EmbeddedVectors


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def engine(session_folder: Path) -> AsyncIterator[EmbeddedVectors]:
    """An engine for these tests alone: they drop its collections."""
    made = EmbeddedVectors(session_folder / "vectors-to-rebuild")
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def indexing(
    stores: Stores,
    embedder: Embedder,
    engine: EmbeddedVectors,
    project: str,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[RebuiltIndexes]:
    endpoint = await serve()
    client = connect(engine.url, engine.api_key)
    for name in await client.collection_names():
        await client.delete_collection(name)
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
        made = RebuiltIndexes(
            stores, settings, reindex, opened, vectors, indexes, endpoint, project
        )
        for backlog in indexes.indexer._backlogs:
            await backlog.ensure()
        yield made
    await vectors.close()
    await endpoint.stop()


async def test_the_model_is_changed_during_searches(indexing: RebuiltIndexes) -> None:
    ids = await indexing.insert(*TEXTS)
    await indexing.index_all()
    admin = indexing.indexes.admin
    [old] = await indexing.generations()
    begun, again = await asyncio.gather(
        *(admin.start("passages", WORDS, "request-1") for _ in range(2))
    )
    assert again.id == begun.id
    assert (await admin.start("passages", WORDS, "request-1")).id == begun.id
    with pytest.raises(AlreadyExistsError) as raised:
        await admin.start("passages", ENGLISH_MODEL, "request-1")
    assert raised.value.reason is Reason.REQUEST_ID_REUSED
    assert (begun.total, begun.old_model, begun.new_model) == (
        len(TEXTS),
        MULTILINGUAL_MODEL,
        WORDS,
    )
    steps = 0
    while await indexing.step():
        steps += 1
        if steps == 2:
            # Before the cursor and after it: what changes is written in both places.
            history, author = indexing.stores.history, Author("key")
            await indexing.insert("A heron stands in the reeds.")
            changed = PassageChange(author, text=None, tags=("kept",))
            await history.update(ids[0], changed, NOW)
            await history.delete(ids[1], author, NOW)
            await history.delete(ids[7], author, NOW)
            await indexing.index_all()
        assert TEXTS[2] in await indexing.find("glacier")
    state = await admin.state("passages")
    assert state.reindex.phase == pb.REINDEX_PHASE_SWITCHED
    assert (state.embedding_model, state.embedding_dim, state.waiting) == (WORDS, 256, 0)
    assert 0 < state.reindex.checked == state.reindex.found_by_new <= 5
    assert steps >= len(TEXTS) / 3 + 2
    # Questions are embedded with the new model now, and both collections hold the same.
    before = len(indexing.endpoint.requests)
    assert (await indexing.find("who has the telescope"))[0] == TEXTS[4]
    assert indexing.endpoint.requests[before]["input"] == ["who has the telescope"]
    assert (await indexing.find("heron"))[0] == "A heron stands in the reeds."
    assert await indexing.find("otter", tags=("kept",)) == [TEXTS[0]]
    assert TEXTS[1] not in await indexing.find("violin", limit=20)
    new = state.generation
    assert await indexing.generations() == sorted([old, new])
    assert await indexing.vectors.serving(PASSAGES) == new
    assert await indexing.held(old) == await indexing.held(new) == len(TEXTS) - 1
    await indexing.insert("Both are written until the end.")
    await indexing.index_all()
    assert await indexing.held(old) == await indexing.held(new) == len(TEXTS)
    assert (await admin.finish("passages")).phase == pb.REINDEX_PHASE_FINISHED
    await indexing.reindex()
    assert await indexing.generations() == [new]
    assert await indexing.vectors.serving(PASSAGES) == new
    # An archive that follows the default says which model that is now.
    [archive] = await indexing.stores.archives.page(indexing.agent, 5, None)
    assert (archive.embedding_model, archive.embedding_dim) == (WORDS, 256)


async def test_a_rebuild_can_be_rolled_back_until_it_is_finished(indexing: RebuiltIndexes) -> None:
    await indexing.insert(*TEXTS)
    await indexing.index_all()
    [old] = await indexing.generations()
    admin = indexing.indexes.admin
    await admin.start("passages", WORDS, "")
    assert (await indexing.reindex()).phase == pb.REINDEX_PHASE_SWITCHED
    await indexing.insert("Said while the new one served.")
    await indexing.index_all()
    reader = await indexing.again()
    assert (await reader.find("glacier"))[0] == TEXTS[2]
    routes = reader.indexes.passages.texts.routes
    assert isinstance(routes, StoredRoutes)
    routes._until = math.inf
    assert (await admin.roll_back("passages")).phase == pb.REINDEX_PHASE_ROLLED_BACK
    assert (await admin.roll_back("passages")).phase == pb.REINDEX_PHASE_ROLLED_BACK
    await indexing.reindex()
    assert await indexing.generations() == [old]
    # This reader still believes in the new one, which is gone.
    assert (await routes.serving()).generation != old
    assert (await reader.find("Said while the new one served"))[0].startswith("Said while")
    assert (await admin.state("passages")).embedding_model == MULTILINGUAL_MODEL
    with pytest.raises(FailedPreconditionError):
        await admin.finish("passages")


async def test_an_index_whose_model_finds_too_little_never_serves(indexing: RebuiltIndexes) -> None:
    await indexing.insert(*TEXTS, *(f"{text} Again, in other words." for text in TEXTS))
    await indexing.index_all()
    [old] = await indexing.generations()
    # Every text is asked for: of a few, chance may find all.
    asked = 2 * len(TEXTS)
    thorough = await indexing.again(sample=asked)
    await thorough.indexes.admin.start("passages", NOISE, "")
    job = await thorough.reindex()
    assert job.phase == pb.REINDEX_PHASE_FAILED
    assert job.checked == job.found_by_old == asked
    assert job.found_by_new < asked
    assert f"the new index found {job.found_by_new}, the serving one {asked}" in job.note
    assert await indexing.generations() == [old]
    assert (await indexing.indexes.admin.state("passages")).embedding_model == MULTILINGUAL_MODEL
    assert (await indexing.find("glacier"))[0].startswith(TEXTS[2])


async def test_rebuild_fails_if_the_model_refuses_the_key(indexing: RebuiltIndexes) -> None:
    await indexing.insert(*TEXTS)
    await indexing.index_all()
    indexing.endpoint.script = lambda request: Reply(status=401, body={"error": {"message": "no"}})
    await indexing.indexes.admin.start("passages", WORDS, "")
    job = await indexing.reindex()
    assert (job.phase, "refuses the key" in job.note) == (pb.REINDEX_PHASE_FAILED, True)
    assert (await indexing.find("otter"))[0] == TEXTS[0]


async def test_rebuild_waits_for_an_unavailable_model(indexing: RebuiltIndexes) -> None:
    await indexing.insert(*TEXTS)
    await indexing.index_all()
    indexing.endpoint.script = lambda request: Reply(status=503, body={"error": {"message": "no"}})
    await indexing.indexes.admin.start("passages", WORDS, "")
    assert (await indexing.reindex()).phase == pb.REINDEX_PHASE_BUILDING
    indexing.endpoint.script = answer
    # Another replica has had no trouble, and does not wait.
    assert (await (await indexing.again()).reindex()).phase == pb.REINDEX_PHASE_SWITCHED


async def test_another_replica_resumes_a_rebuild_without_copying_again(
    indexing: RebuiltIndexes,
) -> None:
    await indexing.insert(*TEXTS)
    await indexing.index_all()
    await indexing.indexes.admin.start("passages", WORDS, "")
    for _ in range(2):
        assert await indexing.step()
    assert (await indexing.indexes.admin.state("passages")).reindex.done == 6
    other = await indexing.again()
    before = len(indexing.endpoint.requests)
    job = await other.reindex()
    assert (job.phase, job.done) == (pb.REINDEX_PHASE_SWITCHED, len(TEXTS))
    sent = [text for one in indexing.endpoint.requests[before:] for text in one["input"]]
    assert not set(TEXTS[:6]) & set(sent), "copied entries are copied again"


async def test_claimed_rebuild_is_not_run_by_other_replicas(indexing: RebuiltIndexes) -> None:
    await indexing.insert(*TEXTS)
    await indexing.indexes.admin.start("passages", WORDS, "")
    ledger = indexing.indexes.admin._ledger
    assert ledger is not None
    async with ledger.claim(["passages"], 0) as job:
        assert job is not None
        assert not await indexing.step()
    assert await indexing.step()


async def test_a_copy_does_not_overwrite_concurrent_changes(
    indexing: RebuiltIndexes,
) -> None:
    [first, second, _] = await indexing.insert(*TEXTS[:3])
    await indexing.index_all()
    await indexing.indexes.admin.start("passages", WORDS, "")
    ledger = indexing.indexes.admin._ledger
    assert ledger is not None
    whole = indexing.indexes.admin._indexes["passages"].rebuild
    async with ledger.claim(["passages"], 0) as job:
        assert job is not None
        target = whole.place(job.target)
        await target.make(job.target)
        batch = await whole.batch(job, 10)
        assert batch is not None
        history, author = indexing.stores.history, Author("key")
        text = new_passage("A walrus sleeps on the ice.").content
        await history.update(first, PassageChange(author, text=text), NOW)
        await history.delete(second, author, NOW)
        await indexing.index_all()
        # Only now the batch arrives, as of before.
        await target.put(batch.project_id, batch.entries, replace=True, into=[job.target])
        await whole.settle(job, batch)
    assert await indexing.held(job.target.generation) == 2
    await indexing.index_all()
    assert (await indexing.reindex()).phase == pb.REINDEX_PHASE_SWITCHED
    assert (await indexing.find("walrus"))[0] == "A walrus sleeps on the ice."
    hits = await indexing.indexes.passages.texts.search(
        indexing.project, "The otter number 0", Where(), 5, words=False
    )
    assert sorted(hit.document_id for hit in hits if (hit.vector_score or 0) > 0.9) == []


async def test_a_lost_collection_is_filled_from_the_start(indexing: RebuiltIndexes) -> None:
    await indexing.insert(*TEXTS)
    await indexing.index_all()
    await indexing.indexes.admin.start("passages", WORDS, "")
    await indexing.step()
    await indexing.step()
    [target] = [name for name in await indexing.generations() if "words" in name]
    await indexing.vectors._client.delete_collection(target)
    assert (await indexing.reindex()).phase == pb.REINDEX_PHASE_SWITCHED
    assert await indexing.held(target) == len(TEXTS)


async def test_only_one_rebuild_is_open(indexing: RebuiltIndexes) -> None:
    await indexing.insert(*TEXTS)
    admin = indexing.indexes.admin
    await admin.start("passages", WORDS, "")
    with pytest.raises(FailedPreconditionError):
        await admin.start("passages", NOISE, "")
    assert (await admin.roll_back("passages")).phase == pb.REINDEX_PHASE_CANCELLED
    await indexing.reindex()
    again = await admin.start("passages", WORDS, "")
    await indexing.index_all()
    assert (await indexing.reindex()).id == again.id


async def test_rebuild_is_finished_after_the_grace_period(indexing: RebuiltIndexes) -> None:
    await indexing.insert(*TEXTS)
    await indexing.index_all()
    hasty = await indexing.again(grace=0.0)
    await hasty.indexes.admin.start("passages", "", "")
    job = await hasty.reindex()
    # Without a model's name it is the same model, in a collection of its own.
    assert (job.phase, job.new_model) == (pb.REINDEX_PHASE_FINISHED, MULTILINGUAL_MODEL)
    assert [name.endswith("-r1") for name in await indexing.generations()] == [True]
    assert (await hasty.find("otter"))[0] == TEXTS[0]


async def test_invalid_rebuild_requests_are_refused(indexing: RebuiltIndexes) -> None:
    admin = indexing.indexes.admin
    with pytest.raises(InvalidArgumentError, match=f"there are .*{MULTILINGUAL_MODEL}.*{WORDS}"):
        await admin.start("passages", "no-such-model", "")
    with pytest.raises(InvalidArgumentError):
        await admin.state("messages")
    with pytest.raises(NotFoundError):
        await admin.finish("passages")
    shut = await indexing.again_with_settings(reindex_by_key=False)
    with pytest.raises(PermissionDeniedError):
        await shut.indexes.admin.start("passages", "", "")


async def test_chunks_of_files_are_rebuilt(indexing: RebuiltIndexes) -> None:
    folder, files = new_id("folder"), [new_id("file") for _ in range(3)]
    for number, file in enumerate(files):
        texts = [f"Page {page} of book {number}: {SUBJECTS[page]}." for page in range(5)]
        await indexing.stores.index_file(folder, file, *texts)
    await indexing.index_all()
    await indexing.indexes.admin.start("files", WORDS, "")
    await indexing.step()
    await indexing.step()
    # One file is chunked again while it is copied.
    await indexing.stores.index_file(folder, files[0], "Only a walrus is left.")
    await indexing.index_all()
    job = await indexing.reindex("files")
    assert (job.phase, job.total) == (pb.REINDEX_PHASE_SWITCHED, 15)
    state = await indexing.indexes.admin.state("files")
    result = await indexing.file_search.search([folder], "walrus", 3)
    assert result.hits[0].stored.chunk.text == "Only a walrus is left."
    await indexing.index_all()
    assert await indexing.held(state.generation, FILE_CHUNKS) == 11


async def test_indexes_with_the_earlier_default_model_are_rebuilt_automatically(
    indexing: RebuiltIndexes,
) -> None:
    folder = new_id("folder")
    await indexing.insert(*TEXTS)
    await indexing.stores.index_file(folder, new_id("file"), *MORE)
    await indexing.index_all()
    admin = indexing.indexes.admin
    for name in ("passages", "files"):
        await admin.start(name, ENGLISH_MODEL, "")
        await indexing.reindex(name)
        await admin.finish(name)
    await indexing.reindex()
    assert (await admin.state("files")).embedding_model == ENGLISH_MODEL

    upgraded = await indexing.again()
    for backlog in upgraded.indexes.reindexer._backlogs:
        await backlog.ensure()
    steps = 0
    while await upgraded.step():
        steps += 1
        assert TEXTS[2] in await upgraded.find("glacier")
        result = await upgraded.file_search.search([folder], "narwhal", 3)
        assert result.hits[0].stored.chunk.text == MORE[1]
    assert steps > 4
    for name, count in (("passages", len(TEXTS)), ("files", len(MORE))):
        state = await upgraded.indexes.admin.state(name)
        assert state.reindex.phase == pb.REINDEX_PHASE_SWITCHED, state.reindex.note
        assert (state.embedding_model, state.waiting) == (MULTILINGUAL_MODEL, 0)
        assert (state.reindex.old_model, state.reindex.total) == (ENGLISH_MODEL, count)


async def test_an_archive_can_have_its_own_model(indexing: RebuiltIndexes) -> None:
    stores = indexing.stores
    await indexing.insert(*TEXTS)
    words = indexing.models.known(WORDS)
    archive = await stores.archives.create(
        new_archive("shared", words.id, words.dim, NOW, own_model=words.id),
        indexing.agent,
        RequestKey(),
    )
    more = [new_passage("A walrus sleeps on the ice."), new_passage("A narwhal dives below it.")]
    await stores.passages.insert(ArchiveRef(archive_id=archive.id), more, archive)
    await indexing.index_all()
    own = indexing.indexes.passages.generation_of(WORDS).generation
    assert await indexing.held(own, ARCHIVE_PASSAGES) == 2
    assert await indexing.held(PASSAGES.generation(MULTILINGUAL_MODEL)) == len(TEXTS)
    assert (await indexing.find("narwhal"))[0] == "A narwhal dives below it."
    assert (await indexing.find("telescope"))[0] == TEXTS[4]
    # Both were asked, each with its own vector, and found by meaning.
    answer = await indexing.search.search(Search("walrus ice", 20, agent_id=indexing.agent))
    ranks = {hit.item.text: hit.vector_rank for hit in answer.hits}
    assert ranks["A walrus sleeps on the ice."] == 1
    assert len(ranks) == len(TEXTS) + 2
    before = len(indexing.endpoint.requests)
    alone = Search("bicycle of aunt", 3, archive_ids=(archive.id,))
    assert len((await indexing.search.search(alone)).hits) == 2
    assert len(indexing.endpoint.requests) == before + 1
    # What is deleted goes from there, too.
    assert await stores.archives.delete(archive.id) == 2
    await indexing.index_all()
    assert await indexing.held(own, ARCHIVE_PASSAGES) == 0


async def test_results_of_several_embedding_models_are_fused_into_one_ranking(
    indexing: RebuiltIndexes,
) -> None:
    await indexing.insert(*TEXTS)
    words = indexing.models.known(WORDS)
    archive = await indexing.stores.archives.create(
        new_archive("shared", words.id, words.dim, NOW, own_model=words.id),
        indexing.agent,
        RequestKey(),
    )
    more = [new_passage(text) for text in MORE]
    await indexing.stores.passages.insert(ArchiveRef(archive_id=archive.id), more, archive)
    await indexing.index_all()
    for query in ("walrus ice", "who has the telescope", "the aunt's bicycle", "zzz"):
        search = Search(query, 50, agent_id=indexing.agent)
        hits = (await indexing.search.search(search)).hits
        assert len(hits) == len(TEXTS) + len(MORE)
        ranks = [hit.vector_rank for hit in hits]
        assert sorted(ranks) == list(range(1, len(hits) + 1)), query  # type: ignore[type-var]
        by_words = [hit.fts_rank for hit in hits if hit.fts_rank is not None]
        assert sorted(by_words) == list(range(1, len(by_words) + 1)), query
        # A page of three tells the same of its hits: places among all, not among the three.
        few = (await indexing.search.search(replace(search, top_k=3))).hits
        assert [(h.item.id, h.vector_rank, h.fts_rank) for h in few] == [
            (h.item.id, h.vector_rank, h.fts_rank) for h in hits[:3]
        ]
    # The ranks of one model alone are those of its own arm.
    alone = Search("walrus ice", 50, archive_ids=(archive.id,))
    ranks = [hit.vector_rank for hit in (await indexing.search.search(alone)).hits]
    assert sorted(ranks) == list(range(1, len(MORE) + 1))  # type: ignore[type-var]


async def test_an_archive_can_change_to_another_model_and_back(indexing: RebuiltIndexes) -> None:
    await indexing.insert(*TEXTS)
    other = new_id("agent")
    await indexing.stores.insert(other, "This one stays where it is.")
    await indexing.index_all()
    [archive] = await indexing.stores.archives.page(indexing.agent, 5, None)
    default = PASSAGES.generation(MULTILINGUAL_MODEL)
    own = indexing.indexes.passages.generation_of(WORDS).generation
    with pytest.raises(NotFoundError):
        await indexing.archives.latest(archive.id)
    begun = await indexing.archives.start(archive.id, WORDS, "move-1")
    assert begun.total == len(TEXTS)
    while await indexing.step():
        assert (await indexing.find("orchid"))[0] == TEXTS[7]
    moved = await indexing.archives.latest(archive.id)
    assert moved.phase.new_serves
    assert (await indexing.stores.archives.get(archive.id)).embedding_model == WORDS
    await indexing.insert("Written in both while it can go back.")
    await indexing.index_all()
    assert await indexing.held(own, ARCHIVE_PASSAGES) == len(TEXTS) + 1
    assert await indexing.held(default) == len(TEXTS) + 2
    await indexing.archives.roll_back(archive.id)
    await indexing.reindex()
    assert (await indexing.stores.archives.get(archive.id)).embedding_model == MULTILINGUAL_MODEL
    assert await indexing.held(own, ARCHIVE_PASSAGES) == 0
    assert (await indexing.find("Written in both"))[0].startswith("Written in both")
    # And for good.
    await indexing.archives.start(archive.id, WORDS, "")
    await indexing.reindex()
    await indexing.archives.finish(archive.id)
    await indexing.reindex()
    assert (await indexing.held(default), await indexing.held(own, ARCHIVE_PASSAGES)) == (1, 9)
    assert (await indexing.find("orchid"))[0] == TEXTS[7]
    # The default changes, and it stays.
    hasty = await indexing.again(grace=0.0)
    await hasty.indexes.admin.start("passages", NOISE, "")
    await hasty.reindex()
    assert (await indexing.stores.archives.get(archive.id)).embedding_model == WORDS


async def test_the_vectors_of_an_archive_are_rebuilt(indexing: RebuiltIndexes) -> None:
    await indexing.insert(*TEXTS)
    await indexing.index_all()
    [archive] = await indexing.stores.archives.page(indexing.agent, 5, None)
    [generation] = await indexing.generations()
    await indexing.vectors.delete_where(PASSAGES, indexing.project, Where())
    job = await indexing.archives.start(archive.id, "", "")
    await indexing.reindex()
    assert (await indexing.archives.latest(archive.id)).id == job.id
    assert (await indexing.archives.latest(archive.id)).phase.value == "finished"
    assert await indexing.held(generation) == len(TEXTS)


async def test_an_index_whose_model_is_no_longer_configured_is_replaced(
    indexing: RebuiltIndexes,
) -> None:
    await indexing.insert(*TEXTS)
    await indexing.index_all()
    hasty = await indexing.again(grace=0.0)
    await hasty.indexes.admin.start("passages", WORDS, "")
    await hasty.reindex()
    alone = EmbeddingModels.of(await indexing.models.get(MULTILINGUAL_MODEL))
    stores = indexing.stores
    bare = await wire(
        indexing.settings,
        alone,
        indexing.vectors,
        stores.database,
        stores.worker,
        reindex=indexing.reindexing,
    )
    later = replace(indexing, indexes=bare, models=alone)
    hits = (await later.search.search(Search("otter", 3, agent_id=indexing.agent))).hits
    assert [(hit.item.text, hit.mode) for hit in hits] == [(TEXTS[0], "fts")]
    await bare.admin.start("passages", MULTILINGUAL_MODEL, "")
    await later.insert("Stored while there was no index.")
    await later.index_all()
    assert (await later.reindex()).phase == pb.REINDEX_PHASE_SWITCHED
    assert (await later.find("Stored while there was no index"))[0].startswith("Stored while")


async def test_an_unavailable_embedding_model_leaves_full_text_search(
    indexing: RebuiltIndexes,
) -> None:
    await indexing.insert(*TEXTS)
    await indexing.index_all()
    await indexing.indexes.admin.start("passages", WORDS, "")
    assert (await indexing.reindex()).phase == pb.REINDEX_PHASE_SWITCHED
    for status in (429, 401, 503):
        body = {"error": {"message": "no"}}
        indexing.endpoint.script = lambda request, status=status, body=body: Reply(status, body)  # type: ignore[misc]
        hits = (await indexing.search.search(Search("violin", 3, agent_id=indexing.agent))).hits
        assert [(hit.item.text, hit.mode) for hit in hits] == [(TEXTS[1], "fts")]
