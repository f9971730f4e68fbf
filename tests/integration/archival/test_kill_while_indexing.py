"""The service as a process of its own that is killed while it indexes a file."""

from __future__ import annotations

import os
import signal
from typing import Any

from callers import TokenKeys
from gates import gate
from integration.archival.archival_calls import index, progress, search
from integration.archival.archival_process import service
from integration.archival.conftest import Client
from polling import eventually
from strata.archival.migrations import MIGRATIONS
from strata.archival.search.index import FILE_CHUNKS
from strata.protocol.errors import StrataError
from strata.shared.channels import ChannelFactory, services_of
from strata.shared.ids import new_id
from strata.shared.search.vectors import Where
from strata.shared.search.vectors.client import connect
from strata.shared.search.vectors.qdrant import QdrantIndex
from strata.standalone.ports import ReservedPort
from strata.standalone.vectors import EmbeddedVectors

CHUNKS = 400


async def test_indexing_resumes_after_a_kill(
    databases: Any, vectors: EmbeddedVectors, keys: TokenKeys, project: str
) -> None:
    # A separate database: files that other tests have left would be indexed as well.
    urls = await databases.of(MIGRATIONS)
    # Reserved for the whole test, also while no process listens.
    reserved = ReservedPort()
    port = reserved.number
    folder, file = new_id("folder"), new_id("file")
    factory = ChannelFactory()
    client = Client(keys, factory.channel(f"127.0.0.1:{port}", services_of("archival")))
    texts = [f"Chapter {n}: the ship sails on to island number {n}." for n in range(CHUNKS)]
    seen = (0, 0)

    async def there() -> bool:
        try:
            await progress(client, file)
        except StrataError:
            return False
        return True

    async def half() -> bool:
        nonlocal seen
        seen = await progress(client, file) or seen
        return seen[0] > 0

    async def complete() -> bool:
        nonlocal seen
        now = await progress(client, file) or (0, 0)
        # Progress that was recorded before the process was killed is not repeated.
        assert now[0] >= seen[0]
        seen = now
        return seen == (CHUNKS, CHUNKS)

    # The service is blocked at its second update of the progress.
    further = f"OLD.indexed_count > 0 AND NEW.file_id = '{file}'"
    async with gate(urls.admin_url, "archival.chunk_sets", "UPDATE", further):
        with service(urls, vectors, keys, port) as pid:
            await eventually(there)
            assert await index(client, folder, file, *texts) == CHUNKS
            await eventually(half)
            os.kill(pid, signal.SIGKILL)
    assert 0 < seen[0] < CHUNKS
    with service(urls, vectors, keys, port):
        await eventually(there)
        # Half of the file is not in the vector index yet, and all of it is found.
        assert len(await search(client, folder, "island", 50)) == 50
        await eventually(complete)
        last = await search(client, folder, "Chapter 399: the ship", 3)
        assert texts[-1] in [hit.chunk.text for hit in last]
    await factory.close()
    engine = QdrantIndex(connect(vectors.url, vectors.api_key))
    where = Where(eq={"file_id": file})
    assert await engine.count(FILE_CHUNKS, project, where) == CHUNKS
    await engine.close()
    reserved.release()
