"""Core memory and archival memory together, on databases of the test's own."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import asyncpg
import pytest

from callers import TokenKeys
from strata.api.archival.v1 import file_index_service_pb2 as index_pb
from strata.api.archival.v1 import file_index_service_pb2_grpc as index_grpc
from strata.api.core_memory.v1 import file_service_pb2 as pb
from strata.api.core_memory.v1 import file_service_pb2_grpc as pb_grpc
from strata.archival.main import build as build_archival
from strata.archival.migrations import MIGRATIONS as ARCHIVAL
from strata.archival.settings import ArchivalSettings
from strata.core_memory import main as core_memory_main
from strata.core_memory.main import build as build_core_memory
from strata.core_memory.migrations import MIGRATIONS as CORE_MEMORY
from strata.core_memory.settings import CoreMemorySettings
from strata.shared.auth import TokenVerifier, generate_key_pair
from strata.shared.inprocess import InProcessNetwork
from strata.shared.search import upkeep
from strata.shared.service import BackgroundTasks
from strata.standalone.vectors import EmbeddedVectors

MIB = 1024 * 1024


@dataclass
class Services:
    """Starts the services of one process in the order that a test chooses."""

    core_urls: Any
    archival_urls: Any
    vectors: EmbeddedVectors
    keys: TokenKeys
    stack: AsyncExitStack
    worker_keys: tuple[str, str] = field(default_factory=generate_key_pair)

    def __post_init__(self) -> None:
        self.network = InProcessNetwork(TokenVerifier(self.keys.public))
        self.stack.push_async_callback(self.network.close)
        channel = self.network.channel("core_memory")
        self.files = pb_grpc.FileServiceStub(channel)
        self.index = index_grpc.FileIndexServiceStub(self.network.channel("archival"))

    def core_settings(self, **more: Any) -> CoreMemorySettings:
        values: dict[str, Any] = {
            "database_url": self.core_urls.service_url,
            "worker_database_url": self.core_urls.worker_url,
            "token_public_keys": self.keys.public,
            "worker_token_key": self.worker_keys[0],
            "file_reading_timeout_s": 60.0,
        }
        return CoreMemorySettings(**{**values, **more})

    async def start_core_memory(self, *, lease_s: float = 2.0, **more: Any) -> None:
        settings = self.core_settings(**more)
        with patch.multiple(core_memory_main, FILE_POLL_S=0.1, FILE_LEASE_S=lease_s):
            service = await build_core_memory(settings, self.network, self.stack)
        self.network.register(service, settings)
        await self.stack.enter_async_context(BackgroundTasks(service))

    def archival_settings(self, **more: Any) -> ArchivalSettings:
        return ArchivalSettings(
            database_url=self.archival_urls.service_url,
            worker_database_url=self.archival_urls.worker_url,
            qdrant_url=self.vectors.url,
            qdrant_api_key=self.vectors.api_key,
            token_public_keys=self.keys.public,
            file_worker_public_keys=self.worker_keys[1],
            **more,
        )

    async def start_archival(self) -> None:
        settings = self.archival_settings()
        with patch.object(upkeep, "INDEX_POLL_S", 0.1):
            service = await build_archival(settings, self.network, self.stack)
        self.network.register(service, settings)
        await self.stack.enter_async_context(BackgroundTasks(service))

    async def start(self, **more: Any) -> None:
        await self.start_archival()
        await self.start_core_memory(**more)

    async def folder(self, name: str = "docs") -> str:
        response = await self.files.CreateFolder(pb.CreateFolderRequest(name=name))
        return str(response.folder.id)

    async def upload(self, folder_id: str, name: str, data: bytes, **more: Any) -> pb.File:
        def requests() -> Any:
            header = pb.UploadFileHeader(folder_id=folder_id, name=name, **more)
            yield pb.UploadFileRequest(header=header)
            for at in range(0, len(data), MIB):
                yield pb.UploadFileRequest(chunk=data[at : at + MIB])

        file: pb.File = (await self.files.UploadFile(requests())).file
        return file

    async def file(self, file_id: str) -> pb.File:
        file: pb.File = (await self.files.GetFile(pb.GetFileRequest(file_id=file_id))).file
        return file

    async def until(self, file_id: str, holds: Callable[[pb.File], bool]) -> pb.File:
        """Waits until a condition on a file holds."""
        async with asyncio.timeout(60):
            while not holds(file := await self.file(file_id)):
                await asyncio.sleep(0.02)
        return file

    async def ended(self, file_id: str) -> pb.File:
        """Waits until a file is ready or has failed."""
        ends = (pb.FILE_STATE_READY, pb.FILE_STATE_FAILED)
        return await self.until(file_id, lambda file: file.state in ends)

    async def progress(self, file_id: str) -> tuple[int, int] | None:
        """Returns the number of chunks of a file and how many are indexed."""
        request = index_pb.GetFileProgressRequest(file_ids=[file_id])
        files = (await self.index.GetFileProgress(request)).files
        return (files[0].chunk_count, files[0].indexed_count) if files else None

    async def pieces(self, folder_id: str, query: str) -> list[str]:
        request = index_pb.SearchFileChunksRequest(folder_ids=[folder_id], query=query, limit=50)
        return [hit.chunk.text for hit in (await self.index.SearchFileChunks(request)).hits]


class Admin:
    """Reads the database of core memory as the superuser."""

    def __init__(self, connection: asyncpg.Connection[Any]) -> None:
        self._connection = connection

    async def text(self, data: bytes) -> list[str] | None:
        """Returns the lines that were read from a content; checks the order of the pages."""
        rows = await self._connection.fetch(
            "SELECT page, first_line, line_count, text FROM core_memory.content_pages"
            " WHERE left(content_hash, 64) = $1 ORDER BY page",
            hashlib.sha256(data).hexdigest(),
        )
        lines: list[str] = []
        for number, row in enumerate(rows):
            assert (row["page"], row["first_line"]) == (number, len(lines) + 1)
            lines += row["text"].split("\n")
            assert len(lines) == row["first_line"] + row["line_count"] - 1
        return lines or None

    async def value(self, statement: str, *parameters: Any) -> Any:
        return await self._connection.fetchval(statement, *parameters)


@pytest.fixture
async def own_urls(databases: Any) -> tuple[Any, Any]:
    return await databases.of(CORE_MEMORY), await databases.of(ARCHIVAL)


@pytest.fixture
async def services(
    own_urls: tuple[Any, Any], vectors: EmbeddedVectors, keys: TokenKeys
) -> AsyncIterator[Services]:
    core_urls, archival_urls = own_urls
    async with AsyncExitStack() as stack:
        yield Services(core_urls, archival_urls, vectors, keys, stack)


@pytest.fixture
async def admin(own_urls: tuple[Any, Any]) -> AsyncIterator[Admin]:
    connection = await asyncpg.connect(own_urls[0].admin_url)
    yield Admin(connection)
    await connection.close()
