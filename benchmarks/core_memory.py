"""Measures how long compiling an agent's core memory takes: unchanged, and with much content.

Compile is an internal call, which the gateway does not forward. So a second instance of the
service is built here on the same database and called through the in-process channel, as the agent
loop does. Its own time is the time of the same work without the call.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import cycle

from benchmarks.bench import Bench
from benchmarks.report import Row
from benchmarks.samples import Samples
from benchmarks.texts import facts
from strata.api.core_memory.v1 import block_service_pb2 as block_pb
from strata.api.core_memory.v1 import block_service_pb2_grpc as block_grpc
from strata.api.core_memory.v1 import context_service_pb2 as context_pb
from strata.api.core_memory.v1 import context_service_pb2_grpc as context_grpc
from strata.api.core_memory.v1 import file_service_pb2 as file_pb
from strata.api.core_memory.v1 import file_service_pb2_grpc as file_grpc
from strata.core_memory import main as core_memory
from strata.core_memory.convert.context import to_compile
from strata.core_memory.domain.prompt.compilation import compile_memory
from strata.core_memory.settings import CoreMemorySettings
from strata.core_memory.store.blocks import PostgresBlockStore
from strata.shared.auth import TokenSigner, TokenVerifier, public_key_of
from strata.shared.context import Caller, RequestContext, use
from strata.shared.db import Database, sql
from strata.shared.inprocess import InProcessNetwork

UNCHANGED_TARGET_MS = 2.0
BIG_TARGET_MS = 10.0

_BLOCKS = 20
_CHARS = 20_000
_FILES = 5
# Large enough for all content.
_WINDOW = 400_000
_FILE_LINES = 2_000
_READABLE = (file_pb.FILE_STATE_INDEXING, file_pb.FILE_STATE_READY)


@dataclass(slots=True)
class _Service:
    """The service, by its stubs and by its parts."""

    context: context_grpc.ContextServiceStub
    blocks: block_grpc.BlockServiceStub
    files: file_grpc.FileServiceStub
    store: PostgresBlockStore
    database: Database

    async def work(self, request: context_pb.CompileRequest) -> None:
        """Does the work of Compile without the call."""
        await compile_memory(self.store, to_compile(request))

    async def round_trip(self) -> None:
        """Runs an empty query in a read transaction of the same pool."""
        async with self.database.transaction(read_only=True) as connection:
            await connection.execute(sql("SELECT 1"))


@dataclass(slots=True)
class _Times:
    """The times of the same compilation as a call and as plain work, and of the floor."""

    call: Samples
    own: Samples
    floor: Samples

    async def take(self, service: _Service, request: context_pb.CompileRequest) -> None:
        """Takes one sample of each in turn, so that other load affects all of them."""
        await self.floor.time(1, service.round_trip)
        await self.own.time(1, lambda: service.work(request))
        await self.call.time(1, lambda: service.context.Compile(request))

    def rows(self, name: str, target: float, note: str) -> tuple[Row, Row]:
        """Returns the lines of the report."""
        floor = {"floor": self.floor.median, "floor_name": "SELECT 1"}
        return (
            Row(f"Compile, {name}, own", self.own.median, "ms", p95=self.own.p95,
                target=target, samples=len(self.own), note=note, **floor),  # type: ignore[arg-type]
            Row(f"Compile, {name}", self.call.median, "ms", p95=self.call.p95,
                samples=len(self.call), note="in-process channel", **floor),  # type: ignore[arg-type]
        )  # fmt: skip


async def compile_unchanged(bench: Bench) -> None:
    """Compiles core memory that has not changed, as in every step of a turn."""
    agent = await bench.client.new_agent()
    times = _Times(Samples(), Samples(), Samples())
    async with _service(bench) as service:
        request = context_pb.CompileRequest(agent_id=agent, agent_type="letta_v1_agent")
        request.if_revision = (await service.context.Compile(request)).revision
        if not (await service.context.Compile(request)).not_changed:
            raise RuntimeError("the memory of an idle agent has changed")
        for _ in range(bench.effort.calls):
            await times.take(service, request)
    bench.report.add(
        Row("floor: SELECT 1", times.floor.median, "ms", p95=times.floor.p95,
            samples=len(times.floor), note="BEGIN, SELECT, COMMIT"),
        *times.rows("unchanged", UNCHANGED_TARGET_MS, "one statement"),
    )  # fmt: skip


async def compile_big(bench: Bench) -> None:
    """Compiles large core memory after a change, which renders all blocks and files."""
    agent = await bench.client.new_agent(context_window=_WINDOW)
    times = _Times(Samples(), Samples(), Samples())
    async with _service(bench) as service:
        blocks = [await _fill(service, agent, number) for number in range(_BLOCKS)]
        await _open_files(service, agent)
        request = context_pb.CompileRequest(agent_id=agent, agent_type="letta_v1_agent")
        changing = cycle(blocks)
        for number in range(max(bench.effort.calls // 4, 10)):
            first = await service.context.Compile(request)
            request.if_revision = first.revision
            value = f"{number:05}{_text(number)[5:]}"
            await service.blocks.UpdateBlock(
                block_pb.UpdateBlockRequest(block_id=next(changing), value=value)
            )
            await times.take(service, request)
        section_chars = len((await service.context.Compile(request)).memory_section)
    if section_chars < _BLOCKS * _CHARS:
        raise RuntimeError("not everything is shown")
    bench.report.add(
        *times.rows(
            f"{_BLOCKS} blocks, {_FILES} files",
            BIG_TARGET_MS,
            f"{section_chars / 1000:.0f},000 characters, one block changed",
        )
    )


@asynccontextmanager
async def _service(bench: Bench) -> AsyncIterator[_Service]:
    me = await bench.client.who_am_i()
    private_key = bench.system.folder.secret("token-signing-key")
    token = TokenSigner(private_key).mint(
        me.organization_id, me.project.id, "benchmark", ("agents:read", "agents:write")
    )
    caller = Caller(me.organization_id, me.project.id, "benchmark", token=token)
    password = bench.system.folder.role_passwords("core_memory").service
    url = bench.system.database_url("strata", "strata_core_memory", password)
    async with AsyncExitStack() as stack:
        public_key = public_key_of(private_key)
        network = await stack.enter_async_context(InProcessNetwork(TokenVerifier(public_key)))
        settings = CoreMemorySettings(database_url=url, token_public_keys=public_key)
        network.register(await core_memory.build(settings, network, stack), settings)
        channel = network.channel(core_memory.NAME)
        database = Database(url)
        stack.push_async_callback(database.close)
        stack.enter_context(use(RequestContext(caller=caller, request_id="benchmark")))
        yield _Service(
            context_grpc.ContextServiceStub(channel),
            block_grpc.BlockServiceStub(channel),
            file_grpc.FileServiceStub(channel),
            PostgresBlockStore(database),
            database,
        )


async def _fill(service: _Service, agent: str, number: int) -> str:
    """Makes one full block; returns its id."""
    new = block_pb.NewBlock(label=f"block{number}", value=_text(number), limit=_CHARS)
    made = await service.blocks.CreateBlock(block_pb.CreateBlockRequest(agent_id=agent, block=new))
    return made.block.id


async def _open_files(service: _Service, agent: str) -> None:
    """Shows some files to the agent; the worker of the running system reads them."""
    created = await service.files.CreateFolder(file_pb.CreateFolderRequest(name=agent))
    folder = created.folder.id
    await service.files.AttachFolder(file_pb.AttachFolderRequest(agent_id=agent, folder_id=folder))
    windows = []
    for number in range(_FILES):
        name = f"file{number}.txt"
        uploaded = await service.files.UploadFile(_upload(folder, name))
        async for update in service.files.WatchFile(
            file_pb.WatchFileRequest(file_id=uploaded.file.id)
        ):
            if update.file.state in _READABLE:
                break
        windows.append(file_pb.FileWindow(file_name=f"{agent}/{name}"))
    await service.files.OpenFiles(
        file_pb.OpenFilesRequest(agent_id=agent, windows=windows, max_files_open=_FILES)
    )


async def _upload(folder: str, name: str) -> AsyncIterator[file_pb.UploadFileRequest]:
    header = file_pb.UploadFileHeader(folder_id=folder, name=name)
    yield file_pb.UploadFileRequest(header=header)
    content = "\n".join([name, *facts(_FILE_LINES)]).encode()
    yield file_pb.UploadFileRequest(chunk=content[: 1024 * 1024])


def _text(number: int) -> str:
    lines = "\n".join(facts(_CHARS // 100 + number))
    return lines[-_CHARS:]
