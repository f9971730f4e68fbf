"""Search tools return nothing for unrelated queries; the RPCs count excluded results."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest
import pytest_asyncio

from doubles.script import say
from inner_services import InnerServices
from integration.tool_execution.conftest import Tools
from strata.api.archival.v1 import passage_service_pb2 as passage_pb
from strata.api.recall.v1 import message_service_pb2 as message_pb
from strata.api.recall.v1 import message_service_pb2_grpc as message_grpc

pytestmark = pytest.mark.asyncio(loop_scope="session")

PARTY = "\U0001f389 The exam went well."
TEXTS = ("I am off to Porto in May.", "She is allergic to peanuts.", "The car is blue.", PARTY)
UNRELATED = "tungsten"


class Memory:
    """An agent with the same texts as messages and passages, all of them indexed."""

    def __init__(self, tools: Tools, services: InnerServices) -> None:
        self.tools = tools
        self._agent = tools.agent.id
        self._messages = message_grpc.MessageServiceStub(services.channel("recall"))
        self._services = services

    async def fill(self) -> None:
        self._services.model.script(*(say("Noted.") for _ in TEXTS))
        for text in TEXTS:
            await self._services.run(self.tools.agent, text)
            passage = passage_pb.NewPassage(text=text)
            await self._services.passages.InsertPassage(
                passage_pb.InsertPassageRequest(agent_id=self._agent, passage=passage)
            )
        for count in (self.messages, self.passages):
            await _until(count, len(TEXTS))

    async def messages(self) -> int:
        """Returns how many messages a search excludes as unrelated; it must return none."""
        request = message_pb.SearchMessagesRequest(
            agent_id=self._agent, query=UNRELATED, limit=20, explain=True
        )
        response = await self._messages.SearchMessages(request)
        assert not response.hits
        return sum(
            exclusion.count
            for exclusion in response.exclusions
            if exclusion.condition == "relevance"
        )

    async def passages(self) -> int:
        """Like `messages`, for passages."""
        request = passage_pb.SearchPassagesRequest(
            agent_id=self._agent, query=UNRELATED, top_k=20, explain=True
        )
        response = await self._services.passages.SearchPassages(request)
        assert not response.hits
        return sum(
            exclusion.count
            for exclusion in response.exclusions
            if exclusion.condition == "relevance"
        )

    async def search(self, tool: str, query: str) -> str:
        """Runs the search tool; returns its return for the model."""
        (ended,) = await self.tools.run((tool, {"query": query}))
        packed = json.loads(ended.tool_return.content)
        assert packed["status"] == "OK", packed
        return json.dumps(packed["message"], ensure_ascii=False)


async def _until(count: Callable[[], Awaitable[int]], least: int) -> None:
    async with asyncio.timeout(60):
        while await count() < least:
            await asyncio.sleep(0.05)


@pytest_asyncio.fixture(loop_scope="session")
async def memory(tools: Tools, services: InnerServices) -> Memory:
    made = Memory(tools, services)
    await made.fill()
    return made


SEARCHES = {
    "conversation_search": "No results found.",
    "archival_memory_search": "[]",
}


@pytest.mark.parametrize("tool", SEARCHES)
async def test_a_search_tool_returns_related_texts_only(memory: Memory, tool: str) -> None:
    for query in (UNRELATED, "zzzqqq", "asdf qwer", "\u7ae0\u9c7c", "\U0001f419"):
        content = await memory.search(tool, query)
        assert SEARCHES[tool] in content, query
        assert not any(text in content for text in TEXTS), query
    for query, text in (
        ("a city", TEXTS[0]),
        ("what must she not eat", TEXTS[1]),
        ("\U0001f389", PARTY),
        ("\U0001f389 exam", PARTY),
    ):
        assert text in await memory.search(tool, query), query
    assert TEXTS[2] not in await memory.search(tool, "\U0001f389")
