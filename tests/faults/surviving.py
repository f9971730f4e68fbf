"""Clients that write while processes are killed, and checks that nothing they stored is lost."""

from __future__ import annotations

import asyncio
import itertools
import random
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import grpc
import pytest

from faults.live import Client, Live, Turn, dialogue
from faults.load import close_to_the_last, is_passing
from passage_uploads import upload_passages
from strata.api.agent_loop.v1 import agent_service_pb2
from strata.api.archival.v1 import passage_index_service_pb2_grpc as passage_index_grpc
from strata.api.archival.v1 import passage_service_pb2 as passage_pb
from strata.api.common.v1 import message_pb2, search_pb2
from strata.api.recall.v1 import message_index_service_pb2_grpc as message_index_grpc
from strata.api.recall.v1 import message_service_pb2 as message_pb

WINDOW = 4_096
_FILLS_IT = 8
"""After this number of turns the window is compacted in nearly every turn."""
_PATIENCE_S = 120.0
_ASKED_AT_ONCE = 8
_T = TypeVar("_T")
_PLACES = ("harbour", "attic", "orchard", "station", "library", "quarry", "bakery", "meadow")
_THINGS = ("lantern", "barometer", "kite", "accordion", "telescope", "anvil", "teapot", "sledge")
_SUBJECTS = (
    *("violin", "tiger", "volcano", "bread", "submarine", "tax", "wedding"),
    *("cactus", "hockey", "satellite", "bishop", "perfume", "glacier", "spider"),
    *("opera", "diesel", "diamond", "measles", "castle", "election", "honey"),
    *("robot", "pirate", "carpet", "chess", "whale", "poem", "tractor"),
    *("vampire", "soap", "desert", "banjo", "dentist", "passport", "thunder"),
    *("cheese", "umbrella", "comet", "mosquito", "cathedral", "algebra", "lipstick"),
    *("cricket", "furnace", "kangaroo", "lawyer", "mustard", "rainbow", "anchor"),
    *("skeleton", "tobacco", "waterfall", "yoghurt", "zipper", "pension", "gorilla"),
    *("helicopter", "marathon", "parliament", "saxophone", "vaccine", "walnut", "eclipse"),
    *("pharaoh",),
)
_OPEN = {
    search_pb2.REINDEX_PHASE_BUILDING,
    search_pb2.REINDEX_PHASE_CHECKING,
    search_pb2.REINDEX_PHASE_SWITCHED,
}


