"""Turns of every kind during faults; `faults.comparison` compares the results at the end.

Kinds of turns, and the operation in each during which a process may die:

- plain: a reply is streamed; in half of the turns also to a second client at another gateway.
- edit: core memory is changed.
- archive: a long passage is embedded and stored.
- record: a tool runs that has an effect outside Strata.
- approve, deny: the run requests an approval, which is answered after a while.
- client: the client runs the tool and sends its return.
- long: the window is compacted, for which a summary is requested from the model.
- upload: not a turn; a file is uploaded, read and indexed.

The agent of worker "e" uses the V2 loop: its calls request a heartbeat, and it replies through
``send_message``.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import re
import sys
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc

from doubles.script import Call, ModelCall, Reply, Step, call, say
from faults.comparison import Account, Fault, File, Run, Stream, compare
from faults.live import Client, inputs
from faults.load import close_to_the_last, is_passing
from mcp_support import program_command, tool
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.archival.v1 import passage_service_pb2 as passage_pb
from strata.api.common.v1 import message_pb2, tool_pb2
from strata.api.core_memory.v1 import block_service_pb2 as block_pb
from strata.api.core_memory.v1 import file_service_pb2 as file_pb
from strata.api.gateway.v1 import run_service_pb2 as run_pb
from strata.api.tool_execution.v1 import mcp_service_pb2 as mcp_pb
from strata.api.tool_execution.v1 import mcp_service_pb2_grpc as mcp_grpc
from strata.api.tool_execution.v1 import tool_service_pb2 as registry_pb
from strata.api.tool_execution.v1 import tool_service_pb2_grpc as registry_grpc
from uploading import upload_requests

_PATIENCE_S = 180.0
_MCP_SERVER = "effects"
_RECORD = f"{_MCP_SERVER}__record"
_CLIENT_TOOL = "show_map"
# The kinds of turns of each worker, by its name.
_KINDS = {
    "a": ("plain", "edit", "archive", "record"),
    "b": ("plain", "archive", "approve", "deny"),
    "c": ("long", "long", "plain"),
    "d": ("plain", "record", "client", "upload"),
    "e": ("plain", "edit", "archive", "record"),
}
_V2_WORKER = "e"
_TOOLS = {"c": [], "d": [_RECORD, _CLIENT_TOOL], "e": [_RECORD, "memory_insert"]}
_ALL_KINDS = {kind for kinds in _KINDS.values() for kind in kinds}
_WINDOW = 4_096
MOMENTS = ("reply", "follower", "embedding", "tool", "approval", "return", "summary", "upload")
"""The operations during which a process may die."""
_SUMMARY_S = 1.0
_TAG = re.compile(r"\b([abcde])\d{4}[0-9a-f]{6}\b")
_WORDS = (
    *("harbour", "lantern", "orchard", "glacier", "teapot"),
    *("violin", "station", "compass", "meadow", "quarry"),
)


@dataclass
class Persona:
    """A model that follows the last message, which has the form ``<kind> <tag> <file>``.

    Attributes:
        bought: Number of requests, by tag and by whether they follow a tool return.
        summaries: Name of the agent and time of each request for a summary.
    """

    bought: Counter[tuple[str, bool]] = field(default_factory=Counter)
    summaries: list[tuple[str, float]] = field(default_factory=list)

    def answer(self, request: ModelCall) -> Step:
        """Answers a request."""
        if "transcript" in request.system:
            match = _TAG.search(request.last_text)
            assert match is not None, request.last_text
            self.summaries.append((match[1], time.monotonic()))
            return say("- Much was said before.", piece=2, pause=_SUMMARY_S / 12)
        kind, tag, file = _task(request)
        after_tool = _follows_a_tool(request)
        self.bought[tag, after_tool] += 1
        step = self._step(kind, tag, file, after_tool=after_tool)
        return _of_v2(step) if tag.startswith(_V2_WORKER) else step

    def _step(self, kind: str, tag: str, file: str, *, after_tool: bool) -> Reply:
        if after_tool:
            return say(f"Done with {tag}, and so to the end.", piece=4, pause=0.03)
        match kind:
            case "edit":
                return call("memory_insert", {"label": "human", "new_str": tag})
            case "archive":
                return call("archival_memory_insert", {"content": f"{tag} {_words(tag, 700)}"})
            case "record" | "approve" | "deny":
                return _and_says(call(_RECORD, {"tag": tag, "file": file}))
            case "client":
                return _and_says(call(_CLIENT_TOOL, {"place": tag}))
            case _:
                return say(f"A plain reply to {tag}, in some pieces.", piece=3, pause=0.03)


def _and_says(reply: Reply) -> Reply:
    return Reply(text="One moment. ", calls=reply.calls, piece=4, pause=0.02)


def _of_v2(reply: Reply) -> Reply:
    """Returns a reply in the form that the model of a V2 agent uses."""
    if not reply.calls:
        calls = (Call("send_message", {"message": reply.text}),)
        return Reply(calls=calls, piece=reply.piece, pause=reply.pause)
    [made] = reply.calls
    assert isinstance(made.arguments, dict)
    arguments = {**made.arguments, "request_heartbeat": True}
    return replace(reply, calls=(replace(made, arguments=arguments),))


def _follows_a_tool(request: ModelCall) -> bool:
    """Returns whether a tool return follows the last task; a heartbeat may be between."""
    for message in reversed(request.body["messages"]):
        if message["role"] == "tool":
            return True
        if message["role"] == "user" and _is_task(message["content"]):
            return False
    return False


def _is_task(content: Any) -> bool:
    return isinstance(content, str) and content.split(" ")[0] in _ALL_KINDS


def _task(request: ModelCall) -> tuple[str, str, str]:
    for message in reversed(request.body["messages"]):
        if message["role"] == "user" and _is_task(message["content"]):
            kind, tag, file = message["content"].strip().split(" ")[:3]
            return kind, tag, file
    raise ValueError("no task in the request")


def _words(seed: str, count: int) -> str:
    return " ".join(random.Random(seed).choices(_WORDS, k=count))


@dataclass
class Worker:
    """One agent, and its client, which uses any of the gateways.

    Attributes:
        runs: The runs that have ended.
        turns: Number of turns and uploads that have ended.
        moment: The current operation, one of `MOMENTS`; empty for anything else.
        uploaded: Files whose upload was acknowledged.
    """

    clients: Sequence[Client]
    name: str
    effects: Path
    chance: random.Random
    agent_id: str = ""
    conversation_id: str = ""
    folder_id: str = ""
    runs: list[Run] = field(default_factory=list)
    turns: int = 0
    moment: str = ""
    uploaded: list[File] = field(default_factory=list)

    async def begin(self) -> None:
        """Creates the agent."""
        rules, model = [], agent_pb.ModelConfig()
        if self.name == "b":
            asks = tool_pb2.TOOL_RULE_TYPE_REQUIRES_APPROVAL
            rules = [tool_pb2.ToolRule(type=asks, tool_name=_RECORD)]
        if self.name == "c":
            model.context_window = _WINDOW
        fields: dict[str, Any] = {}
        if self.name == _V2_WORKER:
            # The initial messages of a conversation belong to no run.
            fields = {"type": agent_pb.AGENT_TYPE_MEMGPT_V2, "without_initial_messages": True}
        client = self.clients[0]
        agent = await client.new_agent(
            name=f"worker-{self.name}",
            tools=_TOOLS.get(self.name, [_RECORD]),
            tool_rules=rules,
            model=model,
            # A small window would not hold the block, which grows during the test.
            blocks=[block_pb.NewBlock(label="human", limit=100_000)],
            **fields,
        )
        self.agent_id, self.conversation_id = agent.id, agent.default_conversation_id
        folder = file_pb.CreateFolderRequest(name=f"folder-{self.name}")
        self.folder_id = (await client.files.CreateFolder(folder, **client.call)).folder.id

    async def turn(self) -> None:
        """Makes one turn or upload; ends when all runs of the turn have ended."""
        kind = self.chance.choice(_KINDS[self.name])
        tag = f"{self.name}{self.turns:04}{uuid.uuid4().hex[:6]}"
        if kind == "upload":
            await self._upload(tag)
        else:
            await self._talk(kind, tag)
        self.moment = ""
        self.turns += 1

    async def _talk(self, kind: str, tag: str) -> None:
        text = f"{kind} {tag} {self.effects}"
        if kind == "long":
            text += f" {_words(tag, 120)}"
        request = run_pb.SendMessageRequest(
            agent_id=self.agent_id,
            messages=inputs(text),
            request_id=tag,
            send_message_as_text=False,
        )
        run = await self._run(
            tag, kind, lambda client: client.runs.SendMessage(request, **client.call)
        )
        if run.approval is None:
            return
        returned = None
        if kind == "client":
            failed = self.chance.random() < 0.5
            status = message_pb2.TOOL_STATUS_FAILED if failed else message_pb2.TOOL_STATUS_OK
            returned = status, f"shown for {tag}"
            decision = message_pb2.ApprovalDecision(
                client_return=returned[1], client_status=returned[0]
            )
        else:
            decision = message_pb2.ApprovalDecision(approve=kind == "approve")
            self.moment = "approval"
            await asyncio.sleep(self.chance.uniform(0.2, 1.5))
        response = run_pb.RespondToApprovalRequest(
            request_id=f"{tag}-answer",
            approval_id=run.approval.approval_id,
            send_message_as_text=False,
        )
        for made in run.approval.tool_calls:
            decision.tool_call_id = made.tool_call_id
            response.decisions.append(decision)
        if returned is not None:
            self.moment = "return"
        await self._run(
            tag,
            "answer",
            lambda client: client.runs.RespondToApproval(response, **client.call),
            returned,
        )

    async def _run(
        self,
        tag: str,
        kind: str,
        start: Callable[[Client], Any],
        returned: tuple[int, str] | None = None,
    ) -> Run:
        sends_message = self.name == _V2_WORKER
        run = Run(tag, kind, time.monotonic(), returned=returned, sends_message=sends_message)
        follower: asyncio.Task[None] | None = None
        joins = self.chance.random() < 0.5
        try:
            async for _ in self._events(run, run.seen, start):
                if joins and follower is None:
                    run.followed = Stream()
                    follower = asyncio.create_task(self._follow(run, run.followed))
            run.ended = time.monotonic()
            if follower is not None:
                await follower
        finally:
            if follower is not None:
                follower.cancel()
        run.stored = await self._again(run.id)
        run.row = await until_answered(self.clients, lambda client: client.run(run.id))
        self.runs.append(run)
        return run

    async def _events(
        self, run: Run, stream: Stream, start: Callable[[Client], Any] | None
    ) -> AsyncIterator[None]:
        """Reads a run to its end; opens a new connection when one breaks."""
        until = time.monotonic() + _PATIENCE_S
        while True:
            client = self.chance.choice(self.clients)
            stream.connections += 1
            try:
                async for response in self._connect(run, stream, client, start):
                    stream.events.append(response.event)
                    if stream is run.seen:
                        self._note(run, response.event)
                    yield
                    if stream.over:
                        return
            except grpc.aio.AioRpcError as error:
                assert is_passing(error), f"{error}\n{run.describe()}"
                assert time.monotonic() < until, f"{error}\n{run.describe()}"
                await asyncio.sleep(0.1)
                continue
            raise AssertionError(f"the stream ended without an end of the run\n{run.describe()}")

    def _connect(
        self, run: Run, stream: Stream, client: Client, start: Callable[[Client], Any] | None
    ) -> Any:
        if start is not None and not stream.events:
            return start(client)
        request = run_pb.StreamRunRequest(
            run_id=run.id, after_sequence=stream.after, send_message_as_text=False
        )
        return client.runs.StreamRun(request, **client.call)

    async def _follow(self, run: Run, stream: Stream) -> None:
        async for _ in self._events(run, stream, None):
            pass

    def _note(self, run: Run, event: Any) -> None:
        """Sets `moment` to the operation that begins with an event."""
        match event.WhichOneof("event"):
            case "text_delta" if self.moment != "return":
                self.moment = "reply" if run.followed is None else "follower"
            case "tool_started":
                archival = event.tool_started.name == "archival_memory_insert"
                self.moment = "embedding" if archival else "tool"
            case "tool_finished" | "message_stored":
                self.moment = ""
            case _:
                pass

    async def _again(self, run_id: str) -> list[Any]:
        async def read(client: Client) -> list[Any]:
            return list((await client.follow(run_id)).events)

        events: list[Any] = await until_answered(self.clients, read)
        return events

    async def _upload(self, tag: str) -> None:
        """Repeats an upload until it is acknowledged; waits until the file is prepared."""
        data = "\n".join(_words(f"{tag}{line}", 40) for line in range(6)).encode()
        name = f"{tag}.txt"

        async def upload(client: Client) -> file_pb.File:
            requests = upload_requests(self.folder_id, name, data, request_id=tag)

            async def stream() -> AsyncIterator[file_pb.UploadFileRequest]:
                for request in requests:
                    yield request

            return (await client.files.UploadFile(stream(), **client.call)).file

        self.moment = "upload"
        file = await until_answered(self.clients, upload)
        self.uploaded.append(File(name, hashlib.sha256(data).hexdigest()))
        request = file_pb.GetFileRequest(file_id=file.id)
        async with asyncio.timeout(_PATIENCE_S):
            while file.state != file_pb.FILE_STATE_READY:
                assert file.state != file_pb.FILE_STATE_FAILED, file
                await asyncio.sleep(0.1)
                file = await until_answered(
                    self.clients, lambda c: c.files.GetFile(request, **c.call)
                )
                file = file.file

    # The state at the end.

    async def account(self, persona: Persona) -> Account:
        """Collects what `faults.comparison.compare` needs."""
        recorded = Counter(self.effects.read_text().split() if self.effects.exists() else [])
        return Account(
            self.runs,
            Counter({key: n for key, n in persona.bought.items() if key[0][0] == self.name}),
            [when for name, when in persona.summaries if name == self.name],
            Counter({tag: n for tag, n in recorded.items() if tag[0] == self.name}),
            Counter((await self._block()).split()),
            Counter(text.split(" ")[0] for text in await self._passages()),
            await until_answered(self.clients, lambda c: c.log(self.conversation_id)),
            await self._open_approvals(),
            self.uploaded,
            await self._files(),
        )

    async def _block(self) -> str:
        request = block_pb.GetBlockRequest(agent_id=self.agent_id, label="human")

        async def read(client: Client) -> str:
            return str((await client.blocks.GetBlock(request, **client.call)).block.value)

        value: str = await until_answered(self.clients, read)
        return value

    async def _passages(self) -> list[str]:
        def page(client: Client, token: str) -> Any:
            request = passage_pb.ListPassagesRequest(
                agent_id=self.agent_id, page_size=500, page_token=token
            )
            return client.passages.ListPassages(request, **client.call)

        return [passage.text for passage in await self._pages(page, "passages")]

    async def _files(self) -> list[File]:
        def page(client: Client, token: str) -> Any:
            request = file_pb.ListFilesRequest(
                folder_id=self.folder_id, page_size=500, page_token=token
            )
            return client.files.ListFiles(request, **client.call)

        return [
            File(
                file.name,
                file.content_hash,
                file.state == file_pb.FILE_STATE_READY and not file.error,
            )
            for file in await self._pages(page, "files")
        ]

    async def _open_approvals(self) -> int:
        def page(client: Client, token: str) -> Any:
            request = run_pb.ListApprovalsRequest(agent_id=self.agent_id, page_token=token)
            return client.runs.ListApprovals(request, **client.call)

        return len(await self._pages(page, "approvals"))

    async def _pages(self, page: Callable[[Client, str], Any], items: str) -> list[Any]:
        collected: list[Any] = []
        token = ""
        while True:
            answer = await until_answered(self.clients, lambda c, at=token: page(c, at))  # type: ignore[misc]
            collected += getattr(answer, items)
            token = answer.next_page_token
            if not token:
                return collected


async def until_answered(clients: Sequence[Client], ask: Callable[[Client], Any]) -> Any:
    """Calls the clients in turn until one returns a result."""
    until = time.monotonic() + _PATIENCE_S
    while True:
        for client in clients:
            try:
                return await ask(client)
            except grpc.aio.AioRpcError as error:
                assert is_passing(error), error
                assert time.monotonic() < until, error
                await asyncio.sleep(0.1)


@dataclass
class Load:
    """All workers, and the faults that were caused during their turns."""

    workers: Sequence[Worker]
    persona: Persona
    faults: list[Fault] = field(default_factory=list)

    async def further(self, turns: int = 1) -> None:
        """Waits until every worker has made `turns` more turns."""
        goals = [worker.turns + turns for worker in self.workers]
        async with asyncio.timeout(_PATIENCE_S):
            while any(
                worker.turns < goal for worker, goal in zip(self.workers, goals, strict=True)
            ):
                await asyncio.sleep(0.02)

    @property
    def moments(self) -> frozenset[str]:
        """The kinds of operations that are in progress."""
        moments = {worker.moment for worker in self.workers} - {""}
        summaries = self.persona.summaries[-1:]
        if summaries and time.monotonic() - summaries[0][1] < _SUMMARY_S:
            moments.add("summary")
        return frozenset(moments)

    async def until_moment(self, moment: str, seconds: float) -> None:
        """Waits until an operation of this kind is in progress, for `seconds` at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while moment not in self.moments:
                    await asyncio.sleep(0.01)

    def latest(self) -> str:
        """Returns the latest faults and the operations of the workers, to explain a failed test."""
        now = time.monotonic()
        lines = [
            f"{now - fault.began:.1f} s ago, for {min(fault.ended, now) - fault.began:.1f} s:"
            f" {fault.service} {fault.how}"
            for fault in self.faults[-8:]
        ]
        return "\n" + "\n".join([*lines, *(f"{w.name}: {w.moment}" for w in self.workers)]) + "\n"

    async def check(self) -> None:
        """Runs `faults.comparison.compare` for every worker after all turns have ended."""
        counts: Counter[str] = Counter()
        for worker in self.workers:
            counts += compare(await worker.account(self.persona), self.faults)
        runs = [run for worker in self.workers for run in worker.runs]
        broken = sum(run.seen.connections > 1 for run in runs)
        faults = Counter(f"{fault.service} {fault.how}" for fault in self.faults)
        moments = Counter(moment for fault in self.faults for moment in fault.moments)
        sys.stdout.write(
            f"\n{len(self.faults)} faults {dict(faults)}\nat these moments {dict(moments)}\n"
            f"{len(runs)} runs {dict(Counter(run.kind for run in runs))}, {broken} with a broken"
            f" connection, {sum(run.followed is not None for run in runs)} followed,"
            f" {sum(len(worker.uploaded) for worker in self.workers)} uploads,"
            f" {len(self.persona.summaries)} summaries, {dict(counts)}\n"
        )


