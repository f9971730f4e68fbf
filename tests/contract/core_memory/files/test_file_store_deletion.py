"""Deletion, listing, attachment and tenancy: the contract of the stores of folders and files."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import asyncpg
import pytest

from callers import as_project
from file_stores import REMAINING_FILE, Stores
from polling import eventually
from sql_queries import execute
from strata.core_memory.files.domain.files import (
    Folder,
)
from strata.core_memory.files.store.queue import FileQueue
from strata.core_memory.files.store.uploads import _Finish
from strata.protocol.errors import NotFoundError, Reason
from strata.shared import context
from strata.shared.clock import SystemClock
from strata.shared.context import current_project
from strata.shared.db import Database, sql
from strata.shared.ids import new_id


async def test_deleting_a_file_deletes_the_content_that_no_other_file_uses(stores: Stores) -> None:
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


async def test_deleting_a_folder_deletes_its_files(stores: Stores) -> None:
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


async def test_large_contents_of_a_deleted_folder_are_left_to_the_worker(
    stores: Stores, worker: Database, urls: Any
) -> None:
    folder, other = await stores.folder("a"), await stores.folder("b")
    small, large, reused = [
        await stores.upload(folder, data=data, name=data.decode())
        for data in (b"small", b"large", b"reused")
    ]
    await stores.read(large)
    await execute(
        urls.admin_url,
        "UPDATE core_memory.contents SET size_bytes = 50000001 WHERE content_hash IN ($1, $2)",
        *(large.content_key, reused.content_key),
    )
    await stores.folders.delete(folder.id)
    counts = await stores.counts()
    assert (counts["contents"], counts["content_parts"]) == (2, 2)
    kept = await stores.upload(other, data=b"reused")
    queue = FileQueue(stores.database, worker)
    # There may be contents of other tests.
    while await queue.delete_next_content(60.0):
        pass
    assert await stores.counts() == {**REMAINING_FILE, "dropped_files": 1}
    assert await stores.got(kept) == kept
    stored = [part async for part in stores.contents.parts(current_project(), kept.content_key)]
    assert stored == [b"reused"]
    assert await stores.files.get(small.id) is None


async def test_concurrent_deletions_and_uploads_of_the_same_bytes_stay_consistent(
    stores: Stores,
) -> None:
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


async def test_deleting_the_last_file_waits_for_a_concurrent_upload(stores: Stores) -> None:
    one, other = await stores.folder("one"), await stores.folder("other")
    last = await stores.upload(one)
    new = replace(stores.new_file(other, "b.txt", b"hello\n"), upload_id=new_id("upload"))
    await stores.uploads.put(new.upload_id, 0, b"hello\n")
    async with stores.database.transaction() as connection:
        added = await _Finish(connection, new, SystemClock()).run()
        deleting = asyncio.create_task(stores.files.delete(last.id))
        await eventually(lambda: stores.is_waiting())
    await deleting
    stored = [part async for part in stores.contents.parts(current_project(), added.content_key)]
    assert stored == [b"hello\n"]
    assert await stores.got(added) == added


async def test_files_are_listed_by_name_in_pages(stores: Stores) -> None:
    one, other = await stores.folder("b"), await stores.folder("a")
    for folder in (one, other):
        for name in ("2", "10", "1"):
            await stores.upload(folder, name)
    assert [listed.name for listed in await stores.files.of_folder(one.id, "", 2)] == ["1", "10"]
    assert [listed.name for listed in await stores.files.of_folder(one.id, "10", 2)] == ["2"]
    agent = await stores.agent()
    await stores.folders.attach(agent, one.id)
    await stores.folders.attach(agent, other.id)
    names = [listed.full_name for listed in await stores.files.of_agent(agent, ("", ""), 4)]
    assert names == ["a/1", "a/10", "a/2", "b/1"]
    names = [listed.full_name for listed in await stores.files.of_agent(agent, ("b", "1"), 4)]
    assert names == ["b/10", "b/2"]


async def test_folders_can_be_attached_and_detached_repeatedly(stores: Stores) -> None:
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
    assert [folder.id for folder in await stores.folders.of_agent(agent, "", 10)] == [other.id]
    (window,) = await stores.files.open_of_agent(agent)
    assert (window.file_name, window.start_line, window.end_line) == ("b/a.txt", 2, 3)


async def test_only_existing_folders_and_agents_can_be_attached(stores: Stores) -> None:
    folder, agent = await stores.folder(), await stores.agent()
    for change in (stores.folders.attach, stores.folders.detach):
        with pytest.raises(NotFoundError) as no_agent:
            await change(new_id("agent"), folder.id)
        assert no_agent.value.reason is Reason.AGENT_NOT_FOUND
        with pytest.raises(NotFoundError) as no_folder:
            await change(agent, new_id("folder"))
        assert no_folder.value.reason is Reason.FILE_NOT_FOUND


async def test_another_project_cannot_read_or_change_anything(stores: Stores) -> None:
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
        # Row-level security applies where a statement omits the project.
        with pytest.raises(asyncpg.PostgresError) as refused:
            async with stores.database.transaction() as connection:
                await connection.execute(
                    sql(
                        "INSERT INTO core_memory.content_parts VALUES (:project, 'upload-1', 0, '')"
                    ),
                    {"project": project_id},
                )
        assert "row-level security" in str(refused.value)
        # The same bytes are a separate content in another project.
        await stores.upload(await stores.folder())
        assert (await stores.counts())["contents"] == 1
    assert await stores.got(file) == file


async def test_the_worker_role_cannot_read_names_bytes_or_texts(
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
        with pytest.raises(asyncpg.PostgresError) as refused:
            async with worker.system_transaction(read_only=True) as connection:
                await connection.execute(sql(f"SELECT {column} FROM core_memory.{table}"))
        assert "permission denied" in str(refused.value)
    async with worker.system_transaction() as connection:
        gone = await connection.execute(sql("DELETE FROM core_memory.content_parts"))
        assert gone.rowcount == 0


async def test_parts_of_a_broken_upload_are_found_by_the_worker(
    stores: Stores, worker: Database, urls: Any
) -> None:
    file = await stores.upload(await stores.folder())
    old, new = new_id("upload"), new_id("upload")
    # More than one statement deletes.
    for upload, parts in ((old, 201), (new, 3)):
        for part in range(parts):
            await stores.uploads.put(upload, part, b"x")
    await execute(
        urls.admin_url,
        "UPDATE core_memory.content_parts SET create_time = now() - interval '3 hours'"
        " WHERE content_hash IN ($1, $2)",
        *(old, file.content_key),
    )
    assert await FileQueue(stores.database, worker).delete_abandoned_uploads(7200) == 201
    assert (await stores.counts())["content_parts"] == 3 + 1


@pytest.mark.parametrize("what", ["file", "folder"])
async def test_file_in_indexing_is_dropped_again_after_its_lease(
    stores: Stores, worker: Database, what: str
) -> None:
    folder = await stores.folder()
    file = await stores.upload(folder)
    async with worker.system_transaction() as connection:
        lease = (
            "UPDATE core_memory.files SET lease_until = now() + interval '1 hour' WHERE id = :id"
        )
        await connection.execute(sql(lease), {"id": file.id})
    if what == "file":
        await stores.files.delete(file.id)
    else:
        await stores.folders.delete(folder.id)
    queue, dropped_id = FileQueue(stores.database, worker), file.id if what == "file" else folder.id
    (dropped,) = [
        entry
        for entry in await queue.claim_dropped(60, 500)
        if entry.project_id == current_project()
    ]
    assert (dropped.id, dropped.is_last) == (dropped_id, False)


async def test_file_without_lease_is_dropped_once(stores: Stores, worker: Database) -> None:
    folder = await stores.folder()
    file = await stores.upload(folder)
    await stores.files.delete(file.id)
    await stores.folders.delete(folder.id)
    dropped = await FileQueue(stores.database, worker).claim_dropped(60, 500)
    mine = [entry for entry in dropped if entry.project_id == current_project()]
    assert {(entry.id, entry.is_last) for entry in mine} == {(file.id, True), (folder.id, True)}
