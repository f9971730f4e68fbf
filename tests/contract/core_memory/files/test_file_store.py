"""The contract of the stores of folders, files and uploads, on PostgreSQL."""

from __future__ import annotations

import asyncio
import hashlib

import pytest

from callers import as_project
from file_stores import REMAINING_FILE, Stores, receipt_of
from strata.core_memory.domain.ports import ReplayedError
from strata.core_memory.files.domain.files import (
    PART_BYTES,
    File,
    FileState,
    Folder,
)
from strata.core_memory.files.store.contents import TextPage
from strata.protocol.errors import AlreadyExistsError, NotFoundError, Reason, UnavailableError
from strata.shared import context
from strata.shared.context import current_project
from strata.shared.ids import new_id


async def test_a_stored_folder_is_returned_unchanged(stores: Stores) -> None:
    folder = await stores.folder('Plans & "drafts"')
    assert await stores.folders.get(folder.id) == folder
    assert (folder.description, folder.instructions, folder.file_count) == ("what", "how", 0)
    assert await stores.folders.get(new_id("folder")) is None


async def test_folders_are_listed_by_name_in_pages(stores: Stores) -> None:
    for name in ("b", "C", "a", "ä"):
        await stores.folder(name)
    assert [folder.name for folder in await stores.folders.of_project("", 3)] == ["C", "a", "b"]
    assert [folder.name for folder in await stores.folders.of_project("b", 3)] == ["ä"]


async def test_a_folder_name_is_unique_in_a_project(stores: Stores) -> None:
    await stores.folder("a")
    with pytest.raises(AlreadyExistsError) as refused:
        await stores.folder("a")
    assert refused.value.reason is Reason.NAME_TAKEN
    with context.use(as_project()):
        await stores.folder("a")


async def test_concurrent_creations_with_one_request_id_create_one_folder(stores: Stores) -> None:
    request = new_id("request")
    results = await asyncio.gather(
        *(stores.folder("a", receipt_of(request)) for _ in range(6)), return_exceptions=True
    )
    made = [result for result in results if isinstance(result, Folder)]
    replayed = [result for result in results if isinstance(result, ReplayedError)]
    assert (len(made), len(replayed)) == (1, 5)
    assert {error.response for error in replayed} == {made[0].id.encode()}
    with pytest.raises(AlreadyExistsError) as refused:
        await stores.folder("b", receipt_of(request, b"other"))
    assert refused.value.reason is Reason.REQUEST_ID_REUSED


async def test_an_uploaded_file_is_stored_with_its_bytes(stores: Stores) -> None:
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
    stored_folder = await stores.folders.get(folder.id)
    assert stored_folder is not None
    assert stored_folder.file_count == 1


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


async def test_another_file_with_the_name_is_refused_unless_it_replaces(stores: Stores) -> None:
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


async def test_replaced_content_is_kept_while_another_file_uses_it(stores: Stores) -> None:
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
    made = [result for result in results if isinstance(result, File)]
    assert len(made) == 1
    assert [result.response for result in results if isinstance(result, ReplayedError)] == [
        made[0].id.encode()
    ] * 5
    assert await stores.counts() == REMAINING_FILE
    with pytest.raises(AlreadyExistsError) as refused:
        await stores.upload(folder, "c.txt", receipt=receipt_of(request, b"other"))
    assert refused.value.reason is Reason.REQUEST_ID_REUSED


async def test_concurrent_uploads_of_the_same_bytes_are_stored_once(stores: Stores) -> None:
    folders = [await stores.folder(f"f{number}") for number in range(8)]
    await asyncio.gather(*(stores.upload(folder, data=b"x" * 3_000_000) for folder in folders))
    counts = await stores.counts()
    assert (counts["files"], counts["contents"], counts["content_parts"]) == (8, 1, 3)


async def test_files_that_exchange_their_contents_concurrently_keep_them(stores: Stores) -> None:
    folders = [await stores.folder(f"f{number}") for number in range(2)]
    texts = [b"one", b"two"]
    for folder, data in zip(folders, texts, strict=True):
        await stores.upload(folder, data=data)
    for turn in range(10):
        swapped = texts if turn % 2 else texts[::-1]
        await asyncio.gather(
            *(
                stores.upload(folder, data=data_, replacing=True)
                for folder, data_ in zip(folders, swapped, strict=True)
            )
        )
        counts = await stores.counts()
        assert (counts["files"], counts["contents"], counts["content_parts"]) == (2, 2, 2)


async def test_an_upload_to_a_deleted_folder_leaves_no_rows(stores: Stores) -> None:
    folder = await stores.folder()
    await stores.folders.delete(folder.id)
    before = await stores.counts()
    with pytest.raises(NotFoundError) as refused:
        await stores.upload(folder)
    assert refused.value.reason is Reason.FILE_NOT_FOUND
    assert await stores.counts() == before


async def test_an_upload_with_missing_parts_creates_no_file(stores: Stores) -> None:
    folder = await stores.folder()
    with pytest.raises(UnavailableError):
        await stores.upload(folder, lose=1)
    assert await stores.counts() == {"folders": 1}


async def test_an_empty_file_has_no_parts(stores: Stores) -> None:
    folder = await stores.folder()
    file = await stores.upload(folder, data=b"")
    assert file.size_bytes == 0
    assert await stores.counts() == {"folders": 1, "contents": 1, "files": 1}


async def test_unreadable_bytes_are_read_again_after_a_new_upload(stores: Stores) -> None:
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
    for uploaded in (file, sibling):
        assert (await stores.got(uploaded)).state is FileState.INDEXING


async def test_reading_ends_once_and_changes_every_folder_with_the_file(stores: Stores) -> None:
    one, other = await stores.folder("one"), await stores.folder("other")
    first, second = await stores.upload(one), await stores.upload(other)
    before = [await stores.revision(folder_) for folder_ in (one, other)]
    await stores.read(first, "a\nb")
    for uploaded in (first, second):
        got = await stores.got(uploaded)
        assert (got.state, got.line_count) == (FileState.INDEXING, 2)
    after = [await stores.revision(folder_) for folder_ in (one, other)]
    assert after == [revision + 1 for revision in before]
    project_id = current_project()
    assert not await stores.contents.unreadable(project_id, first.content_key, "late", attempt=0)
    pages = [page async for page in stores.contents.pages(project_id, first.content_key)]
    assert pages == [TextPage(0, 1, 2, "a\nb")]