@asynccontextmanager
async def working(
    addresses: Sequence[str], key: str, persona: Persona, folder: Path
) -> AsyncIterator[Load]:
    """Runs all workers during the block, and compares their records at its end.

    Args:
        addresses: Addresses of the gateways.
        key: The API key.
        persona: The model.
        folder: Where the tool with an effect outside Strata writes; any user may write there.
    """
    clients = [Client(address, key) for address in addresses]
    effects = folder / "effects"
    effects.touch()
    effects.chmod(0o666)
    everyone = [Worker(clients, name, effects, random.Random(name)) for name in _KINDS]
    load = Load(everyone, persona)
    over = asyncio.Event()

    async def run(worker: Worker) -> None:
        while not over.is_set():
            await worker.turn()
            await close_to_the_last(worker.turns, lambda: (w.turns for w in everyone), over)

    try:
        await _add_tools(clients[0], folder)
        for worker in everyone:
            await worker.begin()
        async with asyncio.TaskGroup() as group:
            for worker in everyone:
                group.create_task(run(worker))
            try:
                yield load
            finally:
                over.set()
        await load.check()
    finally:
        for client in clients:
            await client.channel.close()


async def _add_tools(client: Client, folder: Path) -> None:
    listed = folder / "tools.json"
    listed.write_text(json.dumps([tool("record")]))
    listed.chmod(0o644)
    command = [*program_command(), str(listed)]
    server = mcp_pb.McpServer(
        name=_MCP_SERVER, transport=mcp_pb.MCP_TRANSPORT_STDIO, command=command
    )
    channel: Any = client.channel
    request = mcp_pb.AddMcpServerRequest(server=server)
    added = (await mcp_grpc.McpServiceStub(channel).AddMcpServer(request, **client.call)).server
    assert [tool.name for tool in added.tools] == [_RECORD], added.error
    parameters = {"type": "object", "properties": {"place": {"type": "string"}}}
    shows = registry_pb.UpsertToolRequest(
        type=tool_pb2.TOOL_TYPE_CLIENT,
        name=_CLIENT_TOOL,
        description="Shows a place on the user's map.",
        parameters_json=json.dumps(parameters),
    )
    await registry_grpc.ToolServiceStub(channel).UpsertTool(shows, **client.call)
