"""A cluster on this machine: several replicas of each service, as in the Kubernetes manifests."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import asyncpg
import grpc.aio

from benchmarks.client import Client
from benchmarks.processes import ROOT, Child, environment, tree_of, until_calm, usage
from strata.standalone.data_folder import DataFolder

_START_S = 180.0
_POLL_S = 0.05
# An idle cluster uses less processor time in a second, for each replica of all services.
_CALM_MS = 100.0
_CALM_S = 3
_PATIENCE_S = 120


class Cluster:
    """A running cluster of `faults.cluster`.

    Args:
        folder: Its data folder.
        child: The supervisor of all its processes.
        replicas: Number of replicas of each service.
    """

    def __init__(self, folder: DataFolder, child: Child, replicas: int) -> None:
        self._folder = folder
        self._child = child
        self.replicas = replicas

    @asynccontextmanager
    async def clients(self) -> AsyncIterator[list[Client]]:
        """Opens a client for each gateway."""
        runtime = self._folder.running()
        assert runtime is not None, "the cluster is not running"
        key = (self._folder.secrets / "api-key").read_text()
        async with AsyncExitStack() as stack:
            clients = []
            for address in runtime.address.split(","):
                channel = await stack.enter_async_context(grpc.aio.insecure_channel(address))
                clients.append(Client(channel, (("authorization", f"Bearer {key}"),)))
            yield clients

    def cpu_ms(self) -> Counter[str]:
        """Returns the processor time of its processes in milliseconds, by service and engine."""
        cpu_ms = usage(self._child.pid).cpu_ms
        times = Counter({name: round(milliseconds) for name, milliseconds in cpu_ms.items()})
        # The supervisor, which has nothing to do with a turn.
        del times["strata"]
        return times

    async def settle(self) -> None:
        """Waits until work in the background, such as indexing, has ended."""
        await until_calm(
            self._child.pid,
            calm_ms=_CALM_MS * self.replicas,
            calm_s=_CALM_S,
            patience_s=_PATIENCE_S,
        )

    async def database(self) -> Counter[str]:
        """Returns the counts of PostgreSQL: commits, flushes of the log, and its bytes."""
        password = (self._folder.postgres / "superuser.password").read_text().strip()
        port = (self._folder.postgres / "port").read_text().strip()
        connection = await asyncpg.connect(
            f"postgresql://postgres:{password}@127.0.0.1:{port}/strata"
        )
        try:
            # Each session reports its counts once a second at most.
            await asyncio.sleep(1.5)
            commits = await connection.fetchval(
                "SELECT xact_commit FROM pg_stat_database WHERE datname = 'strata'"
            )
            flushes = await connection.fetchval(
                "SELECT sum(fsyncs) FROM pg_stat_io WHERE object = 'wal'"
            )
            written = await connection.fetchval("SELECT wal_bytes FROM pg_stat_wal")
        finally:
            await connection.close()
        return Counter(commits=int(commits), flushes=int(flushes), wal_bytes=int(written))


@asynccontextmanager
async def open_cluster(
    data: Path, model_url: str, replicas: int, settings: Mapping[str, str] | None = None
) -> AsyncIterator[Cluster]:
    """Starts a cluster on an empty data folder.

    Args:
        data: The data folder; other users must be able to pass through its parents.
        model_url: The chat model.
        replicas: Replicas of each service, four at most.
        settings: Further settings.
    """
    values = {
        "STRATA_LOCAL_DEMO": "off",
        "OPENAI_BASE_URL": model_url,
        "OPENAI_API_KEY": "benchmark",
        **(settings or {}),
    }
    path = environment(values)["PYTHONPATH"]
    child = Child(
        ["-m", "faults.cluster", str(data), "0", str(replicas)],
        {**values, "PYTHONPATH": f"{path}:{ROOT / 'tests' / 'support'}"},
        data.with_suffix(".log"),
    )
    folder = DataFolder(data)
    try:
        async with asyncio.timeout(_START_S):
            while folder.running() is None:
                if not tree_of(child.pid):
                    raise RuntimeError(data.with_suffix(".log").read_text(errors="replace"))
                await asyncio.sleep(_POLL_S)
        yield Cluster(folder, child, replicas)
    finally:
        await child.stop()
