"""From an upload to a searchable file, with failures in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import file_samples as samples
from callers import TokenKeys
from child_processes import descendants
from integration.core_memory.ingest.conftest import Admin, Services
from strata.api.archival.v1 import file_index_service_pb2 as index_pb
from strata.api.core_memory.v1 import file_service_pb2 as pb
from strata.archival.migrations import MIGRATIONS as ARCHIVAL
from strata.core_memory.files.index_sync import NOT_SET_UP
from strata.core_memory.migrations import MIGRATIONS as CORE_MEMORY
from strata.shared.auth import TokenSigner, generate_key_pair
from strata.standalone.vectors import EmbeddedVectors

if TYPE_CHECKING:
    from conftest import Databases

CHILD = "strata.core_memory.files.text_extraction.child"
# Too long for one message of the index, and for one batch of pages.
LONG_TEXT = "".join(f"Line {n} tells of lighthouse number {n}.\n" for n in range(40_000)).encode()


async def test_a_text_becomes_ready(services: Services, admin: Admin) -> None:
    await services.start()
    folder = await services.folder()
    data = b"# Lighthouses\n\nThe keeper of the lighthouse\r\n\thas a dog.\n"
    uploaded = await services.upload(folder, "keeper.md", data)
    file = await services.ended(uploaded.id)
    assert (file.state, file.error) == (pb.FILE_STATE_READY, "")
    assert (file.line_count, file.index_progress) == (4, 1.0)
    assert await admin.text(data) == [
        "# Lighthouses",
        "",
        "The keeper of the lighthouse",
        "\thas a dog.",
    ]
    assert await services.progress(file.id) == (1, 1)
    assert await services.pieces(folder, "who owns an animal?") == [
        "# Lighthouses\n\nThe keeper of the lighthouse\n\thas a dog."
    ]


async def test_every_kind_becomes_ready(services: Services) -> None:
    await services.start()
    for name, data in (
        ("a.pdf", samples.pdf(["The ship sails at noon."], ["It comes back at night."])),
        ("a.docx", samples.docx("The ship sails at noon.", "It comes back at night.")),
        ("a.html", b"<p>The ship sails at noon.</p><p>It comes back at night.</p>"),
        ("a.csv", b"what,when\nThe ship sails,at noon.\nIt comes back,at night.\n"),
        ("a.txt", "The ship sails at noon.\nIt comes back at night.".encode("utf-16")),
    ):
        folder = await services.folder(name)
        file = await services.ended((await services.upload(folder, name, data)).id)
        assert (file.state, file.error) == (pb.FILE_STATE_READY, ""), name
        (piece,) = await services.pieces(folder, "ship")
        assert "at noon." in piece, name
        assert "at night." in piece, name


async def test_a_long_text_is_sent_whole(services: Services, admin: Admin) -> None:
    await services.start_core_memory()
    await services.start_archival()
    folder = await services.folder()
    uploaded = await services.upload(folder, "long.txt", LONG_TEXT)
    sent = await services.until(uploaded.id, lambda file: file.index_progress > 0)
    assert sent.state == pb.FILE_STATE_INDEXING
    assert await admin.text(LONG_TEXT) == LONG_TEXT.decode().splitlines()
    progress = await services.progress(uploaded.id)
    assert progress is not None
    chunks = await admin.value("SELECT chunk_count FROM core_memory.files")
    assert progress[0] == chunks > 1000


@pytest.mark.parametrize("name", ["travel.md", "travel.html"])
async def test_a_chunk_is_found_by_the_heading_above_it(services: Services, name: str) -> None:
    await services.start()
    folder = await services.folder()
    other = "The kettle is in the kitchen, beside the toaster. " * 20
    houses = {"Iceland": "small red house by the pier", "Portugal": "tall white house on the hill"}
    parts = {
        country: [other, f"We stayed in the {house}, and it rained every day but one. " * 12]
        for country, house in houses.items()
    }
    if name.endswith(".html"):
        text = "".join(
            f"<h1>{country}</h1>" + "".join(f"<p>{part}</p>" for part in texts)
            for country, texts in parts.items()
        )
    else:
        text = "\n\n".join(
            part for country, texts in parts.items() for part in (f"# {country}", *texts)
        )
    await services.ended((await services.upload(folder, name, text.encode())).id)
    for country, house in houses.items():
        pieces = await services.pieces(folder, f"Which house did we stay in in {country}?")
        assert house in pieces[0]
        assert country not in pieces[0]


async def headings(services: Services, folder_id: str, query: str) -> list[str]:
    request = index_pb.SearchFileChunksRequest(folder_ids=[folder_id], query=query)
    return [hit.chunk.heading for hit in (await services.index.SearchFileChunks(request)).hits]


async def test_files_of_an_earlier_release_get_headings(
    own_urls: tuple[Any, Any], vectors: EmbeddedVectors, keys: TokenKeys, databases: Databases
) -> None:
    """Files are sent again after the migration; their earlier chunks are searched until then."""
    async with AsyncExitStack() as stack:
        services = Services(*own_urls, vectors, keys, stack)
        await services.start()
        folder = await services.folder()
        file = await services.ended(
            (await services.upload(folder, "sea_life.md", b"# Skerry\n\nA")).id
        )
    for urls, migrations, revision in zip(
        own_urls, (CORE_MEMORY, ARCHIVAL), ("0010", "0006"), strict=True
    ):
        await migrations.downgrade(urls.admin_url, revision)
        await migrations.upgrade(urls.admin_url, databases.passwords)
    async with AsyncExitStack() as stack:
        services = Services(*own_urls, vectors, keys, stack, services.worker_keys)
        await services.start_archival()
        assert await headings(services, folder, "Skerry") == [""]
        await services.start_core_memory()
        await services.until(file.id, lambda file: file.state == pb.FILE_STATE_READY)
        assert await headings(services, folder, "Skerry") == ["sea life.md"]


async def test_empty_and_blank_files_become_ready_without_chunks(services: Services) -> None:
    await services.start()
    folder = await services.folder()
    for name, data, lines in (("empty.txt", b"", 0), ("blank.txt", b"\n \n\t\n", 3)):
        file = await services.ended((await services.upload(folder, name, data)).id)
        assert (file.state, file.line_count) == (pb.FILE_STATE_READY, lines)
        assert file.index_progress == 1.0


async def test_the_same_text_in_two_folders_is_read_once_and_found_in_both(
    services: Services, admin: Admin
) -> None:
    # A lease that does not expire on a slow machine: otherwise the other reader would start over.
    await services.start(lease_s=60.0)
    one, two = await services.folder("one"), await services.folder("two")
    data = b"The lighthouse keeper has a dog."
    for folder in (one, two):
        await services.ended((await services.upload(folder, "keeper.txt", data)).id)
        assert await services.pieces(folder, "dog") == [data.decode()]
    assert await admin.value("SELECT count(*) FROM core_memory.contents") == 1
    assert await admin.value("SELECT attempts FROM core_memory.contents") == 1


async def test_a_replaced_file_is_found_as_it_is_now(services: Services) -> None:
    await services.start()
    folder = await services.folder()
    first = await services.upload(folder, "a.txt", LONG_TEXT)
    await services.until(first.id, lambda file: file.state == pb.FILE_STATE_INDEXING)
    # The old text is being sent or indexed at this moment.
    second = await services.upload(folder, "a.txt", b"Only a dog is left.", replace=True)
    assert second.id == first.id
    file = await services.ended(second.id)
    assert file.state == pb.FILE_STATE_READY
    assert await services.progress(file.id) == (1, 1)
    assert await services.pieces(folder, "lighthouse or dog") == ["Only a dog is left."]


async def test_a_file_whose_new_content_is_unreadable_is_removed_from_the_index(
    services: Services,
) -> None:
    await services.start()
    folder = await services.folder()
    file = await services.upload(folder, "a.txt", b"The cat stays.")
    assert (await services.ended(file.id)).state == pb.FILE_STATE_READY
    await services.upload(folder, "a.txt", b"text " * 10_000 + b"\x00", replace=True)
    assert (await services.ended(file.id)).state == pb.FILE_STATE_FAILED
    # Otherwise its old text would take the places of other files in the results of a search.
    async with asyncio.timeout(30):
        while await services.progress(file.id) is not None:
            await asyncio.sleep(0.02)
    await services.upload(folder, "a.txt", b"The dog is back.", replace=True)
    assert (await services.ended(file.id)).state == pb.FILE_STATE_READY
    assert await services.pieces(folder, "dog") == ["The dog is back."]


async def test_a_deleted_file_is_removed_from_the_index(services: Services, admin: Admin) -> None:
    await services.start()
    folder = await services.folder()
    kept = await services.upload(folder, "kept.txt", b"The cat stays.")
    gone = await services.upload(folder, "gone.txt", b"The dog leaves.")
    for file in (kept, gone):
        await services.ended(file.id)
    await services.files.DeleteFile(pb.DeleteFileRequest(file_id=gone.id))
    async with asyncio.timeout(30):
        while await services.progress(gone.id) is not None:
            await asyncio.sleep(0.02)
        while await admin.value("SELECT count(*) FROM core_memory.dropped_files"):
            await asyncio.sleep(0.02)
    assert await services.pieces(folder, "dog") == ["The cat stays."]
    await services.files.DeleteFolder(pb.DeleteFolderRequest(folder_id=folder))
    async with asyncio.timeout(30):
        while await services.progress(kept.id) is not None:
            await asyncio.sleep(0.02)


async def test_large_contents_are_deleted_after_their_folder(
    services: Services, admin: Admin
) -> None:
    await services.start()
    folder = await services.folder()
    for number in range(3):
        file = await services.upload(folder, f"{number}.txt", f"The cat {number}.".encode())
        await services.ended(file.id)
    await admin.value("UPDATE core_memory.contents SET size_bytes = 50000001")
    await services.files.DeleteFolder(pb.DeleteFolderRequest(folder_id=folder))
    async with asyncio.timeout(30):
        while await admin.value("SELECT count(*) FROM core_memory.contents"):
            await asyncio.sleep(0.02)
        while await admin.value("SELECT count(*) FROM core_memory.dropped_contents"):
            await asyncio.sleep(0.02)
    assert await admin.value("SELECT count(*) FROM core_memory.content_parts") == 0


async def test_a_file_deleted_during_reading_leaves_no_rows(
    services: Services, admin: Admin
) -> None:
    await services.start()
    folder = await services.folder()
    for _ in range(3):
        file = await services.upload(folder, "a.txt", LONG_TEXT)
        await services.files.DeleteFile(pb.DeleteFileRequest(file_id=file.id))
    after = await services.upload(folder, "after.txt", b"The next one.")
    assert (await services.ended(after.id)).state == pb.FILE_STATE_READY
    async with asyncio.timeout(30):
        while await admin.value("SELECT count(*) FROM core_memory.dropped_files"):
            await asyncio.sleep(0.02)
    assert await admin.value("SELECT count(*) FROM core_memory.contents") == 1
    assert await admin.value("SELECT count(*) FROM core_memory.content_parts") == 1
    assert await admin.value("SELECT count(*) FROM core_memory.content_pages") == 1
    assert await services.pieces(folder, "lighthouse") == []
    assert await services.pieces(folder, "the next one") == ["The next one."]


async def test_changes_are_sent_when_archival_is_available_again(services: Services) -> None:
    await services.start_core_memory()
    folder = await services.folder()
    file = await services.upload(folder, "a.txt", b"The lighthouse keeper has a dog.")
    gone = await services.upload(folder, "b.txt", b"The lighthouse has a cat.")
    for file_ in (file, gone):
        read = await services.until(file_.id, lambda f: f.state == pb.FILE_STATE_INDEXING)
        assert (read.line_count, read.error) == (1, "")
    await services.files.DeleteFile(pb.DeleteFileRequest(file_id=gone.id))
    await asyncio.sleep(0.5)
    await services.start_archival()
    assert (await services.ended(file.id)).state == pb.FILE_STATE_READY
    assert await services.pieces(folder, "lighthouse") == ["The lighthouse keeper has a dog."]


async def test_without_a_worker_key_files_are_readable_with_the_reason_for_not_being_indexed(
    services: Services,
) -> None:
    await services.start(worker_token_key="")
    folder = await services.folder()
    uploaded = await services.upload(folder, "a.txt", b"one\ntwo\n")
    file = await services.until(uploaded.id, lambda file: bool(file.error))
    assert (file.state, file.line_count) == (pb.FILE_STATE_INDEXING, 2)
    assert file.error == NOT_SET_UP


async def test_key_that_archival_does_not_trust_is_reported(services: Services) -> None:
    await services.start(worker_token_key=generate_key_pair()[0])
    uploaded = await services.upload(await services.folder(), "a.txt", b"one\ntwo\n")
    file = await services.until(uploaded.id, lambda file: bool(file.error))
    assert file.state == pb.FILE_STATE_INDEXING
    assert file.error.startswith("Semantic search rejected the file: ")


async def test_the_worker_key_can_be_read_from_a_file(services: Services, tmp_path: Path) -> None:
    path = tmp_path / "worker.pem"
    path.write_text(services.worker_keys[0], encoding="ascii")
    settings = services.core_settings(worker_token_key="", worker_token_key_file=path)
    assert TokenSigner(settings.worker_key()).mint("", "p", "x", [])
    assert services.worker_keys[0] not in repr(services.core_settings())


# Each test makes the files that it uploads: the large ones take seconds.
@pytest.mark.parametrize(
    ("name", "make", "words", "seconds"),
    [
        ("a.pdf", lambda: samples.pdf(["x"], encrypted=True), "protected by a password", 60.0),
        ("a.docx", samples.docx_bomb, "unpacks to more than", 60.0),
        ("a.txt", lambda: b"text " * 100_000 + b"\x00", "binary data", 60.0),
        ("a.pdf", samples.endless_pdf, "longer than 3 seconds", 3.0),
    ],
    ids=["password", "zip-bomb", "binary", "endless"],
)
async def test_a_hostile_file_fails_with_a_reason_and_does_not_block_others(
    services: Services,
    admin: Admin,
    name: str,
    make: Callable[[], bytes],
    words: str,
    seconds: float,
) -> None:
    data = make()
    # On a slow machine the child process alone may take some seconds to start.
    await services.start(file_reading_timeout_s=seconds, lease_s=60.0)
    folder = await services.folder()
    hostile = await services.upload(folder, name, data)
    good = await services.upload(folder, "good.txt", b"The lighthouse keeper has a dog.")
    file = await services.ended(hostile.id)
    assert file.state == pb.FILE_STATE_FAILED
    assert words in file.error
    assert await admin.text(data) is None
    assert (await services.ended(good.id)).state == pb.FILE_STATE_READY


async def test_a_file_whose_reader_is_killed_three_times_fails(
    services: Services, admin: Admin
) -> None:
    # A lease that does not expire on a slow machine: an attempt ends with its child process.
    await services.start(lease_s=60.0)
    file = await services.upload(await services.folder(), "a.pdf", samples.endless_pdf())
    killed = set()
    async with asyncio.timeout(60):
        while (await services.file(file.id)).state == pb.FILE_STATE_PARSING:
            for process in descendants(CHILD):
                if process.pid not in killed:
                    process.kill()
                    killed.add(process.pid)
            await asyncio.sleep(0.02)
    assert len(killed) == 3
    failed = await services.file(file.id)
    assert failed.state == pb.FILE_STATE_FAILED
    assert failed.error == "Reading the file failed 3 times; it may be damaged."
    assert await admin.value("SELECT count(*) FROM core_memory.content_pages") == 0


async def test_the_folder_changes_when_its_files_become_readable(
    services: Services, admin: Admin
) -> None:
    await services.start()
    folder = await services.folder()
    file = await services.upload(folder, "a.txt", b"one")
    ready = await services.ended(file.id)
    assert ready.state == pb.FILE_STATE_READY
    # Created, uploaded, read. That the file is indexed, too, changes no prompt.
    assert await admin.value("SELECT revision FROM core_memory.folders") == 3
