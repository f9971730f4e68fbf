"""Errors while the engine is down, slow or refuses the key, and calls after its return."""

import asyncio
import signal
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from strata.protocol.errors import InternalError, UnavailableError
from strata.shared.search.vectors import Collection
from strata.shared.search.vectors.circuit_breaker import CircuitBreaker
from strata.shared.search.vectors.client import connect
from strata.shared.search.vectors.qdrant import QdrantConfig, QdrantIndex
from strata.standalone.vectors import EmbeddedVectors

from .conftest import DIM, FIELDS, MODEL, EngineProcess, document, free_port, vector

PROJECT = "project-a"
EAST = vector(1.0)
THINGS = Collection("things", FIELDS)


@pytest.fixture
async def killable(own_engine: EngineProcess) -> AsyncIterator[QdrantIndex]:
    index = QdrantIndex(connect(own_engine.url, own_engine.key))
    await index.ensure(THINGS, MODEL, DIM)
    yield index
    await index.close()


async def until_back(index: QdrantIndex) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                return await index.check()
            except UnavailableError:
                await asyncio.sleep(0.1)


async def test_acknowledged_points_survive_a_kill_and_the_client_finds_the_engine_again(
    own_engine: EngineProcess, killable: QdrantIndex
) -> None:
    written = 0
    for number in range(40):
        await killable.upsert(THINGS, PROJECT, [document(f"d{number}")])
        written += 1
    own_engine.end(signal.SIGKILL)
    with pytest.raises(UnavailableError):
        await killable.query(THINGS, PROJECT, dense=EAST)
    own_engine.start()
    await until_back(killable)
    assert await killable.count(THINGS, PROJECT) == written
    assert await killable.serving(THINGS) is not None


async def test_a_dead_engine_opens_the_circuit(
    own_engine: EngineProcess, killable: QdrantIndex
) -> None:
    # The clock of the circuit breaker is stopped: on a slow machine its pause would be over before
    # the last call.
    killable._circuit._clock = lambda: 0.0
    own_engine.end(signal.SIGKILL)
    for _ in range(8):
        with pytest.raises(UnavailableError) as caught:
            await killable.count(THINGS, PROJECT)
    assert caught.value.metadata["dependency"] == "the vector index"
    assert "try again soon" in caught.value.message
    assert caught.value.retry_after is not None


async def test_a_missing_collection_is_unavailable_and_keeps_the_circuit_closed(
    vectors: EmbeddedVectors,
) -> None:
    circuit = CircuitBreaker("test", threshold=1)
    index = QdrantIndex(connect(vectors.url, vectors.api_key), circuit=circuit)
    dropped = Collection(f"dropped-{uuid4().hex[:8]}", FIELDS)
    for attempt in (
        index.query(dropped, PROJECT, dense=EAST),
        index.upsert(dropped, PROJECT, [document("a")]),
        index.count(dropped, PROJECT),
    ):
        with pytest.raises(UnavailableError) as caught:
            await attempt
        assert caught.value.metadata["cause"] == "collection_missing"
    assert not circuit.is_open
    await index.close()


async def test_a_damaged_collection_is_named_and_keeps_the_circuit_closed(
    own_engine: EngineProcess, killable: QdrantIndex
) -> None:
    generation = await killable.serving(THINGS)
    assert generation is not None
    own_engine.end()
    folder = own_engine.folder / "collections" / generation
    for segment in (folder / "shard" / "segments").iterdir():
        (segment / "segment.json").write_text("{")
    own_engine.start()
    await until_back(killable)

    circuit = CircuitBreaker("test", threshold=1)
    index = QdrantIndex(connect(own_engine.url, own_engine.key), circuit=circuit)
    try:
        with pytest.raises(UnavailableError, match="damaged; the log names the remedy") as error:
            await index.count(THINGS, PROJECT)
        assert f"delete the folder {folder} " in error.value.detail
        assert error.value.metadata["cause"] == "collection_damaged"
        assert not circuit.is_open
    finally:
        await index.close()


async def test_a_wrong_key_is_refused(vectors: EmbeddedVectors) -> None:
    index = QdrantIndex(connect(vectors.url, "wrong"))
    with pytest.raises(UnavailableError):
        await index.check()
    await index.close()


async def test_a_vector_of_another_length_is_an_internal_error(killable: QdrantIndex) -> None:
    with pytest.raises(InternalError):
        await killable.query(THINGS, PROJECT, dense=[1.0, 2.0])
    await killable.check()


async def test_a_call_to_a_silent_engine_times_out() -> None:
    release = asyncio.Event()

    async def silent(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await release.wait()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    index = QdrantIndex(connect(f"http://127.0.0.1:{port}"), QdrantConfig(read_timeout=0.2))
    async with asyncio.timeout(30):
        with pytest.raises(UnavailableError):
            await index.check()
    await index.close()
    release.set()
    server.close()
    await server.wait_closed()


async def test_no_connection_is_made_before_the_first_call() -> None:
    index = QdrantIndex(connect(f"http://127.0.0.1:{free_port()}"))
    await index.close()


@pytest.mark.parametrize("url", ["localhost:6334", "grpc://host:1", ""])
def test_an_address_without_scheme_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="http"):
        connect(url)
