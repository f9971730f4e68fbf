"""The contract of the stores of folders, files and uploads, on PostgreSQL."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import asyncpg
import pytest
import pytest_asyncio
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from strata.core_memory.domain.core_memory import Receipt
from strata.core_memory.domain.ports import ReplayedError, Request, Unit
from strata.core_memory.files.domain.files import (
    PART_BYTES,
    File,
    FileState,
    Folder,
    NewFile,
    NewFolder,
)
from strata.core_memory.files.store.contents import ContentStore, TextPage
from strata.core_memory.files.store.files import PostgresFileStore
from strata.core_memory.files.store.folders import PostgresFolderStore
from strata.core_memory.files.store.queue import FileQueue
from strata.core_memory.files.store.uploads import PostgresUploadStore, _Finish
from strata.core_memory.migrations import MIGRATIONS
from strata.core_memory.store import PostgresBlockStore
from strata.shared import context
from strata.shared.clock import SystemClock
from strata.shared.context import Caller, RequestContext, current_project
from strata.shared.db import Database
from strata.shared.errors import AlreadyExistsError, NotFoundError, Reason, UnavailableError
from strata.shared.ids import new_id

TABLES = ("folders", "contents", "content_parts", "content_pages", "files", "dropped_files")
REMAINING_FILE = {"folders": 1, "contents": 1, "content_parts": 1, "files": 1}
NO_RECEIPT: Receipt[Any] = Receipt(Request("", b""), lambda _: b"")


def as_project() -> RequestContext:
    return RequestContext(caller=Caller(new_id("org"), new_id("project"), "key-1"))


@pytest.fixture(autouse=True)
def project() -> Iterator[None]:
    with context.use(as_project()):
        yield


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def urls(databases: Any) -> Any:
    return await databases.of(MIGRATIONS)


@pytest.fixture
async def database(urls: Any) -> AsyncIterator[Database]:
    database = Database(urls.service_url)
    yield database
    await database.close()


@pytest.fixture
async def worker(urls: Any) -> AsyncIterator[Database]:
    database = Database(urls.worker_url, pool_size=2)
    yield database
    await database.close()


class Stores:
    """All stores over one database, and short words for what tests do with them."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.folders = PostgresFolderStore(database, SystemClock())
        self.files = PostgresFileStore(database)
        self.uploads = PostgresUploadStore(database, SystemClock())
        self.contents = ContentStore(database)

    async def folder(self, name: str = "notes", receipt: Any = NO_RECEIPT) -> Folder:
        return await self.folders.create(receipt, NewFolder(name, "what", "how"))

    async def upload(
        self,
        folder: Folder,
        name: str = "a.txt",
        data: bytes = b"hello\n",
        *,
        replacing: bool = False,
        receipt: Receipt[File] = NO_RECEIPT,
        lose: int = 0,
    ) -> File:
        upload, parts = new_id("upload"), 0
        for start in range(0, len(data), PART_BYTES):
            await self.uploads.put(upload, parts, data[start : start + PART_BYTES])
            parts += 1
        new = self.new_file(folder, name, data)
        new = replace(new, upload_id=upload, part_count=parts + lose, replace=replacing)
        try:
            return await self.uploads.finish(receipt, new)
        except BaseException:
            await self.uploads.discard(upload)
            raise

    def new_file(self, folder: Folder, name: str, data: bytes) -> NewFile:
        return NewFile(
            upload_id="",
            part_count=1,
            folder_id=folder.id,
            name=name,
            media_type="text/plain",
            format="text",
            content_key=hashlib.sha256(data).hexdigest(),
            size_bytes=len(data),
            replace=False,
        )

    async def is_waiting(self) -> bool:
        """Whether somebody waits for a lock in this database."""
        statement = text(
            "SELECT count(*) FROM pg_locks WHERE NOT granted AND (database IS NULL"
            " OR database = (SELECT oid FROM pg_database WHERE datname = current_database()))"
        )
        async with self.database.transaction() as connection:
            return bool((await connection.execute(statement)).scalar_one())

    async def read(self, file: File, lines: str = "hello") -> None:
        count = len(lines.splitlines())
        page = TextPage(0, 1, count, lines)
        where = current_project(), file.content_key
        assert await self.contents.put_pages(*where, [page], attempt=0)
        assert await self.contents.readable(
            *where, attempt=0, line_count=count, char_count=len(lines)
        )

    async def got(self, file: File) -> File:
        found = await self.files.get(file.id)
        assert found is not None
        return found

    async def revision(self, folder: Folder) -> int:
        statement = text("SELECT revision FROM core_memory.folders WHERE id = :id")
        async with self.database.transaction() as connection:
            return int((await connection.execute(statement, {"id": folder.id})).scalar_one())

    async def counts(self) -> dict[str, int]:
        """Rows of the project by table, without the tables that have none."""
        async with self.database.transaction() as connection:
            counts = {
                table: (
                    await connection.execute(text(f"SELECT count(*) FROM core_memory.{table}"))
                ).scalar_one()
                for table in TABLES
            }
        return {table: count for table, count in counts.items() if count}

    async def agent(self) -> str:
        agent_id = new_id("agent")

        async def begin(unit: Unit) -> bool:
            return await unit.begin_agent(agent_id)

        await PostgresBlockStore(self.database).mutate(Request("", b""), begin)
        return agent_id

    async def open(self, agent_id: str, file: File, start: int = 1, end: int = 0) -> None:
        statement = text(
            "INSERT INTO core_memory.open_files"
            " VALUES (:project, :agent, :file, :start, :end, now())"
        )
        bound = {"agent": agent_id, "file": file.id, "start": start, "end": end}
        async with self.database.transaction() as connection:
            await connection.execute(statement, {"project": current_project(), **bound})


