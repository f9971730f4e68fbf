"""The thread that runs engine calls, and quick work that runs outside this thread."""

from __future__ import annotations

import asyncio
import errno
import shutil
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import qdrant_edge as edge

from polling import eventually
from strata.protocol.errors import UnavailableError
from strata.shared.search import qdrant_wire as wire
from strata.standalone.vectors import EmbeddedVectors, disk_space
from strata.standalone.vectors import worker as engine_worker
from strata.standalone.vectors.errors import FullDiskError, VectorsError
from strata.standalone.vectors.file_sync import sync_files
from strata.standalone.vectors.store import CollectionStore
from strata.standalone.vectors.worker import EngineWorker
from unwritable_logs import unwritable_logs


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


def create(store: CollectionStore, *names: str) -> None:
    params = wire.collections.VectorParams(size=2, distance=wire.collections.Distance.Cosine)
    vectors = wire.collections.VectorsConfig(params=params)
    for name in names:
        store.create(
            wire.collections.CreateCollection(collection_name=name, vectors_config=vectors)
        )


def add_point(store: CollectionStore, name: str, number: int) -> None:
    point = edge.Point(number, [1.0, float(number)], {})
    store.update(name, [edge.UpdateOperation.upsert_points([point])])


async def test_searches_run_between_the_flushes_of_two_collections(
    worker: EngineWorker,
) -> None:
    def change(store: CollectionStore) -> None:
        create(store, "a", "b")
        for name in ("a", "b"):
            add_point(store, name, 1)

    await worker.run(change)
    left: list[tuple[str, ...]] = []

    async def look() -> bool:
        names, _ = await worker.run(CollectionStore.unflushed)
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


async def test_a_flush_waits_for_a_pause_between_searches_up_to_a_limit(
    worker: EngineWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(store: CollectionStore) -> None:
        create(store, "a")
        add_point(store, "a", 1)

    written: list[Path] = []

    def note(folder: Path) -> None:
        written.append(folder)

    async def is_flushed() -> bool:
        return not (await worker.run(CollectionStore.unflushed))[0]

    monkeypatch.setattr(engine_worker, "sync_files", note)
    monkeypatch.setattr(engine_worker, "_QUIET_S", 60.0)
    await worker.run(change)
    await worker.run_now(lambda store: store.shard("a"))
    flushing = asyncio.create_task(worker.flush_every(0.001))
    try:
        # Changes are written to the log repeatedly, without a flush of the engine.
        await eventually(lambda: len(written) > 1, interval=0.001)
        assert (await worker.run(CollectionStore.unflushed))[0] == {"a": 1}
        monkeypatch.setattr(engine_worker, "_UNFLUSHED_S", 0.0)
        await eventually(is_flushed, interval=0.001)
    finally:
        flushing.cancel()
    assert set(written) == {(await worker.run(lambda store: store.folder("a")))[0]}


async def test_flushing_continues_after_an_error_that_cannot_be_logged(
    worker: EngineWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(store: CollectionStore) -> None:
        create(store, "a")
        add_point(store, "a", 1)

    failures = 0

    def fail(_folder: Path) -> None:
        nonlocal failures
        failures += 1
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(engine_worker, "sync_files", fail)
    await worker.run(change)
    with unwritable_logs():
        flushing = asyncio.create_task(worker.flush_every(0.001))
        try:
            await eventually(lambda: failures > 1 or flushing.done(), interval=0.001)
            assert not flushing.done()
        finally:
            flushing.cancel()


def test_a_disk_with_little_space_refuses_writes_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The engine would be ended by SIGBUS at a write for which the disk has no block.
    store = CollectionStore(tmp_path)
    create(store, "a", "b")
    add_point(store, "a", 1)
    with monkeypatch.context() as nearly_full:
        nearly_full.setattr(disk_space, "free_bytes", lambda _folder: 100 * 2**20)
        with pytest.raises(FullDiskError, match=r"100 MiB are free .* 128 MiB are needed"):
            add_point(store, "a", 2)
        with pytest.raises(FullDiskError):
            create(store, "c")
        store.flush("a")
        assert store.unflushed() == {"a": 1}
        assert store.info("a").points_count == 1
        assert store.delete("b")
        store.close()
        store = CollectionStore(tmp_path)
        assert store.info("a").points_count == 1
    add_point(store, "a", 2)
    create(store, "c")
    store.flush("a")
    assert store.unflushed() == {}
    assert store.info("a").points_count == 2
    store.close()


async def test_the_engine_is_not_started_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = EmbeddedVectors(tmp_path)
    monkeypatch.setattr(disk_space, "free_bytes", lambda _folder: 3 * 2**20)
    with pytest.raises(UnavailableError, match=r"3 MiB are free .* 16 MiB are needed"):
        await vectors.start()


def test_points_whose_log_was_written_survive_a_crash_of_the_machine(tmp_path: Path) -> None:
    store = CollectionStore(tmp_path / "live")
    create(store, "a")
    add_point(store, "a", 1)
    store.flush("a")
    # The disk has the segments of the last flush and the current log.
    shutil.copytree(tmp_path / "live", tmp_path / "disk")
    for number in range(2, 40):
        add_point(store, "a", number)
    sync_files(store.folder("a"))
    log = Path("collections", "a", "shard", "wal")
    shutil.rmtree(tmp_path / "disk" / log)
    shutil.copytree(tmp_path / "live" / log, tmp_path / "disk" / log)
    after_crash = CollectionStore(tmp_path / "disk")
    assert after_crash.shard("a").count(edge.CountRequest(exact=True)) == 39
    for opened in (store, after_crash):
        opened.close()


async def test_memory_is_released_once_the_engine_is_not_used(
    worker: EngineWorker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    released: list[tuple[Path, str]] = []
    now, checks, release_memory = 1000.0, 0, worker._release_memory

    def unmap(folder: Path) -> int:
        released.append((folder, threading.current_thread().name))
        return 0

    async def counted(*, in_use: bool) -> None:
        nonlocal checks
        await release_memory(in_use=in_use)
        checks += 1

    async def pass_time(seconds: float) -> None:
        """Puts the clock forward, and waits until it was looked at."""
        nonlocal now
        now += seconds
        # One check may have been under way.
        enough = checks + 2
        await eventually(lambda: checks >= enough)

    clock = SimpleNamespace(monotonic=lambda: now, perf_counter=time.perf_counter)
    monkeypatch.setattr(engine_worker, "time", clock)
    monkeypatch.setattr(engine_worker, "release_pages_below", unmap)
    monkeypatch.setattr(worker, "_release_memory", counted)
    await worker.run_now(CollectionStore.names)
    flusher = asyncio.create_task(worker.flush_every(0.001))
    for _ in range(5):
        await pass_time(0.8 * engine_worker._IDLE_S)
        await worker.run_now(CollectionStore.names)
    assert released == []
    await pass_time(engine_worker._IDLE_S)
    assert len(released) == 1
    assert released[0][0] == tmp_path
    # No other call of the engine can unmap a file meanwhile.
    assert released[0][1].startswith("engine")
    await pass_time(3 * engine_worker._IDLE_S)
    assert len(released) == 1, "nothing was used since"
    await worker.run_now(CollectionStore.names)
    await pass_time(engine_worker._IDLE_S)
    assert len(released) == 2
    flusher.cancel()