def fact(writer: str, number: int) -> str:
    """Returns a text that resembles many others, with one unique word."""
    place, thing = _PLACES[number % 8], _THINGS[number // 8 % 8]
    return f"Item {writer}{number:05}q: the {thing} is kept in the {place}."


def _filler(writer: str, number: int) -> str:
    """Returns eighty words that no other text has; index checks search for their middle."""
    drawn = random.Random(f"{writer}{number}")
    return " ".join(drawn.choices(drawn.sample(_SUBJECTS, 4), k=80))


async def until_answered(ask: Callable[[], Awaitable[_T]]) -> _T:
    """Repeats a call until it succeeds; fails at errors that no killed process can cause."""
    until = asyncio.get_running_loop().time() + _PATIENCE_S
    while True:
        try:
            return await ask()
        except grpc.aio.AioRpcError as error:
            assert is_passing(error), error
            assert asyncio.get_running_loop().time() < until, error
            await asyncio.sleep(0.1)


@dataclass
class Archivist:
    """Inserts passages, singly or several in a stream, until each is acknowledged."""

    client: Client
    name: str
    agent_id: str = ""
    kept: list[str] = field(default_factory=list)

    async def begin(self) -> None:
        """Creates the agent whose archive it fills."""
        self.agent_id = (await self.client.new_agent()).id

    async def put(self) -> None:
        """Inserts the next passages; repeats the call with the same request id."""
        number = len(self.kept)
        count = 1 if number % 3 else 4
        texts = [fact(self.name, number + i) for i in range(count)]
        await until_answered(lambda: self._insert(f"{self.agent_id}-{number}", texts))
        self.kept += texts

    async def _insert(self, request_id: str, texts: Sequence[str]) -> None:
        stub, call = self.client.passages, self.client.call
        passages = [passage_pb.NewPassage(text=text) for text in texts]
        if len(passages) == 1:
            one = passage_pb.InsertPassageRequest(
                request_id=request_id, agent_id=self.agent_id, passage=passages[0]
            )
            await stub.InsertPassage(one, **call)
            return
        await upload_passages(
            stub, passages, call=call, request_id=request_id, agent_id=self.agent_id
        )


@dataclass
class Talker:
    """Sends messages in a small window, which is compacted every few turns; sometimes archives.

    Attributes:
        report: Returns the errors that the services logged, for a failed assertion.
        facts: The texts that were sent and answered.
        kept: The texts that were archived: the tool returned OK.
        perhaps: The texts that may be in the archive: the outcome of the tool is unknown.
        unanswered: The texts that may be in the log: the turn ended with a retryable error.
    """

    client: Client
    name: str
    report: Callable[[], str]
    agent_id: str = ""
    conversation_id: str = ""
    facts: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    perhaps: list[str] = field(default_factory=list)
    unanswered: list[str] = field(default_factory=list)

    async def begin(self) -> None:
        """Creates the agent."""
        config = agent_service_pb2.ModelConfig(context_window=WINDOW)
        agent = await self.client.new_agent(model=config)
        self.agent_id, self.conversation_id = agent.id, agent.default_conversation_id

    async def put(self) -> None:
        """Sends the next message, with one request id, until the turn has ended."""
        number = len(self.facts) + len(self.unanswered)
        text = fact(self.name, number)
        archives = number % 4 == 2
        message = f"archive {text}" if archives else f"{text} {_filler(self.name, number)}"
        turn = await until_answered(
            lambda: self.client.send(self.agent_id, message, request_id=f"{self.agent_id}-{number}")
        )
        if archives:
            (self.kept if _kept(turn) else self.perhaps).append(text)
        if turn.ended_well:
            self.facts.append(text)
        else:
            # A service was down for longer than the time limit of the agent loop's calls.
            assert turn.finished.error.retryable, f"{turn.finished}\n{self.report()}"
            self.unanswered.append(text)

    def check(self, log: Sequence[message_pb2.Message]) -> None:
        """Asserts that answered messages are in the log once, with their replies, and in order."""
        assert [message.sequence for message in log] == list(range(len(log)))
        spoken = dialogue(log)
        users = [_item(text) for role, text in spoken if role == "user"]
        unanswered = {_item(text) for text in self.unanswered}
        assert len(set(users)) == len(users)
        assert [item for item in users if item not in unanswered] == [
            _item(text) for text in self.facts
        ]
        ends = [*spoken, ("user", "")]
        for (role, text), (following, _) in itertools.pairwise(ends):
            if role == "user" and _item(text) not in unanswered:
                assert following == "assistant", text


def _item(text: str) -> str:
    return text[text.index("Item") :].partition(":")[0]


def _kept(turn: Turn) -> bool:
    """Returns whether the tool returned that it had stored the passage."""
    stored = [e.message_stored.message for e in turn.events if e.HasField("message_stored")]
    statuses = [
        part.tool_return.status
        for message in stored
        for part in message.parts
        if part.HasField("tool_return")
    ]
    return statuses == [message_pb2.TOOL_STATUS_OK]


class Rebuilder:
    """Rebuilds the indexes of both tiers continuously; reverts every other rebuild.

    Attributes:
        ends: How the rebuilds ended.
        notes: Notes of the rebuilds that failed.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        # Unique, because tests may share a Strata.
        self._id = uuid.uuid4().hex
        channel: Any = client.channel
        self._services: dict[str, Any] = {
            "messages": message_index_grpc.MessageIndexServiceStub(channel),
            "passages": passage_index_grpc.PassageIndexServiceStub(channel),
        }
        self.ends: Counter[str] = Counter()
        self.notes: list[str] = []

    async def run(self, over: asyncio.Event) -> None:
        """Rebuilds until the test ends; leaves no rebuild open."""
        number = 0
        while not over.is_set():
            for collection in self._services:
                await self._rebuild(collection, number)
            number += 1

    async def state(self, collection: str) -> search_pb2.IndexState:
        """Returns the state of the index: the active one, and the number of waiting texts."""
        stub = self._services[collection]
        request = search_pb2.GetIndexRequest(collection=collection)
        answer = await until_answered(
            lambda: stub.GetIndex(request, **self._client.as_organization)
        )
        state: search_pb2.IndexState = answer.index
        return state

    async def _rebuild(self, collection: str, number: int) -> None:
        stub = self._services[collection]
        start = search_pb2.StartReindexRequest(
            collection=collection, request_id=f"{self._id}-{collection}-{number}"
        )
        begun = await until_answered(
            lambda: stub.StartReindex(start, **self._client.as_organization)
        )
        while True:
            job = (await self.state(collection)).reindex
            assert job.id == begun.reindex.id
            if job.phase == search_pb2.REINDEX_PHASE_SWITCHED:
                back = number % 2 == 1
                call = stub.RollBackReindex if back else stub.FinishReindex
                request_type: Any = (
                    search_pb2.RollBackReindexRequest if back else search_pb2.FinishReindexRequest
                )
                request = request_type(collection=collection)
                await until_answered(lambda c=call, r=request: c(r, **self._client.as_organization))  # type: ignore[misc]
            elif job.phase not in _OPEN:
                self.ends[search_pb2.ReindexPhase.Name(job.phase)] += 1
                if job.phase == search_pb2.REINDEX_PHASE_FAILED:
                    self.notes.append(f"{collection}: {job.note}")
                return
            await asyncio.sleep(0.3)


@dataclass
class Load:
    """All writers, and the writes that were acknowledged to them.

    Attributes:
        summaries: Number of summaries in the logs at the end.
    """

    client: Client
    archivists: Sequence[Archivist]
    talkers: Sequence[Talker]
    rebuilder: Rebuilder
    summaries: int = 0

    @property
    def counts(self) -> list[int]:
        """Returns the number of acknowledged writes of each writer."""
        return [len(archivist.kept) for archivist in self.archivists] + [
            len(talker.facts) for talker in self.talkers
        ]

    @property
    def unanswered(self) -> int:
        """Returns the number of turns that ended with an error to be retried."""
        return sum(len(talker.unanswered) for talker in self.talkers)

    async def filled(self) -> None:
        """Waits until the windows are full, so that processes die during compactions."""
        await self._until(lambda: min(len(talker.facts) for talker in self.talkers) >= _FILLS_IT)

    async def further(self) -> None:
        """Waits until every writer has completed another write."""
        before = self.counts
        await self._until(
            lambda: all(now > then for now, then in zip(self.counts, before, strict=True))
        )

    async def _until(self, reached: Callable[[], bool]) -> None:
        before = self.counts
        try:
            async with asyncio.timeout(_PATIENCE_S):
                while not reached():
                    await asyncio.sleep(0.02)
        except TimeoutError:
            report = self.talkers[0].report()
            pytest.fail(f"somebody had no answer: {before}, now {self.counts}\n{report}")

    async def assert_all_is_there(self) -> None:
        """Asserts that every acknowledged text is found once, with and without the index."""
        for talker in self.talkers:
            log = await self.client.log(talker.conversation_id)
            talker.check(log)
            self.summaries += [message.role for message in log].count(message_pb2.ROLE_SUMMARY)
        await self._assert_passages_are_listed()
        some = random.Random(5)
        kept, messages = self._passages(), self._messages()
        # A search returns texts that wait for the index, too.
        await _all(self._find_passage(f'"{t}"', a, t) for a, t in _some(some, kept))
        await _all(self._find_message(f'"{t}"', a, t) for a, t in _some(some, messages))
        for collection in ("messages", "passages"):
            while (await self.rebuilder.state(collection)).waiting:
                await asyncio.sleep(0.2)
        # No text waits for the index now, so a search cannot find a text that the index has lost.
        await _all(self._find_passage(text, agent, text) for agent, text in kept)
        await _all(self._find_message(text, agent, text) for agent, text in messages)

    def _passages(self) -> list[tuple[str, str]]:
        by_hand = [
            (archivist.agent_id, text) for archivist in self.archivists for text in archivist.kept
        ]
        by_tool = [(talker.agent_id, text) for talker in self.talkers for text in talker.kept]
        return by_hand + by_tool

    def _messages(self) -> list[tuple[str, str]]:
        return [(talker.agent_id, text) for talker in self.talkers for text in talker.facts]

    async def _assert_passages_are_listed(self) -> None:
        for archivist in self.archivists:
            assert await self._listed(archivist.agent_id) == Counter(archivist.kept)
        for talker in self.talkers:
            there = await self._listed(talker.agent_id)
            assert set(talker.kept) <= set(there) <= {*talker.kept, *talker.perhaps}
            assert max(there.values(), default=1) == 1

    async def _listed(self, agent_id: str) -> Counter[str]:
        counts: Counter[str] = Counter()
        token = ""
        while True:
            request = passage_pb.ListPassagesRequest(
                agent_id=agent_id, page_size=500, page_token=token
            )
            page = await until_answered(
                lambda r=request: self.client.passages.ListPassages(r, **self.client.call)  # type: ignore[misc]
            )
            counts.update(passage.text for passage in page.passages)
            token = page.next_page_token
            if not token:
                return counts

    async def _find_passage(self, query: str, agent_id: str, text: str) -> None:
        request = passage_pb.SearchPassagesRequest(agent_id=agent_id, query=query, top_k=10)
        answer = await until_answered(
            lambda: self.client.passages.SearchPassages(request, **self.client.call)
        )
        texts = [hit.passage.text for hit in answer.hits]
        assert texts.count(text) == 1, (text, texts)

    async def _find_message(self, query: str, agent_id: str, text: str) -> None:
        # In a long load many texts differ from this one in a word or two, and some rank before it.
        request = message_pb.SearchMessagesRequest(
            agent_id=agent_id, query=query, limit=50, roles=[message_pb2.ROLE_USER]
        )
        answer = await until_answered(
            lambda: self.client.messages.SearchMessages(request, **self.client.call)
        )
        texts = ["".join(part.text.text for part in hit.message.parts) for hit in answer.hits]
        assert sum(text in found_text for found_text in texts) == 1, (text, texts)


def _some(chance: random.Random, texts: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return chance.sample(texts, min(40, len(texts)))


async def _all(checks: Any) -> None:
    waiting = iter(checks)

    async def hand() -> None:
        for check in waiting:
            await check

    async with asyncio.TaskGroup() as group:
        for _ in range(_ASKED_AT_ONCE):
            group.create_task(hand())


@asynccontextmanager
async def writing(strata: Live, pause: float) -> AsyncIterator[Load]:
    """Runs writers during the block, each with a pause of about `pause` seconds."""
    address, key = strata.runtime.address, strata.key
    clients = [Client(address, key, strata.organization_key) for _ in range(4)]
    load = Load(
        clients[0],
        [Archivist(clients[0], "a"), Archivist(clients[1], "b")],
        [
            Talker(client, name, strata.incidents)
            for client, name in zip(clients[2:], "cd", strict=True)
        ],
        Rebuilder(clients[0]),
    )
    over = asyncio.Event()
    chance = random.Random(7)
    writers: list[Archivist | Talker] = [*load.archivists, *load.talkers]
    writes = [0] * len(writers)

    async def run(number: int) -> None:
        while not over.is_set():
            await writers[number].put()
            writes[number] += 1
            await asyncio.sleep(chance.uniform(0, 2 * pause))
            await close_to_the_last(writes[number], lambda: writes, over)

    try:
        for task in writers:
            await task.begin()
        async with asyncio.TaskGroup() as group:
            for number in range(len(writers)):
                group.create_task(run(number))
            group.create_task(load.rebuilder.run(over))
            try:
                yield load
            finally:
                over.set()
        await load.assert_all_is_there()
    finally:
        for client in clients:
            await client.channel.close()
