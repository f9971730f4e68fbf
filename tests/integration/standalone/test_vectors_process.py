"""The process of the vector engine is killed and restarted; its files are damaged."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeVar
from uuid import UUID

import grpc
import psutil
import pytest
from qdrant_client import models

from integration.standalone.vector_points import (
    STEM,
    connect,
    create_alias,
    field,
    make,
    numbers,
    point,
    where,
)
from strata.protocol.errors import FailedPreconditionError, UnavailableError
from strata.standalone.ports import pick_port
from strata.standalone.supervisor import Command
from strata.standalone.vectors import EmbeddedVectors, process

ResultT = TypeVar("ResultT")


@pytest.fixture
async def own(tmp_path: Path) -> AsyncIterator[EmbeddedVectors]:
    """An engine that the test may kill."""
    engine = EmbeddedVectors(tmp_path / "vectors")
    await engine.start()
    yield engine
    await engine.stop()


async def test_an_engine_that_is_killed_at_its_start_is_reported_with_the_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = EmbeddedVectors(tmp_path / "vectors")
    # As on a full disk, where a file that is mapped into memory cannot grow.
    program = [sys.executable, "-I", "-S", "-c", "import os; os.kill(os.getpid(), 7)"]
    command = Command(program, tmp_path, tmp_path / "engine.log")
    monkeypatch.setattr(engine, "_command", lambda: command)
    with pytest.raises(UnavailableError, match=r"did not start, it ended with signal 7 "):
        await engine.start()


async def test_a_killed_engine_restarts_with_every_acknowledged_point(
    own: EmbeddedVectors,
) -> None:
    client = connect(own)
    await make(client)
    await client.update_collection_aliases([create_alias("points", STEM)])
    acknowledged: list[int] = []

    enough = asyncio.Event()

    async def write() -> None:
        for number in range(100_000):
            await client.upsert("points", [at(number)])
            acknowledged.append(number)
            if number == 200:
                enough.set()

    writing = asyncio.create_task(write())
    await enough.wait()
    killed = own.pid
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    with pytest.raises(grpc.aio.AioRpcError) as lost:
        await writing
    assert lost.value.code() == grpc.StatusCode.UNAVAILABLE
    await client.close()
    while own.pid == killed:  # until its death is noticed
        await asyncio.sleep(0.01)
    await own.wait_serving()

    client = connect(own)
    try:
        response = await reached(
            lambda: client.retrieve(
                "points", [str(UUID(int=number)) for number in acknowledged], with_payload=False
            )
        )
        assert sorted(numbers(response)) == acknowledged
        assert own.restarts == 1
        assert set((await client.get_collection(STEM)).payload_schema) >= {"project_id", "tags"}
    finally:
        await client.close()


async def reached(call: Callable[[], Awaitable[ResultT]]) -> ResultT:
    """Returns the result of a call; repeats the call during gRPC's pause after failed connections.

    All channels to an address share this pause, also a new channel with a closed one.
    """
    while True:
        try:
            return await call()
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
        await asyncio.sleep(0.05)


def at(number: int) -> models.PointStruct:
    return models.PointStruct(
        id=str(UUID(int=number)),
        vector={"dense": [1.0, number, 0.0, 0.0]},
        payload={"project_id": "project-1"},
    )


async def test_a_restart_keeps_points_aliases_port_and_key(own: EmbeddedVectors) -> None:
    client = connect(own)
    await make(client)
    await client.upsert(STEM, [point(number) for number in range(10)])
    await client.update_collection_aliases([create_alias("points", STEM)])
    await client.close()
    before = (own.url, own.api_key)
    await own.stop()

    again = EmbeddedVectors(own.folder)
    await again.start()
    client = connect(again)
    try:
        assert (again.url, again.api_key) == before
        assert (await client.count("points")).count == 10
        only = where(field("project_id", match=models.MatchValue(value="project-1")))
        assert (await client.count("points", count_filter=only)).count == 5
    finally:
        await client.close()
        await again.stop()


async def test_files_that_are_read_only_at_the_start_are_not_kept_in_memory(
    own: EmbeddedVectors, tmp_path: Path
) -> None:
    client = connect(own)
    await make(client)
    await client.upsert(STEM, [point(number) for number in range(20)])
    await client.close()
    await own.stop()
    await own.start()
    mapped = [
        memory_map
        for memory_map in psutil.Process(own.pid).memory_maps()
        if memory_map.path.startswith(str(tmp_path))
    ]
    assert mapped
    # The index of a field takes 4 MB, mostly empty pages.
    assert sum(mapping.rss for mapping in mapped) < 1_000_000
    client = connect(own)
    tagged = where(field("tags", match=models.MatchValue(value="tag-7")))
    response = await reached(lambda: client.query_points(STEM, query_filter=tagged))
    assert numbers(response.points) == [7]
    await client.close()


async def test_a_port_that_is_taken_before_the_engine_has_it_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[socket.socket] = []

    def take(preferred: int | None = None) -> int:
        """Picks a port that another process takes first, the first two times."""
        port = pick_port(preferred)
        if len(taken) < 2:
            taken.append(socket.create_server(("127.0.0.1", port)))
        return port

    monkeypatch.setattr(process, "pick_port", take)
    engine = EmbeddedVectors(tmp_path / "vectors")
    await engine.start()
    assert engine.port not in {socket_.getsockname()[1] for socket_ in taken}
    client = connect(engine)
    assert not (await client.get_collections()).collections
    await client.close()
    await engine.stop()
    for socket_ in taken:
        socket_.close()


async def test_the_error_for_a_second_supervisor_names_the_holder(own: EmbeddedVectors) -> None:
    with pytest.raises(FailedPreconditionError, match=f"process {os.getpid()}"):
        await EmbeddedVectors(own.folder).start()


@pytest.mark.parametrize(
    ("aliases", "description"),
    [(b'{"alias": "so', b'{"collectionNa'), (b"\xff\x00", b"\xff\x00"), (b"[]", b'{"of": 1}')],
)
async def test_the_engine_starts_with_damaged_descriptions(
    own: EmbeddedVectors, aliases: bytes, description: bytes
) -> None:
    client = connect(own)
    await make(client)
    await make(client, "sound")
    await client.update_collection_aliases([create_alias("alias", "sound")])
    await client.close()
    await own.stop()
    (own.folder / "aliases.json").write_bytes(aliases)
    (own.folder / "collections" / STEM / "collection.json").write_bytes(description)

    await own.start()
    client = connect(own)
    try:
        # The services build what is missing again.
        names = [collection.name for collection in (await client.get_collections()).collections]
        assert names == ["sound"]
        assert (await client.get_aliases()).aliases == []
        await make(client)
        await client.update_collection_aliases([create_alias("alias", "sound")])
        assert (await client.count("alias")).count == 0
    finally:
        await client.close()


async def test_incomplete_collections_are_removed_and_damaged_ones_reported(
    own: EmbeddedVectors,
) -> None:
    client = connect(own)
    await make(client)
    await make(client, "sound")
    await client.close()
    await own.stop()
    kept = own.folder / "collections"
    (kept / "half" / "shard").mkdir(parents=True)
    for segment in (kept / STEM / "shard" / "segments").iterdir():
        (segment / "segment.json").write_text("{")

    await own.start()
    client = connect(own)
    try:
        names = [collection.name for collection in (await client.get_collections()).collections]
        assert names == [STEM, "sound"]
        assert not (kept / "half").exists()
        assert (await client.count("sound")).count == 0
        with pytest.raises(grpc.aio.AioRpcError, match="build it again") as damaged:
            await client.count(STEM)
        assert damaged.value.code() == grpc.StatusCode.DATA_LOSS
        await client.delete_collection(STEM)
        await make(client)
        assert (await client.count(STEM)).count == 0
    finally:
        await client.close()
