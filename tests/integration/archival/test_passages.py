"""Passages through the service: provenance, versions, supplied vectors, times to live."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest
import pytest_asyncio
from google.protobuf.timestamp_pb2 import Timestamp

from archival_stores import DIM, MODEL
from integration.archival.archival_calls import count, made, put
from integration.archival.conftest import Client
from strata.api.archival.v1 import archive_service_pb2 as archive_pb
from strata.api.archival.v1 import passage_service_pb2 as pb
from strata.protocol.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError
from strata.shared.ids import new_id
from strata.shared.search.embedding.multilingual import MultilingualEmbedder

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def listed(client: Client, archive: str, **fields: Any) -> list[str]:
    request = pb.ListPassagesRequest(archive_id=archive, **fields)
    return [passage.text for passage in (await client.passages.ListPassages(request)).passages]


async def search_texts(client: Client, archive: str, query: str) -> list[str]:
    request = pb.SearchPassagesRequest(archive_ids=[archive], query=query)
    hits = (await client.passages.SearchPassages(request)).hits
    return [hit.passage.text for hit in hits]


def moment(ago: timedelta) -> Timestamp:
    stamp = Timestamp()
    stamp.FromDatetime(datetime.now(UTC) - ago)
    return stamp


async def test_a_passage_is_changed_hidden_restored_and_destroyed(client: Client) -> None:
    archive = await made(client)
    first = await put(client, archive, "The boat is called Nora.", tags=["boat"])
    assert not first.HasField("delete_time")
    change = pb.UpdatePassageRequest(
        request_id=new_id("x"),
        passage_id=first.id,
        text="The boat is called Vera.",
        metadata={"source": "harbour"},
        set_metadata=True,
        reason="renamed",
        origin=pb.PassageOrigin(run_id=new_id("run")),
    )
    changed = (await client.passages.UpdatePassage(change)).passage
    assert (changed.revision, dict(changed.metadata)) == (2, {"source": "harbour"})
    assert list(changed.tags) == ["boat"]
    assert (await client.passages.UpdatePassage(change)).passage.revision == 2
    change.text = "Something else."
    with pytest.raises(AlreadyExistsError):
        await client.passages.UpdatePassage(change)

    deletion = pb.DeletePassageRequest(passage_id=first.id, reason="sold")
    await client.passages.DeletePassage(deletion)
    assert await search_texts(client, archive, "boat") == []
    assert await listed(client, archive) == []
    assert await listed(client, archive, show_deleted=True) == ["The boat is called Vera."]
    assert await count(client, archive) == 0
    hidden = pb.GetPassageRequest(passage_id=first.id)
    with pytest.raises(NotFoundError):
        await client.passages.GetPassage(hidden)
    hidden.show_deleted = True
    assert (await client.passages.GetPassage(hidden)).passage.HasField("delete_time")

    restoration = pb.RestorePassageRequest(passage_id=first.id, revision=1)
    back = (await client.passages.RestorePassage(restoration)).passage
    assert (back.text, back.revision) == ("The boat is called Nora.", 4)
    assert await search_texts(client, archive, "boat") == ["The boat is called Nora."]
    history = pb.ListPassageVersionsRequest(passage_id=first.id, page_size=3)
    page = await client.passages.ListPassageVersions(history)
    assert [(version.operation, version.reason) for version in page.versions] == [
        ("restore", ""),
        ("delete", "sold"),
        ("update", "renamed"),
    ]
    assert page.versions[2].principal == "core-memory-worker"
    assert page.versions[2].origin == change.origin
    history.page_token = page.next_page_token
    (oldest,) = (await client.passages.ListPassageVersions(history)).versions
    assert (oldest.operation, oldest.text) == ("insert", "The boat is called Nora.")

    purge = pb.PurgePassageRequest(request_id=new_id("x"), passage_id=first.id)
    assert (await client.passages.PurgePassage(purge)).purged_versions == 4
    assert (await client.passages.PurgePassage(purge)).purged_versions == 4
    with pytest.raises(NotFoundError):
        await client.passages.PurgePassage(pb.PurgePassageRequest(passage_id=first.id))
    with pytest.raises(NotFoundError):
        await client.passages.ListPassageVersions(
            pb.ListPassageVersionsRequest(passage_id=first.id)
        )


async def test_passages_are_listed_by_origin_tag_and_time(client: Client) -> None:
    archive = await made(client)
    run, message = new_id("run"), new_id("message")
    origin = pb.PassageOrigin(run_id=run, message_id=message, tool_call_id="call_1")
    await put(client, archive, "a", origin=origin, tags=["t"])
    await put(client, archive, "b", origin=pb.PassageOrigin(run_id=run))
    await put(client, archive, "c", create_time=moment(timedelta(days=9)))
    assert await listed(client, archive, run_id=run) == ["a", "b"]
    assert await listed(client, archive, message_id=message) == ["a"]
    assert await listed(client, archive, run_id=run, tags=["t"]) == ["a"]
    assert await listed(client, archive, run_id=new_id("run")) == []
    week = moment(timedelta(days=7))
    assert await listed(client, archive, start_time=week) == ["a", "b"]
    assert await listed(client, archive, end_time=week) == ["c"]
    for field, wrong in (("run_id", new_id("agent")), ("message_id", "x")):
        with pytest.raises(InvalidArgumentError):
            await listed(client, archive, **{field: wrong})
    first = await client.passages.ListPassages(
        pb.ListPassagesRequest(archive_id=archive, run_id=run, page_size=1)
    )
    assert await listed(client, archive, run_id=run, page_token=first.next_page_token) == ["b"]
    with pytest.raises(InvalidArgumentError):
        await listed(client, archive, page_token=first.next_page_token)


@pytest.mark.parametrize(
    "origin",
    [
        pb.PassageOrigin(run_id="run-1"),
        pb.PassageOrigin(message_id="agent-6e0c9c4e-1f0b-4a6e-9a2c-2f9a4d7f4a11"),
        pb.PassageOrigin(tool_call_id="x" * 300),
        pb.PassageOrigin(tool_call_id="a\0b"),
    ],
)
async def test_a_wrong_origin_is_refused(client: Client, origin: pb.PassageOrigin) -> None:
    with pytest.raises(InvalidArgumentError):
        await put(client, await made(client), "a", origin=origin)


def vector(*start: float) -> list[float]:
    return [*start, *([0.0] * (DIM - len(start)))]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def model() -> AsyncIterator[MultilingualEmbedder]:
    embedder = await MultilingualEmbedder.load()
    yield embedder
    await embedder.close()


async def test_a_supplied_vector_is_used_instead_of_the_models(
    client: Client, model: MultilingualEmbedder
) -> None:
    archive = await made(client)
    question = "zebra stripes on the savannah"
    near = await put(client, archive, question)
    # Its text is about taxes, but its vector is the vector of the zebras.
    (vector,) = await model.embed([question], "query")
    await put(
        client,
        archive,
        "taxes are due in May",
        embedding=[7 * number for number in vector],
        embedding_model=MODEL,
    )
    request = archive_pb.GetArchiveRequest(archive_id=archive)
    while (await client.archives.GetArchive(request)).archive.unindexed_count:
        await asyncio.sleep(0.05)
    search = pb.SearchPassagesRequest(archive_ids=[archive], query=question)
    hits = (await client.passages.SearchPassages(search)).hits
    assert [hit.passage.text for hit in hits] == [near.text, "taxes are due in May"]
    assert hits[1].relevance.vector_rank <= 2
    # Without the vector, taxes do not match zebras.
    assert hits[1].relevance.rrf_score > 0.9


@pytest.mark.parametrize(
    ("embedding", "model", "field"),
    [
        (vector(1.0), "", "embedding_model"),
        ([], MODEL, "embedding_model"),
        (vector(1.0), "another", "embedding_model"),
        ([1.0], MODEL, "embedding"),
        (vector(), MODEL, "embedding"),
        (vector(math.nan), MODEL, "embedding"),
        (vector(math.inf), MODEL, "embedding"),
        (vector(1e30), MODEL, "embedding"),
    ],
)
async def test_a_wrong_vector_is_refused(
    client: Client, embedding: list[float], model: str, field: str
) -> None:
    archive = await made(client)
    with pytest.raises(InvalidArgumentError) as caught:
        await put(client, archive, "a", embedding=embedding, embedding_model=model)
    assert [violation.field for violation in caught.value.violations] == [f"passage.{field}"]
    assert await count(client, archive) == 0


async def test_a_time_to_live_is_kept(client: Client, urls: Any, project: str) -> None:
    archive = await made(client)
    await put(client, archive, "old boat", create_time=moment(timedelta(hours=2)))
    await put(client, archive, "young boat")
    change = archive_pb.UpdateArchiveRequest(archive_id=archive, time_to_live_seconds=3600)
    updated = (await client.archives.UpdateArchive(change)).archive
    assert (updated.time_to_live_seconds, updated.passage_count) == (3600, 1)
    assert await search_texts(client, archive, "boat") == ["young boat"]
    assert await listed(client, archive) == ["young boat"]
    with pytest.raises(InvalidArgumentError):
        await put(client, archive, "older boat", create_time=moment(timedelta(hours=1)))
    # The worker of the service deletes it permanently: it cannot be restored.
    change.time_to_live_seconds = 0
    database = await asyncpg.connect(urls.admin_url)
    query = "SELECT count(*) FROM archival.passages WHERE project_id = $1 AND text LIKE 'old%'"
    while await database.fetchval(query, project):
        await asyncio.sleep(0.05)
    await database.close()
    await client.archives.UpdateArchive(change)
    assert await listed(client, archive) == ["young boat"]


async def test_near_duplicates_are_named(client: Client) -> None:
    archive = await made(client)
    words = "the ship sails on to the island in the south and comes back in May"
    first = await put(client, archive, words)
    request = pb.InsertPassageRequest(
        archive_id=archive, passage=pb.NewPassage(text=words.replace("May", "June"))
    )
    answer = await client.passages.InsertPassage(request)
    assert (answer.duplicate, list(answer.near_duplicate_ids)) == (False, [first.id])
    assert [(near.passage_id, near.text) for near in answer.near_duplicates] == [(first.id, words)]
    search = pb.SearchPassagesRequest(archive_ids=[archive], query="June")
    hit = (await client.passages.SearchPassages(search)).hits[0]
    assert list(hit.passage.near_duplicate_ids) == [first.id]