@pytest.fixture
async def stores(database: Database) -> Stores:
    return Stores(database)


def receipt_of(request_id: str, digest: bytes = b"same") -> Receipt[Any]:
    return Receipt(Request(request_id, digest), lambda made: made.id.encode())


async def test_a_folder_comes_back_as_it_was_made(stores: Stores) -> None:
    folder = await stores.folder('Plans & "drafts"')
    assert await stores.folders.get(folder.id) == folder
    assert (folder.description, folder.instructions, folder.file_count) == ("what", "how", 0)
    assert await stores.folders.get(new_id("folder")) is None


async def test_folders_are_listed_by_name_in_pages(stores: Stores) -> None:
    for name in ("b", "C", "a", "ä"):
        await stores.folder(name)
    assert [each.name for each in await stores.folders.of_project("", 3)] == ["C", "a", "b"]
    assert [each.name for each in await stores.folders.of_project("b", 3)] == ["ä"]


async def test_a_folder_name_is_taken_once_in_a_project(stores: Stores) -> None:
    await stores.folder("a")
    with pytest.raises(AlreadyExistsError) as refused:
        await stores.folder("a")
    assert refused.value.reason is Reason.NAME_TAKEN
    with context.use(as_project()):
        await stores.folder("a")


async def test_a_folder_is_made_once_for_a_request(stores: Stores) -> None:
    request = new_id("request")
    results = await asyncio.gather(
        *(stores.folder("a", receipt_of(request)) for _ in range(6)), return_exceptions=True
    )
    made = [each for each in results if isinstance(each, Folder)]
    replayed = [each for each in results if isinstance(each, ReplayedError)]
    assert (len(made), len(replayed)) == (1, 5)
    assert {each.response for each in replayed} == {made[0].id.encode()}
    with pytest.raises(AlreadyExistsError) as refused:
        await stores.folder("b", receipt_of(request, b"other"))
    assert refused.value.reason is Reason.REQUEST_ID_REUSED


async def test_an_uploaded_file_is_there_with_its_bytes(stores: Stores) -> None:
    data = bytes(range(256)) * 10_000
    folder = await stores.folder()
    before = await stores.revision(folder)
    file = await stores.upload(folder, "b.txt", data)
    assert await stores.got(file) == file
    assert (file.full_name, file.size_bytes, file.state) == (
        "notes/b.txt",
        len(data),
        FileState.PARSING,
    )
    assert (file.content_hash, file.line_count) == (hashlib.sha256(data).hexdigest(), 0)
    stored = [part async for part in stores.contents.parts(current_project(), file.content_key)]
    assert b"".join(stored) == data
    assert [len(part) for part in stored[:-1]] == [PART_BYTES] * (len(stored) - 1)
    assert await stores.revision(folder) == before + 1
    found = await stores.folders.get(folder.id)
    assert found is not None
    assert found.file_count == 1


