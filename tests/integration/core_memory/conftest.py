"""The service over a socket and inside the process, on one database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from strata.api.core_memory.v1 import (
    block_service_pb2_grpc,
    context_service_pb2_grpc,
    file_service_pb2_grpc,
)
from strata.core_memory.main import build
from strata.core_memory.migrations import MIGRATIONS
from strata.core_memory.settings import CoreMemorySettings
from strata.shared.auth import TokenSigner, TokenVerifier, generate_key_pair
from strata.shared.channels import ChannelFactory, services_of
from strata.shared.context import RequestContext, use
from strata.shared.ids import new_id
from strata.shared.inprocess import InProcessNetwork
from strata.shared.server import serving
from strata.shared.service import BackgroundTasks


@dataclass
class Keys:
    """Signs callers in."""

    signer: TokenSigner
    verifier: TokenVerifier
    public: str

    def context(self, project_id: str, run_id: str | None = None) -> RequestContext:
        token = self.signer.mint("org-1", project_id, "key-1", ["write"], run_id)
        return RequestContext(caller=self.verifier.verify(token), request_id="test")


@dataclass
class Client:
    """The stubs of the service, and the keys to call them with."""

    blocks: Any
    context: Any
    files: Any
    keys: Keys


@pytest.fixture(scope="session")
def keys() -> Keys:
    private, public = generate_key_pair()
    return Keys(TokenSigner(private), TokenVerifier(public), public)


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def urls(databases: Any) -> Any:
    return await databases.of(MIGRATIONS)


@pytest.fixture
def settings(urls: Any, keys: Keys) -> CoreMemorySettings:
    return CoreMemorySettings(
        port=0,
        database_url=urls.service_url,
        worker_database_url=urls.worker_url,
        # Nobody listens there: archival is down in these tests.
        targets={"archival": "127.0.0.1:1"},
        token_public_keys=keys.public,
        drain_s=0,
        grace_s=0.1,
        pool_size=8,
    )


@pytest.fixture(params=["socket", "inprocess"])
async def client(
    request: pytest.FixtureRequest, settings: CoreMemorySettings, keys: Keys
) -> AsyncIterator[Client]:
    async with AsyncExitStack() as stack:
        if request.param == "socket":
            server = await stack.enter_async_context(serving(build, settings))
            factory = ChannelFactory()
            stack.push_async_callback(factory.close)
            channel = factory.channel(server.address, services_of("core_memory"))
        else:
            network = InProcessNetwork(keys.verifier)
            service = await build(settings, network, stack)
            network.register(service, settings)
            await stack.enter_async_context(BackgroundTasks(service))
            stack.push_async_callback(network.close)
            channel = network.channel("core_memory")
        yield Client(
            block_service_pb2_grpc.BlockServiceStub(channel),
            context_service_pb2_grpc.ContextServiceStub(channel),
            file_service_pb2_grpc.FileServiceStub(channel),
            keys,
        )


@pytest.fixture(autouse=True)
def project(keys: Keys) -> Iterator[str]:
    """A project of the test's own, signed in."""
    project_id = new_id("project")
    with use(keys.context(project_id)):
        yield project_id


@pytest.fixture
async def admin(urls: Any) -> AsyncIterator[asyncpg.Connection[Any]]:
    connection = await asyncpg.connect(urls.admin_url)
    yield connection
    await connection.close()
