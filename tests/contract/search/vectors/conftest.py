"""The targets of the contract: Qdrant's local mode, the embedded engine, a real server.

`QDRANT_URL` (and `QDRANT_API_KEY`) add a real server; the port is the gRPC port, 6334.
"""

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pytest

import strata
from qdrant_local_mode import LocalModeClient
from strata.shared.search.fusion import FusionConfig
from strata.shared.search.vectors import Collection, FieldKind, IndexedChunk, IndexedDocument
from strata.shared.search.vectors.client import QdrantClient, connect
from strata.shared.search.vectors.index import PayloadValue
from strata.shared.search.vectors.qdrant import QdrantConfig, QdrantIndex
from strata.shared.search.vectors.sparse import SparseEncoder
from strata.standalone.vectors import EmbeddedVectors

DIM = 4
MODEL = "test-model"
FIELDS = {
    "archive_id": FieldKind.KEYWORD,
    "tags": FieldKind.KEYWORD,
    "kind": FieldKind.INTEGER,
    "create_time": FieldKind.DATETIME,
}
ENCODER = SparseEncoder()
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


def vector(*values: float) -> list[float]:
    return [*values, *[0.0] * (DIM - len(values))]


def document(
    name: str,
    dense: Sequence[float] = (1.0,),
    text: str = "",
    more: Sequence[tuple[Sequence[float], str]] = (),
    **payload: PayloadValue,
) -> IndexedDocument:
    """A document of one chunk, and of `more`."""
    parts = [(dense, text), *more]
    chunks = [IndexedChunk(vector(*one), ENCODER.document(words)) for one, words in parts]
    return IndexedDocument(name, chunks, payload)


@dataclass
class EngineProcess:
    """The embedded engine's process without its supervisor: it stays dead when killed."""

    folder: Path
    port: int = 0
    key: str = field(default_factory=lambda: secrets.token_hex(16))
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self.folder / "api_key").write_text(self.key)
        ready = self.folder / "server.json"
        ready.unlink(missing_ok=True)
        self.port = self.port or free_port()
        paths = [str(Path(part).parent) for part in strata.__path__]
        program = [sys.executable, "-m", "strata.standalone.vectors.server"]
        self.process = subprocess.Popen(
            [*program, "--folder", str(self.folder), "--port", str(self.port)],
            env={"PYTHONPATH": os.pathsep.join(paths)},
        )
        until = time.monotonic() + 60
        while not ready.exists():
            assert self.process.poll() is None, "the engine did not start"
            assert time.monotonic() < until, "the engine is not ready"
            time.sleep(0.02)

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)
            self.process.wait(30)
            self.process = None


def free_port() -> int:
    """Returns a free port below the range that the kernel uses for outgoing connections."""
    for port in secrets.SystemRandom().sample(range(20_000, 32_000), 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no free port")


@pytest.fixture
def own_engine(tmp_path: Path) -> Iterator[EngineProcess]:
    """An engine that the test may kill."""
    engine = EngineProcess(tmp_path / "vectors")
    engine.start()
    yield engine
    engine.end(signal.SIGKILL)


QDRANT_URL = os.environ.get("QDRANT_URL")
QDRANT_API_KEY = os.environ.get("QDRANT_API_KEY")
WIRE_TARGETS = ["embedded", *(["server"] if QDRANT_URL else [])]
TARGETS = ["local", *WIRE_TARGETS]


@pytest.fixture(params=TARGETS)
def address(request: pytest.FixtureRequest) -> tuple[str, str | None] | None:
    """Address and key of the target; None for the local mode. Not async: see `vectors`."""
    if request.param == "local":
        return None
    if request.param == "server":
        assert QDRANT_URL is not None
        return QDRANT_URL, QDRANT_API_KEY
    engine: EmbeddedVectors = request.getfixturevalue("vectors")
    return engine.url, engine.api_key


@pytest.fixture
async def client(address: tuple[str, str | None] | None) -> AsyncIterator[QdrantClient]:
    made = connect(*address) if address else LocalModeClient()
    yield made
    await made.close()


@pytest.fixture
async def index(client: QdrantClient) -> QdrantIndex:
    # The vectors of these tests are made by hand: their distances have no meaning.
    return QdrantIndex(client, QdrantConfig(fusion=FusionConfig(floor=0.0)))


@pytest.fixture
async def collection(index: QdrantIndex) -> AsyncIterator[Collection]:
    """A collection of this test alone, ready for use."""
    made = Collection(f"test-{uuid4().hex[:12]}", FIELDS)
    await index.ensure(made, MODEL, DIM)
    yield made
    for generation in await index.generations(made):
        await index._client.delete_collection(generation)