async def test_the_same_bytes_are_stored_once_and_read_once(stores: Stores) -> None:
    one, other = await stores.folder("one"), await stores.folder("other")
    first = await stores.upload(one, "a.txt")
    await stores.read(first, "hello")
    second = await stores.upload(other, "b.txt")
    assert second.id != first.id
    assert (second.state, second.line_count) == (FileState.INDEXING, 1)
    counts = await stores.counts()
    assert (counts["contents"], counts["content_parts"], counts["files"]) == (1, 1, 2)


async def test_the_same_file_again_is_the_same_file(stores: Stores) -> None:
    folder = await stores.folder()
    file = await stores.upload(folder)
    revision = await stores.revision(folder)
    assert await stores.upload(folder) == file
    assert await stores.upload(folder, replacing=True) == file
    assert await stores.revision(folder) == revision
    counts = await stores.counts()
    assert (counts["files"], counts["content_parts"]) == (1, 1)


async def test_another_file_of_the_name_needs_to_replace(stores: Stores) -> None:
    folder = await stores.folder()
    file = await stores.upload(folder)
    await stores.read(file)
    with pytest.raises(AlreadyExistsError) as refused:
        await stores.upload(folder, data=b"other")
    assert refused.value.reason is Reason.NAME_TAKEN
    assert (await stores.got(file)).content_hash == file.content_hash
    revision = await stores.revision(folder)
    replaced = await stores.upload(folder, data=b"other", replacing=True)
    assert (replaced.id, replaced.state) == (file.id, FileState.PARSING)
    assert await stores.revision(folder) == revision + 1
    assert await stores.counts() == REMAINING_FILE


async def test_what_was_replaced_stays_as_long_as_another_file_has_it(stores: Stores) -> None:
    folder = await stores.folder()
    file = await stores.upload(folder, "a.txt")
    await stores.upload(folder, "b.txt")
    await stores.upload(folder, "a.txt", b"other", replacing=True)
    assert (await stores.counts())["contents"] == 2
    stored = [part async for part in stores.contents.parts(current_project(), file.content_key)]
    assert stored == [b"hello\n"]


async def test_an_upload_is_done_once_for_a_request(stores: Stores) -> None:
    folder, request = await stores.folder(), new_id("request")
    results = await asyncio.gather(
        *(stores.upload(folder, receipt=receipt_of(request)) for _ in range(6)),
        return_exceptions=True,
    )
    made = [each for each in results if isinstance(each, File)]
    assert len(made) == 1
    assert [each.response for each in results if isinstance(each, ReplayedError)] == [
        made[0].id.encode()
    ] * 5
    assert await stores.counts() == REMAINING_FILE
    with pytest.raises(AlreadyExistsError) as refused:
        await stores.upload(folder, "c.txt", receipt=receipt_of(request, b"other"))
    assert refused.value.reason is Reason.REQUEST_ID_REUSED


async def test_the_same_bytes_at_once_in_many_folders_are_stored_once(stores: Stores) -> None:
    folders = [await stores.folder(f"f{number}") for number in range(8)]
    await asyncio.gather(*(stores.upload(folder, data=b"x" * 3_000_000) for folder in folders))
    counts = await stores.counts()
    assert (counts["files"], counts["contents"], counts["content_parts"]) == (8, 1, 3)


async def test_files_that_swap_their_bytes_do_not_lose_them(stores: Stores) -> None:
    folders = [await stores.folder(f"f{number}") for number in range(2)]
    texts = [b"one", b"two"]
    for folder, data in zip(folders, texts, strict=True):
        await stores.upload(folder, data=data)
    for turn in range(10):
        data = texts if turn % 2 else texts[::-1]
        await asyncio.gather(
            *(
                stores.upload(folder, data=each, replacing=True)
                for folder, each in zip(folders, data, strict=True)
            )
        )
        counts = await stores.counts()
        assert (counts["files"], counts["contents"], counts["content_parts"]) == (2, 2, 2)


