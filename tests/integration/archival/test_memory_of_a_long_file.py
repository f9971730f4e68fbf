"""The memory of the service while it receives a long file."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import psutil

from callers import TokenKeys
from integration.archival.archival_calls import chunks, progress
from integration.archival.archival_process import service
from integration.archival.conftest import Client
from polling import eventually
from strata.api.archival.v1 import file_index_service_pb2 as pb
from strata.archival.migrations import MIGRATIONS
from strata.protocol.errors import StrataError
from strata.shared.channels import ChannelFactory, services_of
from strata.shared.ids import new_id
from strata.standalone.ports import ReservedPort
from strata.standalone.vectors import EmbeddedVectors

# Of 1.5 KB each: 30 MB of text.
CHUNKS = 20_000


async def test_a_long_file_is_streamed_in_bounded_memory(
    databases: Any, vectors: EmbeddedVectors, keys: TokenKeys
) -> None:
    # A separate database, so that no other service has to index this file.
    urls = await databases.of(MIGRATIONS)
    folder, file = new_id("folder"), new_id("file")
    words = " ".join(f"word{n}" for n in range(200))
    # In a process of its own, since services of other tests in this one allocate memory too.
    reserved = ReservedPort()
    factory = ChannelFactory()
    address = f"127.0.0.1:{reserved.number}"
    client = Client(keys, factory.channel(address, services_of("archival")))

    async def answers() -> bool:
        try:
            return await progress(client, file) is None
        except StrataError:
            return False

    async def messages() -> AsyncIterator[pb.IndexFileRequest]:
        yield pb.IndexFileRequest(folder_id=folder, file_id=file)
        for start in range(0, CHUNKS, 200):
            resident.append(process.memory_info().rss)
            texts = (f"{n} {words}" for n in range(start, start + 200))
            yield pb.IndexFileRequest(chunks=chunks(*texts, first=start))

    resident: list[int] = []
    with service(urls, vectors, keys, reserved.number) as pid:
        process = psutil.Process(pid)
        await eventually(answers)
        answer = await client.files.IndexFile(messages())
        resident.append(process.memory_info().rss)
    await factory.close()
    reserved.release()
    assert answer.chunk_count == CHUNKS
    assert max(resident) - resident[0] < 32 * 2**20, resident
