"""Imports resume after a broken connection, and can be resumed after a kill of the service."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio

from callers import TokenKeys
from integration.archival.archival_calls import count, made
from integration.archival.archival_process import service
from integration.archival.conftest import Client
from strata.api.archival.v1 import passage_service_pb2 as pb
from strata.archival.migrations import MIGRATIONS
from strata.cli.archival.passage_import import Import, ImportTarget, PassageFile
from strata.protocol.errors import StrataError, UnavailableError
from strata.shared.channels import ChannelFactory, services_of
from strata.standalone.ports import ReservedPort
from strata.standalone.vectors import EmbeddedVectors

pytestmark = pytest.mark.asyncio(loop_scope="session")

LINES = 5_000


# What is not indexed yet at the end would keep the indexers of other modules busy.
@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def urls(databases: Any) -> Any:
    return await databases.of(MIGRATIONS)


class View:
    """Records the progress."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def show(self, received: int, total: int) -> None:
        self.seen.append(received)


class Breaking:
    """A passage service over a connection that breaks repeatedly after some answers."""

    def __init__(self, passages: Any, answers: int) -> None:
        self._passages = passages
        self._answers = answers
        self.calls = 0

    async def UploadPassages(
        self, requests: AsyncIterator[pb.UploadPassagesRequest]
    ) -> AsyncIterator[pb.UploadPassagesResponse]:
        self.calls += 1
        left = self._answers
        async for answer in self._passages.UploadPassages(requests):
            if left == 0:
                raise UnavailableError("The way broke.")
            left -= 1
            yield answer


def write(folder: Path, lines: int) -> PassageFile:
    file = folder / "facts.jsonl"
    file.write_text("".join(json.dumps({"text": f"Fact {n}."}) + "\n" for n in range(lines)))
    return PassageFile.of(file)


def importing(passages: Any, source: PassageFile, archive: str, view: View) -> Import:
    target = ImportTarget(archive_id=archive)
    client: Any = SimpleNamespace(passages=passages)
    return Import(client, source, target, source.request_id(target), view)


async def test_import_resumes_after_a_broken_connection(client: Client, tmp_path: Path) -> None:
    source, archive, view = write(tmp_path, 2_600), await made(client), View()
    way = Breaking(client.passages, answers=4)
    done = await importing(way, source, archive, view).run()
    assert way.calls > 2
    assert (done.received_count, done.inserted_count, done.complete) == (2_600, 2_600, True)
    # Durable items are not sent again, because they would be counted as duplicates.
    assert done.duplicate_count == 0
    assert view.seen == sorted(view.seen)
    assert await count(client, archive) == 2_600


async def test_import_without_progress_ends(client: Client, tmp_path: Path) -> None:
    source, archive = write(tmp_path, 10), await made(client)
    with pytest.raises(UnavailableError):
        await importing(Breaking(client.passages, answers=0), source, archive, View()).run()
    assert await count(client, archive) == 0


async def test_counted_passages_survive_a_kill(
    urls: Any, vectors: EmbeddedVectors, keys: TokenKeys, tmp_path: Path
) -> None:
    # Reserved for the whole test, also while no process listens.
    reserved = ReservedPort()
    port = reserved.number
    factory = ChannelFactory()
    client = Client(keys, factory.channel(f"127.0.0.1:{port}", services_of("archival")))
    source, view = write(tmp_path, LINES), View()

    async def there() -> str:
        while True:
            try:
                return await made(client)
            except StrataError:
                await asyncio.sleep(0.1)

    with service(urls, vectors, keys, port) as pid:
        archive = await there()
        task = asyncio.create_task(importing(client.passages, source, archive, view).run())
        while not view.seen or view.seen[-1] == 0:
            await asyncio.sleep(0.01)
        os.kill(pid, signal.SIGKILL)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    counted = view.seen[-1]
    assert 0 < counted < LINES
    with service(urls, vectors, keys, port):
        await there()
        assert await count(client, archive) >= counted
        done = await importing(client.passages, source, archive, view).run()
        assert (done.received_count, done.inserted_count) == (LINES, LINES)
        assert done.duplicate_count == 0
        assert await count(client, archive) == LINES
    await factory.close()
    reserved.release()