async def test_an_upload_to_a_folder_that_is_not_there_leaves_nothing(stores: Stores) -> None:
    folder = await stores.folder()
    await stores.folders.delete(folder.id)
    before = await stores.counts()
    with pytest.raises(NotFoundError) as refused:
        await stores.upload(folder)
    assert refused.value.reason is Reason.FILE_NOT_FOUND
    assert await stores.counts() == before


async def test_an_upload_that_lost_parts_makes_no_file(stores: Stores) -> None:
    folder = await stores.folder()
    with pytest.raises(UnavailableError):
        await stores.upload(folder, lose=1)
    assert await stores.counts() == {"folders": 1}


async def test_an_empty_file_has_no_parts(stores: Stores) -> None:
    folder = await stores.folder()
    file = await stores.upload(folder, data=b"")
    assert file.size_bytes == 0
    assert await stores.counts() == {"folders": 1, "contents": 1, "files": 1}


async def test_bytes_that_could_not_be_read_get_another_chance(stores: Stores) -> None:
    folder = await stores.folder()
    file = await stores.upload(folder)
    sibling = await stores.upload(folder, "b.txt")
    assert await stores.contents.unreadable(
        current_project(), file.content_key, "It is broken.", attempt=0
    )
    failed = await stores.got(file)
    assert (failed.state, failed.error) == (FileState.FAILED, "It is broken.")
    again = await stores.upload(folder)
    assert (again.id, again.state, again.error) == (file.id, FileState.PARSING, "")
    await stores.read(again)
    for each in (file, sibling):
        assert (await stores.got(each)).state is FileState.INDEXING


async def test_reading_ends_once_and_shows_in_every_folder(stores: Stores) -> None:
    one, other = await stores.folder("one"), await stores.folder("other")
    first, second = await stores.upload(one), await stores.upload(other)
    before = [await stores.revision(each) for each in (one, other)]
    await stores.read(first, "a\nb")
    for each in (first, second):
        got = await stores.got(each)
        assert (got.state, got.line_count) == (FileState.INDEXING, 2)
    after = [await stores.revision(each) for each in (one, other)]
    assert after == [revision + 1 for revision in before]
    project_id = current_project()
    assert not await stores.contents.unreadable(project_id, first.content_key, "late", attempt=0)
    pages = [page async for page in stores.contents.pages(project_id, first.content_key)]
    assert pages == [TextPage(0, 1, 2, "a\nb")]


async def test_a_deleted_file_is_gone_with_all_that_only_it_needs(stores: Stores) -> None:
    folder = await stores.folder()
    file, other = await stores.upload(folder), await stores.upload(folder, "b.txt", b"b")
    await stores.read(file)
    revision = await stores.revision(folder)
    await stores.files.delete(file.id)
    assert await stores.files.get(file.id) is None
    assert await stores.counts() == {
        **REMAINING_FILE,
        "dropped_files": 1,
    }
    assert await stores.revision(folder) == revision + 1
    assert await stores.files.get(other.id) == other
    with pytest.raises(NotFoundError) as refused:
        await stores.files.delete(file.id)
    assert refused.value.reason is Reason.FILE_NOT_FOUND


async def test_a_deleted_folder_takes_its_files_along(stores: Stores) -> None:
    folder, other = await stores.folder("a"), await stores.folder("b")
    await stores.upload(folder, "1.txt")
    await stores.upload(folder, "2.txt", b"two")
    kept = await stores.upload(other, "1.txt")
    agent = await stores.agent()
    await stores.folders.attach(agent, folder.id)
    await stores.folders.delete(folder.id)
    assert await stores.files.get(kept.id) == kept
    assert await stores.counts() == {
        **REMAINING_FILE,
        "dropped_files": 1,
    }
    assert await stores.folders.of_agent(agent, "", 10) == []
    with pytest.raises(NotFoundError):
        await stores.folders.delete(folder.id)


