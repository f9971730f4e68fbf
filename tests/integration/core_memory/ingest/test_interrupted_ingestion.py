"""Interrupted work: kills, expired leases, shutdowns."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import os
import signal
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any, BinaryIO

import asyncpg
import psutil
import pytest

import file_samples as samples
from child_processes import descendants, running_service, service_settings
from gates import gate
from integration.core_memory.ingest.conftest import MIB, Admin, Services
from polling import eventually
from strata.api.archival.v1 import file_index_service_pb2_grpc as index_grpc
from strata.api.core_memory.v1 import file_service_pb2 as pb
from strata.api.core_memory.v1 import file_service_pb2_grpc as pb_grpc
from strata.archival.main import build as build_archival
from strata.core_memory.files.archival_client import ArchivalFileIndex
from strata.core_memory.files.domain.chunker import Chunker
from strata.core_memory.files.domain.ports import Chunk, IndexProgress
from strata.core_memory.files.index_sync import FileIndexSync
from strata.core_memory.files.ingest import (
    MAX_ATTEMPTS,
    ContentReader,
    Ingest,
    IngestOptions,
)
from strata.core_memory.files.leases import LeaseLostError, while_held
from strata.core_memory.files.store.contents import ContentStore, TextPage
from strata.core_memory.files.store.queue import FileQueue, WaitingFile
from strata.core_memory.files.text_extraction.reader import FileReader
from strata.protocol.errors import StrataError, UnavailableError
from strata.shared.auth import TokenSigner
from strata.shared.channels import ChannelFactory, services_of
from strata.shared.db import Database
from strata.shared.server import serving
from strata.standalone.ports import ReservedPort

# Some hundred pages of text: reading and sending take long enough to kill the process meanwhile.
BIG_TEXT = "".join(f"Line {n} tells of lighthouse number {n}.\n" for n in range(400_000)).encode()

# Its binary data begins after the bytes that are checked during the upload.
UNREADABLE = b"text " * 10_000 + b"\x00"


class Stores:
    """The stores of the worker, without the worker."""

    def __init__(self, database: Database, worker: Database) -> None:
        self.queue = FileQueue(database, worker)
        self.contents = ContentStore(database)

    def reading(self) -> ContentReader:
        return ContentReader(self.queue, self.contents, FileReader(), lease=60)

    def replica(self) -> Ingest:
        indexing = FileIndexSync(self.queue, self.contents, None, lease=60)
        return Ingest(self.reading(), indexing, self.queue, IngestOptions(poll=0.05))


class DroppingIndex(ArchivalFileIndex):
    """The index of files; drops one file while its chunks are sent."""

    def __init__(self, services: Services, dropped_id: str) -> None:
        super().__init__(services.network.channel("archival"), TokenSigner(services.worker_keys[0]))
        self._database_url = services.archival_urls.admin_url
        self._dropped_id = dropped_id

    async def index(
        self,
        project_id: str,
        folder_id: str,
        file_id: str,
        chunks: AsyncIterable[Sequence[Chunk]],
    ) -> int:
        if file_id == self._dropped_id:
            chunks = self._dropped(project_id, chunks)
        return await super().index(project_id, folder_id, file_id, chunks)

    async def _dropped(
        self, project_id: str, chunks: AsyncIterable[Sequence[Chunk]]
    ) -> AsyncIterator[Sequence[Chunk]]:
        connection = await asyncpg.connect(self._database_url)
        try:
            begun = "SELECT count(*) FROM archival.chunk_sets WHERE file_id = $1"
            async with asyncio.timeout(30):
                while not await connection.fetchval(begun, self._dropped_id):
                    await asyncio.sleep(0.02)
        finally:
            await connection.close()
        await self.drop(project_id, file_ids=[self._dropped_id])
        async for some in chunks:
            yield some


class SlowlyDroppingIndex(ArchivalFileIndex):
    """The index of files; calls a function before files are dropped."""

    def __init__(self, services: Services, before: Callable[[], Awaitable[None]]) -> None:
        super().__init__(services.network.channel("archival"), TokenSigner(services.worker_keys[0]))
        self._before = before

    async def drop(
        self, project_id: str, *, file_ids: Sequence[str] = (), folder_ids: Sequence[str] = ()
    ) -> None:
        await self._before()
        await super().drop(project_id, file_ids=file_ids, folder_ids=folder_ids)


@pytest.fixture
async def stores(services: Services) -> AsyncIterator[Stores]:
    async with AsyncExitStack() as stack:
        database = Database(services.core_urls.service_url, pool_size=6)
        stack.push_async_callback(database.close)
        worker = Database(services.core_urls.worker_url, pool_size=6)
        stack.push_async_callback(worker.close)
        yield Stores(database, worker)


@pytest.fixture
async def quiet(services: Services) -> Services:
    """The services without a worker."""
    await services.start_core_memory(worker_database_url="")
    return services


def page(number: int) -> TextPage:
    return TextPage(number, number + 1, 1, f"line {number + 1}")


async def test_worker_without_its_lease_writes_nothing(
    quiet: Services, stores: Stores, admin: Admin
) -> None:
    data = b"line 1\nline 2"
    file = await quiet.upload(await quiet.folder(), "a.txt", data)
    slow = await stores.queue.claim_content(0.0)
    assert slow is not None
    project, content = slow.project_id, slow.content
    assert await stores.contents.put_pages(project, content, [page(0)], attempt=slow.attempt)

    quick = await stores.queue.claim_content(60.0)
    assert quick is not None
    assert (quick.content, quick.attempt) == (content, 2)
    assert await stores.contents.put_pages(project, content, [page(0)], attempt=quick.attempt)

    assert not await stores.queue.hold_content(slow, 60.0)
    assert not await stores.contents.put_pages(project, content, [page(1)], attempt=slow.attempt)
    ended = {"attempt": slow.attempt, "line_count": 9, "char_count": 9}
    assert not await stores.contents.readable(project, content, **ended)
    assert not await stores.contents.unreadable(project, content, "no", attempt=slow.attempt)
    await stores.queue.release_content(slow, counted=False)
    assert await stores.queue.claim_content(60.0) is None

    assert await stores.contents.put_pages(project, content, [page(1)], attempt=quick.attempt)
    ended = {"attempt": quick.attempt, "line_count": 2, "char_count": 13}
    assert await stores.contents.readable(project, content, **ended)
    assert await admin.text(data) == ["line 1", "line 2"]
    read = await quiet.file(file.id)
    assert (read.state, read.line_count) == (pb.FILE_STATE_INDEXING, 2)


async def test_a_cancelled_reading_attempt_is_not_counted(quiet: Services, stores: Stores) -> None:
    await quiet.upload(await quiet.folder(), "a.pdf", samples.endless_pdf())
    reading = asyncio.create_task(stores.reading().read_next())
    await eventually(lambda: bool(descendants("strata.core_memory.files.text_extraction.child")))
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    again = await stores.queue.claim_content(60.0)
    assert again is not None
    assert again.attempt == 1


def full_disk(**_: Any) -> BinaryIO:
    """A file to which every write fails with ENOSPC."""
    return Path("/dev/full").open("w+b")


async def test_a_full_disk_is_not_counted_as_an_attempt_at_reading(
    quiet: Services, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    await quiet.upload(await quiet.folder(), "a.pdf", samples.endless_pdf())
    monkeypatch.setattr("strata.core_memory.files.ingest.tempfile.TemporaryFile", full_disk)
    for _ in range(MAX_ATTEMPTS + 1):
        with pytest.raises(UnavailableError, match="No space left on device"):
            await stores.reading().read_next()
    again = await stores.queue.claim_content(60.0)
    assert again is not None
    assert again.attempt == 1


async def test_replicas_read_every_file_once(quiet: Services, stores: Stores, admin: Admin) -> None:
    folder = await quiet.folder()
    files = [await quiet.upload(folder, f"{n}.txt", f"file {n}".encode()) for n in range(60)]
    replicas = [asyncio.create_task(stores.replica().run()) for _ in range(3)]
    for file in files:
        await quiet.until(file.id, lambda file: file.state == pb.FILE_STATE_INDEXING)
    for replica in replicas:
        replica.cancel()
    await asyncio.gather(*replicas, return_exceptions=True)
    assert await admin.value("SELECT count(*) FROM core_memory.contents WHERE attempts = 1") == 60
    assert await admin.value("SELECT count(*) FROM core_memory.content_pages") == 60


async def test_a_file_deleted_while_it_is_sent_does_not_pause_the_work(
    quiet: Services, stores: Stores
) -> None:
    await quiet.start_archival()
    folder = await quiet.folder()
    gone = await quiet.upload(folder, "gone.txt", b"The dog leaves.")
    assert await stores.reading().read_next()
    kept = await quiet.upload(folder, "kept.txt", b"The cat stays.")
    assert await stores.reading().read_next()
    index = DroppingIndex(quiet, gone.id)
    indexing = FileIndexSync(stores.queue, stores.contents, index, lease=60)
    # An error would pause the work for the files of all projects.
    assert [await indexing.send_next(), await indexing.send_next()] == [True, True]
    assert await quiet.progress(gone.id) is None
    assert await quiet.progress(kept.id) is not None


async def test_a_file_that_became_another_one_is_sent_again(
    quiet: Services, stores: Stores
) -> None:
    folder = await quiet.folder()
    file = await quiet.upload(folder, "a.txt", b"old")
    assert await stores.reading().read_next()
    claim = await stores.queue.claim_file(60.0)
    assert claim is not None
    assert await stores.queue.claim_file(60.0) is None
    await quiet.upload(folder, "a.txt", b"new", replace=True)
    assert not await stores.queue.hold_file(claim, 60.0)
    assert await stores.reading().read_next()
    # Archival may still be receiving the old text: the new text is sent after that.
    assert await stores.queue.claim_file(60.0) is None
    await stores.queue.sent(claim, 1)
    now = await stores.queue.claim_file(60.0)
    assert now is not None
    assert (now.file_id, now.content) == (file.id, hashlib.sha256(b"new").hexdigest())


async def test_progress_of_an_earlier_content_is_ignored(quiet: Services, stores: Stores) -> None:
    folder = await quiet.folder()
    file = await quiet.upload(folder, "a.txt", b"text")
    assert await stores.reading().read_next()
    claim = await stores.queue.claim_file(60.0)
    assert claim is not None
    await stores.queue.sent(claim, 4)
    (waiting,) = await stores.queue.waiting(("", ""), 10)
    assert await stores.queue.waiting((waiting.project_id, waiting.file_id), 10) == []
    earlier = WaitingFile(waiting.project_id, waiting.file_id, "0" * 64)
    done = {file.id: IndexProgress(4, 4)}
    assert not await stores.queue.progress(claim.project_id, [earlier], done)
    half = {file.id: IndexProgress(4, 2)}
    assert await stores.queue.progress(claim.project_id, [waiting], half)
    assert (await quiet.file(file.id)).index_progress == 0.5
    assert await stores.queue.progress(claim.project_id, [waiting], done)
    assert (await quiet.file(file.id)).state == pb.FILE_STATE_READY


async def test_dropped_file_is_dropped_again_after_its_last_lease(
    quiet: Services, stores: Stores, admin: Admin
) -> None:
    file = await quiet.upload(await quiet.folder(), "a.txt", b"text")
    assert await stores.reading().read_next()
    assert await stores.queue.claim_file(60.0) is not None
    await quiet.files.DeleteFile(pb.DeleteFileRequest(file_id=file.id))
    first = await stores.queue.claim_dropped(60.0, 10)
    assert [(dropped_file.id, dropped_file.is_last) for dropped_file in first] == [(file.id, False)]
    assert await stores.queue.claim_dropped(60.0, 10) == []
    await stores.queue.dropped(first)
    assert await stores.queue.claim_dropped(60.0, 10) == []
    await admin.value(
        "UPDATE core_memory.dropped_files"
        " SET keep_until = keep_until - interval '1 min', due_time = due_time - interval '1 min'"
    )
    last = await stores.queue.claim_dropped(60.0, 10)
    assert [(dropped_file.id, dropped_file.is_last) for dropped_file in last] == [(file.id, True)]
    await stores.queue.dropped(last)
    assert await admin.value("SELECT count(*) FROM core_memory.dropped_files") == 0


@pytest.mark.parametrize("how", ["sent", "lease lost", "while it is dropped"])
async def test_a_deleted_file_is_dropped_again_if_its_sender_was_suspended(
    quiet: Services, stores: Stores, admin: Admin, how: str
) -> None:
    file = await quiet.upload(await quiet.folder(), "a.txt", b"text")
    assert await stores.reading().read_next()
    # Its lease has expired when the file is deleted.
    claim = await stores.queue.claim_file(0.0)
    assert claim is not None
    await quiet.files.DeleteFile(pb.DeleteFileRequest(file_id=file.id))
    last = await stores.queue.claim_dropped(60.0, 10)
    assert [(dropped_file.id, dropped_file.is_last) for dropped_file in last] == [(file.id, True)]
    if how != "while it is dropped":
        await stores.queue.dropped(last)
        assert await stores.queue.claim_dropped(60.0, 10) == []
    # It has sent chunks after the file was removed from the index.
    if how == "lease lost":
        assert not await stores.queue.hold_file(claim, 60.0)
        await stores.queue.send_again(claim.project_id, claim.file_id)
    else:
        await stores.queue.sent(claim, 1)
    if how == "while it is dropped":
        await stores.queue.dropped(last)
    again = await stores.queue.claim_dropped(60.0, 10)
    assert [(dropped_file.id, dropped_file.is_last) for dropped_file in again] == [(file.id, True)]
    await stores.queue.dropped(again)
    assert await admin.value("SELECT count(*) FROM core_memory.dropped_files") == 0


async def test_an_unreadable_file_is_dropped_again_if_its_sender_was_suspended(
    quiet: Services, stores: Stores, admin: Admin
) -> None:
    folder = await quiet.folder()
    file = await quiet.upload(folder, "a.txt", b"text")
    assert await stores.reading().read_next()
    # Its lease has expired when the file is replaced.
    claim = await stores.queue.claim_file(0.0)
    assert claim is not None
    await quiet.upload(folder, "a.txt", UNREADABLE, replace=True)
    assert await stores.reading().read_next()
    await stores.queue.dropped(await stores.queue.claim_dropped(60.0, 10))
    assert await admin.value("SELECT count(*) FROM core_memory.dropped_files") == 0
    # It has sent chunks of the old text after the file was removed from the index.
    await stores.queue.sent(claim, 1)
    assert await admin.value("SELECT id FROM core_memory.dropped_files") == file.id
    assert (await quiet.file(file.id)).state == pb.FILE_STATE_FAILED
    await quiet.files.DeleteFile(pb.DeleteFileRequest(file_id=file.id))
    assert await admin.value("SELECT id FROM core_memory.dropped_files") == file.id


async def test_an_unreadable_file_that_is_replaced_is_not_dropped(
    quiet: Services, stores: Stores, admin: Admin
) -> None:
    folder = await quiet.folder()
    await quiet.upload(folder, "a.txt", UNREADABLE)
    assert await stores.reading().read_next()
    assert await admin.value("SELECT count(*) FROM core_memory.dropped_files") == 1
    await quiet.upload(folder, "a.txt", b"The cat stays.", replace=True)
    assert await admin.value("SELECT count(*) FROM core_memory.dropped_files") == 0


async def test_an_unreadable_file_that_is_replaced_while_it_is_dropped_is_sent_again(
    quiet: Services, stores: Stores, admin: Admin
) -> None:
    await quiet.start_archival()
    folder = await quiet.folder()
    file = await quiet.upload(folder, "a.txt", UNREADABLE)
    assert await stores.reading().read_next()

    async def replace() -> None:
        await quiet.upload(folder, "a.txt", b"The cat stays.", replace=True)
        assert await stores.reading().read_next()
        assert await indexing.send_next()
        assert await quiet.progress(file.id) is not None

    index = SlowlyDroppingIndex(quiet, replace)
    indexing = FileIndexSync(stores.queue, stores.contents, index, lease=60)
    assert await indexing.drop_next()
    assert await quiet.progress(file.id) is None
    assert await indexing.send_next()
    assert await quiet.progress(file.id) is not None
    assert await admin.value("SELECT count(*) FROM core_memory.dropped_files") == 0


async def test_parts_of_an_abandoned_upload_are_removed(
    quiet: Services, stores: Stores, admin: Admin
) -> None:
    file = await quiet.upload(await quiet.folder(), "a.txt", b"kept")
    put = (
        "INSERT INTO core_memory.content_parts (project_id, content_hash, part, data, create_time)"
        " VALUES ('project-1', $1, 0, 'x', now() - $2::interval)"
    )
    await admin.value(put, "upload-old", timedelta(hours=2))
    await admin.value(put, "upload-new", timedelta(minutes=5))
    assert await stores.queue.delete_abandoned_uploads(3600.0) == 1
    assert await admin.value("SELECT count(*) FROM core_memory.content_parts") == 2
    assert await stores.reading().read_next()
    assert (await quiet.file(file.id)).line_count == 1


async def test_fifty_megabytes_in_one_line_are_read_without_being_held(
    quiet: Services, stores: Stores, admin: Admin
) -> None:
    data = b"x" * (50 * MIB)
    await quiet.upload(await quiet.folder(), "a.txt", data)
    gc.collect()
    process = psutil.Process()
    before = peak = process.memory_info().rss
    reading = asyncio.create_task(stores.reading().read_next())
    while not reading.done():
        peak = max(peak, process.memory_info().rss)
        await asyncio.sleep(0.005)
    assert await reading
    assert await admin.value("SELECT char_count FROM core_memory.contents") == 50 * MIB + 6553
    assert peak - before < 30 * MIB


async def test_work_is_cancelled_when_its_lease_is_lost() -> None:
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    answers = iter([True, True, False])

    async def hold() -> bool:
        return next(answers)

    with pytest.raises(LeaseLostError):
        await while_held(work(), hold, 0.03)
    assert ended.is_set()
    assert next(answers, None) is None


def core_memory_process(
    services: Services, port: int, archival: str, *, lease: float = 60.0
) -> AbstractContextManager[int]:
    """Runs core memory as a separate process; yields its process id.

    Files that it processes when it is killed can be claimed after `lease` seconds. A service that
    has to finish its work needs a longer lease, for a slow machine.
    """
    values = {
        **service_settings(services.core_urls, services.keys.public, port),
        "WORKER_TOKEN_KEY": services.worker_keys[0],
        "TARGETS__ARCHIVAL": archival,
    }
    constants = {
        "strata.core_memory.main.FILE_POLL_S": 0.1,
        "strata.core_memory.main.FILE_LEASE_S": lease,
    }
    return running_service("core_memory", values, constants)


async def until_up(files: Any) -> None:
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(StrataError):
                await files.ListFolders(pb.ListFoldersRequest())
                return
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("moment", ["reading", "converting"])
async def test_work_resumes_after_a_kill(services: Services, admin: Admin, moment: str) -> None:
    data = {
        "reading": BIG_TEXT,
        "converting": samples.pdf(*[[f"page {p} line {n}" for n in range(30)] for p in range(400)]),
    }[moment]
    # The service is blocked at this page: some pages are stored, or none.
    page = {"reading": 100, "converting": 0}[moment]
    async with AsyncExitStack() as stack:
        # Reserved for the whole test, also while no process listens.
        port = stack.enter_context(ReservedPort()).number
        factory = ChannelFactory()
        stack.push_async_callback(factory.close)
        channel = factory.channel(f"127.0.0.1:{port}", services_of("core_memory"))
        services.files = pb_grpc.FileServiceStub(channel)
        async with gate(
            services.core_urls.admin_url,
            "core_memory.content_pages",
            "INSERT",
            f"NEW.page >= {page}",
        ):
            with core_memory_process(services, port, "127.0.0.1:1", lease=1.0) as pid:
                await until_up(services.files)
                folder = await services.folder()
                name = "a.pdf" if moment == "converting" else "a.txt"
                file = await services.upload(folder, name, data)
                await until_busy(admin, moment)
                os.kill(pid, signal.SIGKILL)
        assert await admin.value("SELECT state FROM core_memory.files") == "parsing"

        with core_memory_process(services, port, "127.0.0.1:1"):
            await until_up(services.files)
            read = await services.until(file.id, lambda file: file.state == pb.FILE_STATE_INDEXING)
        lines = await admin.text(data)
        assert lines is not None
        assert len(lines) == read.line_count
        if moment == "converting":
            assert [line for line in lines if line][-1] == "page 399 line 29"
        else:
            assert lines == data.decode().splitlines()


async def until_busy(admin: Admin, moment: str) -> None:
    """Waits until the service is processing the file."""
    busy = {
        "reading": "SELECT count(*) FROM core_memory.content_pages",
        "converting": "SELECT attempts FROM core_memory.contents",
    }[moment]
    await eventually(lambda: admin.value(busy))


async def test_all_chunks_are_sent_again_after_a_kill_while_sending(
    services: Services, admin: Admin
) -> None:
    data = BIG_TEXT[: BIG_TEXT.index(b"\n", 3_000_000) + 1]
    chunker = Chunker()
    chunks = [*chunker.feed(data.decode().splitlines()), *chunker.end()]
    assert len(chunks) > 1_000
    async with AsyncExitStack() as stack:
        # Reserved for the whole test, also while no process listens.
        port = stack.enter_context(ReservedPort()).number
        archival = await stack.enter_async_context(
            serving(build_archival, services.archival_settings(port=0, drain_s=0, grace_s=0.1))
        )
        factory = ChannelFactory()
        stack.push_async_callback(factory.close)
        channel = factory.channel(f"127.0.0.1:{port}", services_of("core_memory"))
        services.files = pb_grpc.FileServiceStub(channel)
        services.index = index_grpc.FileIndexServiceStub(
            factory.channel(archival.address, services_of("archival"))
        )
        # Archival stores some of the pieces, and is blocked before the rest.
        stored = "SELECT count(*) FROM archival.file_chunks"
        async with gate(
            services.archival_urls.admin_url,
            "archival.file_chunks",
            "INSERT",
            "NEW.ordinal >= 1000",
        ) as connection:
            with core_memory_process(services, port, archival.address, lease=1.0) as pid:
                await until_up(services.files)
                file = await services.upload(await services.folder(), "a.txt", data)
                await eventually(lambda: connection.fetchval(stored))
                os.kill(pid, signal.SIGKILL)
        assert await admin.value("SELECT chunk_count FROM core_memory.files") == 0
        with core_memory_process(services, port, archival.address):
            await until_up(services.files)
            await services.until(file.id, lambda file: file.index_progress > 0)
        progress = await services.progress(file.id)
        assert progress is not None
        assert progress[0] == len(chunks)
        assert await admin.value("SELECT chunk_count FROM core_memory.files") == len(chunks)
