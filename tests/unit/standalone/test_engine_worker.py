"""The thread of the engine, and quick work that runs without it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import qdrant_edge as edge

from polling import eventually
from strata.shared.search import qdrant_wire as wire
from strata.standalone.vectors.errors import VectorsError
from strata.standalone.vectors.store import CollectionStore
from strata.standalone.vectors.worker import EngineWorker


@pytest.fixture
async def worker(tmp_path: Path) -> AsyncIterator[EngineWorker]:
    made = EngineWorker(tmp_path)
    await made.open()
    yield made
    await made.close()


def thread_of(_store: CollectionStore) -> str:
    return threading.current_thread().name


async def test_quick_work_runs_immediately_if_the_worker_is_idle(worker: EngineWorker) -> None:
    here = threading.current_thread().name
    assert (await worker.run(thread_of))[0].startswith("engine")
    assert (await worker.run_now(thread_of))[0] == here


async def test_quick_work_waits_for_earlier_work(worker: EngineWorker) -> None:
    running, go_on = threading.Event(), threading.Event()
    seen: list[str] = []

    def slow(_store: CollectionStore) -> None:
        running.set()
        go_on.wait(60)
        seen.append("slow")

    first = asyncio.create_task(worker.run(slow))
    await asyncio.to_thread(running.wait, 60)
    second = asyncio.create_task(worker.run_now(lambda _: seen.append("quick")))
    for _ in range(5):
        await asyncio.sleep(0)
    assert seen == []
    go_on.set()
    await asyncio.gather(first, second)
    assert seen == ["slow", "quick"]


async def test_quick_work_waits_for_cancelled_work_that_is_running(
    worker: EngineWorker,
) -> None:
    running, go_on = threading.Event(), threading.Event()

    def slow(_store: CollectionStore) -> None:
        running.set()
        go_on.wait(60)

    first = asyncio.create_task(worker.run(slow))
    waits = asyncio.create_task(worker.run(thread_of))
    await asyncio.to_thread(running.wait, 60)
    for task in (first, waits):
        task.cancel()
    second = asyncio.create_task(worker.run_now(thread_of))
    await asyncio.sleep(0.05)
    assert not second.done()
    go_on.set()
    assert (await second)[0].startswith("engine")
    while (await worker.run_now(thread_of))[0].startswith("engine"):
        await asyncio.sleep(0.01)  # nothing of the cancelled work is left


async def test_failures_of_quick_work_are_mapped_to_engine_errors(worker: EngineWorker) -> None:
    def fail(_store: CollectionStore) -> None:
        raise RuntimeError("broken")

    with pytest.raises(VectorsError, match="broken"):
        await worker.run_now(fail)


async def test_searches_run_between_the_flushes_of_two_collections(
    worker: EngineWorker,
) -> None:
    def change(store: CollectionStore) -> None:
        params = wire.collections.VectorParams(size=2, distance=wire.collections.Distance.Cosine)
        vectors = wire.collections.VectorsConfig(params=params)
        index = edge.KeywordIndexParams(is_tenant=True)
        for name in ("a", "b"):
            create = wire.collections.CreateCollection(collection_name=name, vectors_config=vectors)
            store.create(create)
            store.update(name, [edge.UpdateOperation.create_field_index("project", index)])

    await worker.run(change)
    left: list[tuple[str, ...]] = []

    async def look() -> bool:
        names, _ = await worker.run_now(CollectionStore.unflushed)
        if not left or left[-1] != tuple(names):
            left.append(tuple(names))
        return not names

    flushing = asyncio.create_task(worker.flush_every(0.01))
    try:
        await eventually(look, interval=0.005)
    finally:
        flushing.cancel()
    assert ("b",) in left
    assert left[-1] == ()