async def test_deletions_and_uploads_of_the_same_bytes_leave_nothing_half(stores: Stores) -> None:
    folders = [await stores.folder(f"f{number}") for number in range(4)]

    async def coming_and_going(folder: Folder) -> None:
        for _ in range(10):
            file = await stores.upload(folder, data=b"shared")
            stored = [part async for part in stores.contents.parts(project_id, file.content_key)]
            assert stored == [b"shared"]
            await stores.files.delete(file.id)

    project_id = current_project()
    await asyncio.gather(*(coming_and_going(folder) for folder in folders))
    assert await stores.counts() == {"folders": 4, "dropped_files": 40}


async def test_who_deletes_the_last_file_waits_for_who_adds_another(stores: Stores) -> None:
    one, other = await stores.folder("one"), await stores.folder("other")
    last = await stores.upload(one)
    new = replace(stores.new_file(other, "b.txt", b"hello\n"), upload_id=new_id("upload"))
    await stores.uploads.put(new.upload_id, 0, b"hello\n")
    async with stores.database.transaction() as connection:
        added = await _Finish(connection, new, SystemClock()).run()
        deleting = asyncio.create_task(stores.files.delete(last.id))
        async with asyncio.timeout(20):
            while not await stores.is_waiting():
                await asyncio.sleep(0.02)
    await deleting
    stored = [part async for part in stores.contents.parts(current_project(), added.content_key)]
    assert stored == [b"hello\n"]
    assert await stores.got(added) == added


async def test_files_are_listed_by_name_in_pages(stores: Stores) -> None:
    one, other = await stores.folder("b"), await stores.folder("a")
    for folder in (one, other):
        for name in ("2", "10", "1"):
            await stores.upload(folder, name)
    assert [each.name for each in await stores.files.of_folder(one.id, "", 2)] == ["1", "10"]
    assert [each.name for each in await stores.files.of_folder(one.id, "10", 2)] == ["2"]
    agent = await stores.agent()
    await stores.folders.attach(agent, one.id)
    await stores.folders.attach(agent, other.id)
    names = [each.full_name for each in await stores.files.of_agent(agent, ("", ""), 4)]
    assert names == ["a/1", "a/10", "a/2", "b/1"]
    names = [each.full_name for each in await stores.files.of_agent(agent, ("b", "1"), 4)]
    assert names == ["b/10", "b/2"]


async def test_folders_are_attached_and_detached_again_and_again(stores: Stores) -> None:
    folder, other, agent = await stores.folder("a"), await stores.folder("b"), await stores.agent()
    for _ in range(2):
        assert await stores.folders.attach(agent, folder.id) == folder
    await stores.folders.attach(agent, other.id)
    assert await stores.folders.of_agent(agent, "", 10) == [folder, other]
    file, kept = await stores.upload(folder), await stores.upload(other, data=b"1\n2\n3")
    await stores.open(agent, file)
    await stores.read(kept, "1\n2\n3")
    await stores.open(agent, kept, 2, 3)
    for _ in range(2):
        await stores.folders.detach(agent, folder.id)
    assert [each.id for each in await stores.folders.of_agent(agent, "", 10)] == [other.id]
    (window,) = await stores.files.open_of_agent(agent)
    assert (window.file_name, window.start_line, window.end_line) == ("b/a.txt", 2, 3)


async def test_only_folders_and_agents_that_there_are_can_be_attached(stores: Stores) -> None:
    folder, agent = await stores.folder(), await stores.agent()
    for change in (stores.folders.attach, stores.folders.detach):
        with pytest.raises(NotFoundError) as no_agent:
            await change(new_id("agent"), folder.id)
        assert no_agent.value.reason is Reason.AGENT_NOT_FOUND
        with pytest.raises(NotFoundError) as no_folder:
            await change(agent, new_id("folder"))
        assert no_folder.value.reason is Reason.FILE_NOT_FOUND


