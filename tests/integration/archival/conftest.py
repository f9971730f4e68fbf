"""The service over a socket and inside the process, with its engines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import pytest
import pytest_asyncio

from callers import TokenKeys
from service_channels import service_channel
from strata.api.archival.v1 import (
    agent_archive_service_pb2_grpc,
    archive_service_pb2_grpc,
    file_index_service_pb2_grpc,
    passage_service_pb2_grpc,
)
from strata.archival import main as archival_main
from strata.archival.main import build
from strata.archival.migrations import MIGRATIONS
from strata.archival.settings import ArchivalSettings
from strata.shared.context import use
from strata.shared.ids import new_id
from strata.standalone.vectors import EmbeddedVectors

# This reader is the file worker of core memory.
PRINCIPAL = "core-memory-worker"


@dataclass
class Client:
    """The stubs of the service, and the keys to call them with."""

    keys: TokenKeys
    channel: Any

    def __post_init__(self) -> None:
        self.archives = archive_service_pb2_grpc.ArchiveServiceStub(self.channel)
        self.passages = passage_service_pb2_grpc.PassageServiceStub(self.channel)
        self.agents = agent_archive_service_pb2_grpc.AgentArchiveServiceStub(self.channel)
        self.files = file_index_service_pb2_grpc.FileIndexServiceStub(self.channel)


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def urls(databases: Any) -> Any:
    return await databases.of(MIGRATIONS)


@pytest.fixture(autouse=True)
def project(keys: TokenKeys) -> Iterator[str]:
    project_id = new_id("project")
    with use(keys.context(project_id, principal=PRINCIPAL)):
        yield project_id


@pytest.fixture(scope="module")
def settings(urls: Any, vectors: EmbeddedVectors, keys: TokenKeys) -> ArchivalSettings:
    return ArchivalSettings(
        port=0,
        database_url=urls.service_url,
        worker_database_url=urls.worker_url,
        qdrant_url=vectors.url,
        qdrant_api_key=vectors.api_key,
        token_public_keys=keys.public,
        drain_s=0,
        grace_s=0.1,
    )


# Every test has a project of its own, so that those of a module may share the service.
@pytest_asyncio.fixture(scope="module", loop_scope="session", params=["socket", "inprocess"])
async def client(
    request: pytest.FixtureRequest, settings: ArchivalSettings, keys: TokenKeys
) -> AsyncIterator[Client]:
    with patch.object(archival_main, "_EXPIRY_POLL_S", 0.2):
        async with service_channel(request.param, build, settings, keys.verifier) as channel:
            yield Client(keys, channel)
