"""The service over a socket and inside the process, with its engines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

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
from strata.shared.auth import TokenSigner, TokenVerifier, generate_key_pair
from strata.shared.channels import ChannelFactory, services_of
from strata.shared.context import RequestContext, use
from strata.shared.ids import new_id
from strata.shared.inprocess import InProcessNetwork
from strata.shared.server import serving
from strata.shared.service import BackgroundTasks
from strata.standalone.vectors import EmbeddedVectors


@dataclass
class Keys:
    """Signs callers in."""

    signer: TokenSigner
    verifier: TokenVerifier
    public: str

    def context(self, project_id: str) -> RequestContext:
        token = self.signer.mint("org-1", project_id, "core-memory-worker", ["write"])
        return RequestContext(caller=self.verifier.verify(token), request_id="test")


@dataclass
class Client:
    """The stubs of the service, and the keys to call them with."""

    keys: Keys
    channel: Any

    def __post_init__(self) -> None:
        self.archives = archive_service_pb2_grpc.ArchiveServiceStub(self.channel)
        self.passages = passage_service_pb2_grpc.PassageServiceStub(self.channel)
        self.agents = agent_archive_service_pb2_grpc.AgentArchiveServiceStub(self.channel)
        self.files = file_index_service_pb2_grpc.FileIndexServiceStub(self.channel)


@pytest.fixture(scope="session")
def keys() -> Keys:
    private, public = generate_key_pair()
    return Keys(TokenSigner(private), TokenVerifier(public), public)


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def urls(databases: Any) -> Any:
    return await databases.of(MIGRATIONS)


@pytest.fixture(autouse=True)
def project(keys: Keys) -> Iterator[str]:
    project_id = new_id("project")
    with use(keys.context(project_id)):
        yield project_id


@pytest.fixture
def settings(
    urls: Any, vectors: EmbeddedVectors, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> ArchivalSettings:
    monkeypatch.setattr(archival_main, "_EXPIRY_POLL_S", 0.2)
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


@pytest.fixture(params=["socket", "inprocess"])
async def client(
    request: pytest.FixtureRequest, settings: ArchivalSettings, keys: Keys
) -> AsyncIterator[Client]:
    async with AsyncExitStack() as stack:
        if request.param == "socket":
            server = await stack.enter_async_context(serving(build, settings))
            factory = ChannelFactory()
            stack.push_async_callback(factory.close)
            channel: Any = factory.channel(server.address, services_of("archival"))
        else:
            network = InProcessNetwork(keys.verifier)
            service = await build(settings, network, stack)
            network.register(service, settings)
            stack.push_async_callback(network.close)
            await stack.enter_async_context(BackgroundTasks(service))
            channel = network.channel("archival")
        yield Client(keys, channel)
