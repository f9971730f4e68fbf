"""The real recall service on embedded engines, filled with chats."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from benchmarks.retrieval.datasets import Chat, Question, Turn
from strata.api.common.v1 import message_pb2 as common
from strata.api.common.v1 import search_pb2
from strata.api.recall.v1 import message_service_pb2 as message_pb
from strata.api.recall.v1 import message_service_pb2_grpc as message_grpc
from strata.api.recall.v1 import window_service_pb2 as window_pb
from strata.api.recall.v1 import window_service_pb2_grpc as window_grpc
from strata.recall.main import build
from strata.recall.migrations import MIGRATIONS
from strata.recall.search.index import MESSAGES
from strata.recall.settings import RecallSettings
from strata.recall.store import PendingMessages
from strata.shared.auth import TokenSigner, TokenVerifier, generate_key_pair
from strata.shared.context import RequestContext, use
from strata.shared.db import Database
from strata.shared.ids import new_id
from strata.shared.inprocess import InProcessNetwork
from strata.shared.migrate import RolePasswords
from strata.shared.search.embedding import Embedder
from strata.shared.search.engines import open_embedder, open_vectors
from strata.shared.search.vectors import VectorIndex, Where
from strata.shared.service import BackgroundTasks
from strata.standalone.postgres import EmbeddedPostgres
from strata.standalone.vectors import EmbeddedVectors

_ROLES = {"user": common.ROLE_USER, "assistant": common.ROLE_ASSISTANT}
_PASSWORDS = RolePasswords("benchmark-service", "benchmark-worker")


@dataclass
class Reranked:
    """A second service over the same messages, with a reranker.

    Attributes:
        outcomes: Number of rerankings by outcome.
        model: Id of its model.
    """

    messages: message_grpc.MessageServiceStub
    outcomes: Counter[str] = field(default_factory=Counter)
    model: str = ""

    def description(self) -> str:
        """Returns the outcomes as text."""
        counts = ", ".join(f"{name} {count}" for name, count in sorted(self.outcomes.items()))
        return f"{self.model}: {counts or 'not asked'}"


@dataclass
class Recall:
    """The recall service, filled with chats.

    Attributes:
        agents: The agent of each chat, by the chat's name and a digest of its turns.
        keys: The key of each turn, by the id of its message.
        project: The tenant of all agents.
        without_floor: A second service over the same messages, whose searches have no floor.
        reranked: The service with a reranker, if one is measured.
    """

    messages: message_grpc.MessageServiceStub
    without_floor: message_grpc.MessageServiceStub
    windows: window_grpc.WindowServiceStub
    pending: PendingMessages
    vectors: VectorIndex
    embedder: Embedder
    folder: Path
    project: str
    agents: dict[str, str] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    reranked: Reranked | None = None
    _agent_by_chat: dict[str, str] = field(default_factory=dict)

    async def fill(self, chats: Sequence[Chat]) -> None:
        """Stores missing messages, and waits until all of them are indexed."""
        for chat in chats:
            identity = identity_of(chat)
            if identity not in self.agents:
                self.agents[identity] = await self._store(chat)
                self._remember()
            self._agent_by_chat[chat.name] = self.agents[identity]
        while waiting := (await self.pending.lag()).waiting:
            print(f"  {waiting} messages wait for the index", flush=True)
            await asyncio.sleep(5)

    async def search(
        self, chat: Chat, question: Question, mode: message_pb.SearchMode.ValueType, limit: int
    ) -> tuple[list[str], float]:
        """Returns the keys of the best turns through the service, and the seconds it took."""
        request = self._request(chat, question.text, question.asked, mode, limit)
        started = time.perf_counter()
        response = await self.messages.SearchMessages(request)
        seconds = time.perf_counter() - started
        return self._keys_of(response), seconds

    async def search_text(self, chat: Chat, text: str, asked: datetime, limit: int) -> list[str]:
        """Returns the keys of the best turns for a query that belongs to no data set."""
        request = self._request(chat, text, asked, message_pb.SEARCH_MODE_HYBRID, limit)
        return self._keys_of(await self.messages.SearchMessages(request))

    async def search_without_floor(
        self, chat: Chat, text: str, asked: datetime, limit: int
    ) -> list[str]:
        """Like `search_text`, but without the floor."""
        request = self._request(chat, text, asked, message_pb.SEARCH_MODE_HYBRID, limit)
        return self._keys_of(await self.without_floor.SearchMessages(request))

    async def rerank(self, chat: Chat, question: Question, limit: int) -> tuple[list[str], float]:
        """Like `search`, but with the reranker; counts the outcome."""
        assert self.reranked is not None
        request = self._request(
            chat, question.text, question.asked, message_pb.SEARCH_MODE_HYBRID, limit
        )
        started = time.perf_counter()
        response = await self.reranked.messages.SearchMessages(request)
        seconds = time.perf_counter() - started
        if response.HasField("reranking"):
            name = search_pb2.RerankOutcome.Name(response.reranking.outcome)
            self.reranked.outcomes[name.removeprefix("RERANK_OUTCOME_").lower()] += 1
            self.reranked.model = response.reranking.model
        return self._keys_of(response), seconds

    async def by_meaning(self, chat: Chat, question: Question, limit: int) -> list[str]:
        """Returns the best turns by cosine alone, without preferences."""
        vector = (await self.embedder.embed([question.text], "query"))[0]
        where = Where(eq={"agent_id": self.agent_of(chat)})
        # By rank, because the score of a hit includes the texts around it.
        hits = await self.vectors.query(
            MESSAGES, self.project, dense=vector, where=where, limit=limit, uncut=True
        )
        hits.sort(key=lambda hit: hit.vector_rank or math.inf)
        return [self.keys[hit.document_id] for hit in hits[:limit]]

    def agent_of(self, chat: Chat) -> str:
        """Returns the agent that has the turns of a chat."""
        return self._agent_by_chat[chat.name]

    def sizes(self) -> dict[str, int]:
        """Returns the bytes on disk, by engine."""
        return {
            name: sum(file.stat().st_blocks * 512 for file in path.rglob("*") if file.is_file())
            for name, path in (
                ("vectors", self.folder / "vectors"),
                ("postgres", self.folder / "postgres"),
            )
        }

    def _keys_of(self, response: message_pb.SearchMessagesResponse) -> list[str]:
        return [self.keys[hit.message.id] for hit in response.hits]

    def _request(
        self,
        chat: Chat,
        text: str,
        asked: datetime,
        mode: message_pb.SearchMode.ValueType,
        limit: int,
    ) -> message_pb.SearchMessagesRequest:
        request = message_pb.SearchMessagesRequest(
            agent_id=self.agent_of(chat), query=text, mode=mode, limit=limit
        )
        request.reference_time.FromDatetime(asked)
        return request

    async def _store(self, chat: Chat) -> str:
        """Stores the turns of a chat as one conversation of a new agent, and returns its id."""
        agent, conversation = new_id("agent"), new_id("conversation")
        system = common.Message(id=new_id("message"), role=common.ROLE_SYSTEM)
        wires = [_wire(turn) for turn in chat.turns]
        await self.windows.OpenWindow(
            window_pb.OpenWindowRequest(
                conversation_id=conversation, agent_id=agent, messages=[system, *wires]
            )
        )
        self.keys |= {wire.id: turn.key for wire, turn in zip(wires, chat.turns, strict=True)}
        return agent

    def _remember(self) -> None:
        state = {"project": self.project, "agents": self.agents, "keys": self.keys}
        (self.folder / "known.json").write_text(json.dumps(state), encoding="utf-8")


def identity_of(chat: Chat) -> str:
    """Returns the name of a chat with a digest of its turns, so that changed ones are stored."""
    turns = [(turn.key, turn.role, turn.name, turn.text, str(turn.time)) for turn in chat.turns]
    return f"{chat.name} {hashlib.sha256(json.dumps(turns).encode()).hexdigest()[:16]}"


def _wire(turn: Turn) -> common.Message:
    wire = common.Message(
        id=new_id("message"),
        role=_ROLES[turn.role],
        name=turn.name,
        parts=[common.Part(text=common.TextPart(text=turn.text))],
    )
    wire.create_time.FromDatetime(turn.time)
    return wire


@asynccontextmanager
async def open_recall(folder: Path, reranker: Path | None = None) -> AsyncIterator[Recall]:
    """Opens the service over a folder; data of a former run is used again.

    Args:
        folder: Folder of the engines' data.
        reranker: Cross-encoder for a second service over the same data; None for none.
    """
    async with AsyncExitStack() as stack:
        postgres = EmbeddedPostgres(folder / "postgres")
        await postgres.start()
        stack.push_async_callback(postgres.stop)
        engine = EmbeddedVectors(folder / "vectors")
        await engine.start()
        stack.push_async_callback(engine.stop)
        await MIGRATIONS.upgrade(postgres.url(), _PASSWORDS)
        private, public = generate_key_pair()
        settings = RecallSettings(
            database_url=postgres.url(user=MIGRATIONS.roles.service, password=_PASSWORDS.service),
            worker_database_url=postgres.url(
                user=MIGRATIONS.roles.worker, password=_PASSWORDS.worker
            ),
            qdrant_url=engine.url,
            qdrant_api_key=engine.api_key,
            token_public_keys=public,
        )
        verifier = TokenVerifier(public)
        network = await stack.enter_async_context(InProcessNetwork(verifier))
        service = await build(settings, network, stack)
        network.register(service, settings)
        await stack.enter_async_context(BackgroundTasks(service))
        reranked = None
        if reranker is not None:
            chosen = settings.model_copy(update={"reranker_path": reranker})
            reranked = Reranked(await _open_second(chosen, verifier, stack))
        without_floor = settings.model_copy(update={"search_floor": 0.0})
        database, worker = Database(settings.database_url), Database(settings.worker_database_url)
        stack.push_async_callback(database.close)
        stack.push_async_callback(worker.close)
        file = folder / "known.json"
        state = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        project = state.get("project") or new_id("project")
        # Longer than any run of the benchmark.
        day = timedelta(days=1)
        token = TokenSigner(private).mint("benchmark", project, "benchmark", ["write"], ttl=day)
        stack.enter_context(use(RequestContext(caller=verifier.verify(token))))
        yield Recall(
            message_grpc.MessageServiceStub(network.channel("recall")),
            await _open_second(without_floor, verifier, stack),
            window_grpc.WindowServiceStub(network.channel("recall")),
            PendingMessages(database, worker),
            await open_vectors(settings, network.shared_resources, stack),
            await open_embedder(settings, network.shared_resources, stack),
            folder,
            project,
            state.get("agents", {}),
            state.get("keys", {}),
            reranked,
        )


async def _open_second(
    settings: RecallSettings, verifier: TokenVerifier, stack: AsyncExitStack
) -> message_grpc.MessageServiceStub:
    """Opens another service over the same data, without background tasks."""
    network = await stack.enter_async_context(InProcessNetwork(verifier))
    network.register(await build(settings, network, stack), settings)
    return message_grpc.MessageServiceStub(network.channel("recall"))
