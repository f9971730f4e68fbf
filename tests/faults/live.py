"""A running Strata, a client of its public API, and its scripted model."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import grpc

from doubles import memory_persona
from doubles.model_server import ModelServer
from doubles.script import ModelCall, Reply, Responder, Step, say
from live import LiveStrata
from strata.api.agent_loop.v1 import agent_service_pb2, agent_service_pb2_grpc
from strata.api.archival.v1 import passage_service_pb2_grpc
from strata.api.common.v1 import message_pb2, run_event_pb2
from strata.api.core_memory.v1 import block_service_pb2_grpc, file_service_pb2_grpc
from strata.api.gateway.v1 import admin_service_pb2_grpc, run_service_pb2, run_service_pb2_grpc
from strata.api.recall.v1 import message_service_pb2, message_service_pb2_grpc

_CHANNEL_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 50),
    # Time limit for opening a connection; long, because a process that starts is busy.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 300),
    # Keepalive settings of the Python client: calls to a suspended gateway fail after a while.
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
)


class ModelThread:
    """The scripted model API in a thread, independent of the event loop of a test.

    It repeats the last message. The reply to a message that begins with ``gently`` takes about
    two seconds. The first reply to a message that begins with ``slowly`` takes a minute. A message
    that begins with a verb of `memory_persona` makes a tool call.

    Args:
        answer: Answers every request instead of the behaviour above.
    """

    def __init__(self, answer: Responder | None = None) -> None:
        self._started = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._asked: set[str] = set()
        self.server = ModelServer(answer or self._answer)
        self.url = ""

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._started.wait(60):
            raise RuntimeError("the model double did not start")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._loop is not None and self._end is not None:
            self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(10)

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        async with self.server:
            self.url = self.server.openai_url
            self._started.set()
            await self._end.wait()

    @contextmanager
    def answering(self, answer: Responder) -> Iterator[None]:
        """Answers every request with a function inside the block."""
        self.server.respond(answer)
        try:
            yield
        finally:
            self.server.respond(self._answer)

    def asked(self, text: str) -> int:
        """Returns the number of requests whose last message is `text`."""
        return sum(1 for call in list(self.server.requests) if call.last_text.strip() == text)

    def _answer(self, call: ModelCall) -> Step:
        text = call.last_text
        again = text in self._asked
        self._asked.add(text)
        if text.startswith("gently"):
            return _paced(text, 2.0)
        if text.startswith("slowly") and not again:
            return _paced(text, 60.0)
        return memory_persona.answer(call)


def _paced(text: str, seconds: float) -> Reply:
    answer = f"You said: {text}"
    return say(answer, piece=2, pause=seconds / (len(answer) / 2))


class Live(LiveStrata):
    """A `LiveStrata` with the client of the fault tests."""

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """Returns a client with the keys of the first start."""
        async with Client(self.runtime.address, self.key, self.organization_key) as client:
            yield client


@dataclass(frozen=True)
class Turn:
    """A run as its client received it."""

    events: Sequence[run_event_pb2.RunEvent]

    @property
    def run_id(self) -> str:
        return str(self.events[0].run_id)

    @property
    def finished(self) -> run_event_pb2.RunFinished:
        """The terminal event: there is exactly one, and it is the last event."""
        kinds = [event.WhichOneof("event") for event in self.events]
        assert kinds.count("run_finished") == 1, kinds
        assert kinds[-1] == "run_finished", kinds
        return self.events[-1].run_finished

    @property
    def ended_well(self) -> bool:
        return self.finished.stop_reason == run_event_pb2.STOP_REASON_END_TURN

    @property
    def durable(self) -> list[int]:
        """Sequences of the stored events, in order."""
        passing = {"text_delta", "reasoning_delta", "tool_call_delta", "text_snapshot"}
        return [e.sequence for e in self.events if e.WhichOneof("event") not in passing]

    @property
    def brief(self) -> list[tuple[int, str]]:
        """Returns sequence and kind of the events, for the message of an assertion."""
        return [(event.sequence, event.WhichOneof("event") or "") for event in self.events]

    @property
    def reply(self) -> str:
        """Text of the stored messages of the assistant."""
        stored = [
            e.message_stored.message
            for e in self.events
            if e.WhichOneof("event") == "message_stored"
        ]
        return "".join(text_of(m) for m in stored if m.role == message_pb2.ROLE_ASSISTANT)


def text_of(message: message_pb2.Message) -> str:
    """Returns the joined text parts of a message."""
    return "".join(part.text.text for part in message.parts if part.HasField("text"))


def slowly() -> str:
    """Returns a message whose first reply takes a minute."""
    return f"slowly, so that there is time to be killed in: {uuid.uuid4()}"


def inputs(text: str) -> list[message_pb2.MessageInput]:
    """Returns one message of the user."""
    part = message_pb2.Part(text=message_pb2.TextPart(text=text))
    return [message_pb2.MessageInput(parts=[part])]


class Client:
    """The public API with one key, over one connection.

    Args:
        address: The gateway.
        key: The API key.
        organization_key: The key for calls that belong to no project; none by default.
    """

    def __init__(self, address: str, key: str, organization_key: str = "") -> None:
        self.channel = grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS)
        self.metadata: Sequence[tuple[str, str]] = (("authorization", f"Bearer {key}"),)
        self._organization_metadata = (("authorization", f"Bearer {organization_key}"),)
        channel: Any = self.channel
        self.agents = agent_service_pb2_grpc.AgentServiceStub(channel)
        self.runs = run_service_pb2_grpc.RunServiceStub(channel)
        self.messages = message_service_pb2_grpc.MessageServiceStub(channel)
        self.blocks = block_service_pb2_grpc.BlockServiceStub(channel)
        self.passages = passage_service_pb2_grpc.PassageServiceStub(channel)
        self.files = file_service_pb2_grpc.FileServiceStub(channel)
        self.admin = admin_service_pb2_grpc.AdminServiceStub(channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.channel.close()

    @property
    def call(self) -> Mapping[str, Any]:
        """Keyword arguments of every call."""
        return {"metadata": self.metadata, "timeout": 60}

    @property
    def as_organization(self) -> Mapping[str, Any]:
        """Keyword arguments of every call with the organization key."""
        return {"metadata": self._organization_metadata, "timeout": 60}

    async def new_agent(self, name: str = "", **fields: Any) -> agent_service_pb2.Agent:
        """Creates an agent."""
        request = agent_service_pb2.CreateAgentRequest(name=name, **fields)
        return (await self.agents.CreateAgent(request, **self.call)).agent

    async def send(
        self,
        agent_id: str,
        text: str,
        *,
        on_event: Callable[[run_event_pb2.RunEvent], None] = lambda _: None,
        **fields: Any,
    ) -> Turn:
        """Sends a message and follows its run to the end; calls `on_event` with each event."""
        request = run_service_pb2.SendMessageRequest(
            agent_id=agent_id, messages=inputs(text), **fields
        )
        events = []
        async for response in self.runs.SendMessage(request, **self.call):
            on_event(response.event)
            events.append(response.event)
        return Turn(events)

    async def begin(
        self, model: ModelThread, agent_id: str, text: str, **fields: Any
    ) -> asyncio.Task[Turn]:
        """Sends a message; returns after the first step has started, when the model was called."""
        asked, step_begun = model.asked(text), asyncio.Event()

        def on_event(event: run_event_pb2.RunEvent) -> None:
            if event.HasField("step_started"):
                step_begun.set()

        turn = asyncio.create_task(self.send(agent_id, text, on_event=on_event, **fields))
        async with asyncio.timeout(60):
            while not step_begun.is_set() or model.asked(text) == asked:
                assert not (turn.done() and turn.exception()), turn
                await asyncio.sleep(0.02)
        return turn

    async def shut_out(self) -> None:
        """Waits until the gateway refuses calls because it is stopping."""
        request = agent_service_pb2.ListAgentsRequest(page_size=1)
        async with asyncio.timeout(60):
            while True:
                try:
                    await self.agents.ListAgents(request, **self.call)
                except grpc.aio.AioRpcError as error:
                    # CANCELLED: the gateway accepted the call and ended it when it stopped.
                    expected = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
                    assert error.code() in expected, error
                    return
                await asyncio.sleep(0.02)

    async def follow(self, run_id: str, after: int = 0) -> Turn:
        """Follows a run from a sequence to its end."""
        request = run_service_pb2.StreamRunRequest(
            run_id=run_id, after_sequence=after, send_message_as_text=False
        )
        events = [response.event async for response in self.runs.StreamRun(request, **self.call)]
        return Turn(events)

    async def run(self, run_id: str) -> run_service_pb2.Run:
        """Returns a run."""
        request = run_service_pb2.GetRunRequest(run_id=run_id)
        return (await self.runs.GetRun(request, **self.call)).run

    async def log(self, conversation_id: str) -> list[message_pb2.Message]:
        """Returns all messages of a conversation, oldest first."""
        messages: list[message_pb2.Message] = []
        token = ""
        while True:
            request = message_service_pb2.ListMessagesRequest(
                conversation_id=conversation_id,
                page_size=500,
                page_token=token,
                send_message_as_text=False,
            )
            page = await self.messages.ListMessages(request, **self.call)
            messages.extend(page.messages)
            token = page.next_page_token
            if not token:
                return messages


def dialogue(log: Iterable[message_pb2.Message]) -> list[tuple[str, str]]:
    """Returns (role, text) of the messages of user and assistant that have text."""
    names = {message_pb2.ROLE_USER: "user", message_pb2.ROLE_ASSISTANT: "assistant"}
    return [(names[m.role], text_of(m)) for m in log if m.role in names and text_of(m)]