async def test_another_project_sees_and_changes_nothing(stores: Stores) -> None:
    folder, agent = await stores.folder(), await stores.agent()
    file = await stores.upload(folder)
    await stores.folders.attach(agent, folder.id)
    project_id = current_project()
    with context.use(as_project()):
        assert await stores.counts() == {}
        assert await stores.folders.get(folder.id) is None
        assert await stores.files.get(file.id) is None
        assert await stores.files.of_folder(folder.id, "", 10) == []
        assert await stores.files.of_agent(agent, ("", ""), 10) == []
        for attempt in (
            stores.folders.delete(folder.id),
            stores.files.delete(file.id),
            stores.folders.attach(agent, folder.id),
            stores.upload(folder, "b.txt"),
        ):
            with pytest.raises(NotFoundError):
                await attempt
        # Row-level security holds where a statement forgets the project.
        with pytest.raises(DBAPIError) as refused:
            async with stores.database.transaction() as connection:
                await connection.execute(
                    text(
                        "INSERT INTO core_memory.content_parts VALUES (:project, 'upload-1', 0, '')"
                    ),
                    {"project": project_id},
                )
        assert "row-level security" in str(refused.value)
        # The same bytes are a content of their own.
        await stores.upload(await stores.folder())
        assert (await stores.counts())["contents"] == 1
    assert await stores.got(file) == file


async def test_the_worker_reads_neither_names_nor_bytes_nor_text(
    stores: Stores, worker: Database
) -> None:
    await stores.upload(await stores.folder())
    for column, table in (
        ("name", "files"),
        ("data", "content_parts"),
        ("text", "content_pages"),
        ("name", "folders"),
        ("media_type", "contents"),
    ):
        with pytest.raises(DBAPIError) as refused:
            async with worker.system_transaction(read_only=True) as connection:
                await connection.execute(text(f"SELECT {column} FROM core_memory.{table}"))
        assert "permission denied" in str(refused.value)
    async with worker.system_transaction() as connection:
        gone = await connection.execute(text("DELETE FROM core_memory.content_parts"))
        assert gone.rowcount == 0


async def test_parts_of_a_broken_upload_are_found_by_the_worker(
    stores: Stores, worker: Database, urls: Any
) -> None:
    file = await stores.upload(await stores.folder())
    old, new = new_id("upload"), new_id("upload")
    for upload in (old, new):
        for part in range(3):
            await stores.uploads.put(upload, part, b"x")
    admin = await asyncpg.connect(urls.admin_url)
    try:
        await admin.execute(
            "UPDATE core_memory.content_parts SET create_time = now() - interval '3 hours'"
            " WHERE content_hash IN ($1, $2)",
            *(old, file.content_key),
        )
    finally:
        await admin.close()
    assert await FileQueue(stores.database, worker).forget_uploads(7200) == 3
    assert (await stores.counts())["content_parts"] == 3 + 1


@pytest.mark.parametrize("what", ["file", "folder"])
async def test_what_was_being_indexed_is_dropped_until_its_lease_has_ended(
    stores: Stores, worker: Database, what: str
) -> None:
    folder = await stores.folder()
    file = await stores.upload(folder)
    async with worker.system_transaction() as connection:
        lease = "UPDATE core_memory.files SET lease_until = now() + interval '9 s' WHERE id = :id"
        await connection.execute(text(lease), {"id": file.id})
    if what == "file":
        await stores.files.delete(file.id)
    else:
        await stores.folders.delete(folder.id)
    queue, dropped_id = FileQueue(stores.database, worker), file.id if what == "file" else folder.id
    (dropped,) = [
        each for each in await queue.claim_dropped(60, 500) if each.project_id == current_project()
    ]
    assert (dropped.id, dropped.is_last) == (dropped_id, False)


async def test_what_nobody_was_indexing_is_dropped_once(stores: Stores, worker: Database) -> None:
    folder = await stores.folder()
    file = await stores.upload(folder)
    await stores.files.delete(file.id)
    await stores.folders.delete(folder.id)
    dropped = await FileQueue(stores.database, worker).claim_dropped(60, 500)
    mine = [each for each in dropped if each.project_id == current_project()]
    assert {(each.id, each.is_last) for each in mine} == {(file.id, True), (folder.id, True)}
