"""The archival and the recall service in this process, on embedded engines, fully durable."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from benchmarks.processes import until_calm, usage
from strata.api.archival.v1 import agent_archive_service_pb2_grpc as agent_grpc
from strata.api.archival.v1 import archive_service_pb2_grpc as archive_grpc
from strata.api.archival.v1 import passage_service_pb2_grpc as passage_grpc
from strata.api.recall.v1 import message_service_pb2_grpc as message_grpc
from strata.api.recall.v1 import window_service_pb2_grpc as window_grpc
from strata.archival.main import build as build_archival
from strata.archival.migrations import MIGRATIONS as ARCHIVAL
from strata.archival.settings import ArchivalSettings
from strata.recall.main import build as build_recall
from strata.recall.migrations import MIGRATIONS as RECALL
from strata.recall.search.index import MESSAGES
from strata.recall.settings import RecallSettings
from strata.recall.store import PendingMessages
from strata.shared.auth import TokenSigner, TokenVerifier, generate_key_pair
from strata.shared.context import RequestContext, use
from strata.shared.db import Database
from strata.shared.ids import new_id
from strata.shared.inprocess import InProcessNetwork
from strata.shared.migrate import RolePasswords, ServiceMigrations
from strata.shared.search.embedding import Embedder
from strata.shared.search.engines import open_embedder, open_vectors
from strata.shared.search.vectors import VectorIndex
from strata.shared.server import THREAD_TURN_S
from strata.shared.service import BackgroundTasks
from strata.standalone.postgres import EmbeddedPostgres
from strata.standalone.vectors import EmbeddedVectors

_PASSWORDS = RolePasswords("benchmark-service", "benchmark-worker")
_MIB = 1 << 20


@dataclass
class Services:
    """The stubs of the services, and their engines.

    Attributes:
        project: The tenant of all data.
        pending: The recall service's queue, which only the benchmark indexes.
        folder: Folder of the engines' data.
        context: Context of the calls; it is current once the services are opened.
    """

    archives: archive_grpc.ArchiveServiceStub
    agents: agent_grpc.AgentArchiveServiceStub
    passages: passage_grpc.PassageServiceStub
    messages: message_grpc.MessageServiceStub
    windows: window_grpc.WindowServiceStub
    pending: PendingMessages
    vectors: VectorIndex
    embedder: Embedder
    project: str
    pid: int
    folder: Path
    context: RequestContext

    def memory(self) -> str:
        """Returns the memory of the processes in MB, by kind."""
        used = usage(self.pid).megabytes
        return ", ".join(f"{name} {megabytes:.0f}" for name, megabytes in sorted(used.items()))

    def cpu_ms(self) -> float:
        """Returns the processor time of all processes until now."""
        return sum(usage(self.pid).cpu_ms.values())

    async def until_calm(self) -> None:
        """Waits until the engines' background work after many writes has ended."""
        if not await until_calm(self.pid):
            print("... the engines are not idle, searching anyway", file=sys.stderr)

    def disk(self) -> str:
        """Returns what is on disk in MiB, by engine."""
        return ", ".join(
            f"{name} {_size(self.folder / name) / _MIB:.0f}" for name in ("postgres", "vectors")
        )


@asynccontextmanager
async def open_services(folder: Path, pid: int) -> AsyncIterator[Services]:
    """Opens the services over an empty folder.

    Args:
        folder: An empty folder that other users can pass through.
        pid: The root of the process tree with the engines.
    """
    # As in a service.
    sys.setswitchinterval(THREAD_TURN_S)
    async with AsyncExitStack() as stack:
        postgres = EmbeddedPostgres(folder / "postgres")
        await postgres.start()
        stack.push_async_callback(postgres.stop)
        engine = EmbeddedVectors(folder / "vectors")
        await engine.start()
        stack.push_async_callback(engine.stop)
        private, public = generate_key_pair()
        verifier = TokenVerifier(public)
        network = await stack.enter_async_context(InProcessNetwork(verifier))

        async def common(migrations: ServiceMigrations) -> dict[str, str]:
            await migrations.upgrade(postgres.url(), _PASSWORDS)
            roles = migrations.roles
            return {
                "database_url": postgres.url(user=roles.service, password=_PASSWORDS.service),
                "worker_database_url": postgres.url(user=roles.worker, password=_PASSWORDS.worker),
                "qdrant_url": engine.url,
                "qdrant_api_key": engine.api_key,
                "token_public_keys": public,
                # The queries are random, so the floor would drop most hits.
                "search_floor": "0",
            }

        archival_settings = ArchivalSettings.model_validate(await common(ARCHIVAL))
        archival = await build_archival(archival_settings, network, stack)
        network.register(archival, archival_settings)
        await stack.enter_async_context(BackgroundTasks(archival))
        recall_settings = RecallSettings.model_validate(await common(RECALL))
        recall = await build_recall(recall_settings, network, stack)
        network.register(recall, recall_settings)
        service = Database(recall_settings.database_url)
        worker = Database(recall_settings.worker_database_url)
        stack.push_async_callback(service.close)
        stack.push_async_callback(worker.close)
        vectors = await open_vectors(recall_settings, network.shared_resources, stack)
        # Runs only until the collection exists. The benchmark writes vectors to the index itself,
        # because embedding a million messages would take too long.
        async with BackgroundTasks(recall), asyncio.timeout(60):
            while True:
                if await vectors.serving(MESSAGES):
                    break
                await asyncio.sleep(0.1)
        project = new_id("project")
        client = _client(private, verifier, project)
        stack.enter_context(use(client))
        yield Services(
            archive_grpc.ArchiveServiceStub(network.channel("archival")),
            agent_grpc.AgentArchiveServiceStub(network.channel("archival")),
            passage_grpc.PassageServiceStub(network.channel("archival")),
            message_grpc.MessageServiceStub(network.channel("recall")),
            window_grpc.WindowServiceStub(network.channel("recall")),
            PendingMessages(service, worker),
            vectors,
            await open_embedder(recall_settings, network.shared_resources, stack),
            project,
            pid,
            folder,
            client,
        )


def _client(private: str, verifier: TokenVerifier, project: str) -> RequestContext:
    signer = TokenSigner(private)
    # Longer than any run of the benchmark.
    token = signer.mint("benchmark", project, "benchmark", ["write"], ttl=timedelta(days=1))
    return RequestContext(caller=verifier.verify(token))


def _size(folder: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in folder.rglob("*") if file.is_file())
