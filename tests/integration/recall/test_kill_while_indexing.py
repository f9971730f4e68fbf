"""The service as a process of its own that is killed while it indexes messages."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import pytest

from child_processes import running_service, service_settings
from polling import eventually
from strata.api.common.v1 import message_pb2 as common
from strata.api.recall.v1 import message_service_pb2 as pb
from strata.api.recall.v1 import message_service_pb2_grpc as message_grpc
from strata.api.recall.v1 import window_service_pb2 as window_pb
from strata.api.recall.v1 import window_service_pb2_grpc as window_grpc
from strata.protocol.errors import NotFoundError, StrataError
from strata.recall.migrations import MIGRATIONS
from strata.recall.search.index import MESSAGES
from strata.shared.auth import TokenSigner, TokenVerifier, generate_key_pair
from strata.shared.channels import ChannelFactory, services_of
from strata.shared.context import RequestContext, use
from strata.shared.ids import new_id
from strata.shared.search.vectors import Where
from strata.shared.search.vectors.client import connect
from strata.shared.search.vectors.qdrant import QdrantIndex
from strata.standalone.ports import ReservedPort
from strata.standalone.vectors import EmbeddedVectors

PLACES = ("Porto", "Lima", "Oslo", "Accra", "Perth", "Quito", "Hanoi", "Turin")


def service(
    urls: Any, vectors: EmbeddedVectors, public: str, port: int
) -> AbstractContextManager[int]:
    engine = {"QDRANT_URL": vectors.url, "QDRANT_API_KEY": vectors.api_key}
    settings = {**service_settings(urls, public, port), **engine}
    constants = {
        "strata.recall.search.indexes._INDEX_BATCH": 4,
        "strata.shared.search.upkeep.INDEX_POLL_S": 0.1,
    }
    return running_service("recall", settings, constants)


@pytest.mark.parametrize(
    "deaths", [2, pytest.param(100, marks=[pytest.mark.slow, pytest.mark.timeout(1_800)])]
)
async def test_acknowledged_messages_are_found_after_a_kill(
    databases: Any, vectors: EmbeddedVectors, deaths: int
) -> None:
    urls = await databases.of(MIGRATIONS)
    private, public = generate_key_pair()
    project, agent = new_id("project"), new_id("agent")
    token = TokenSigner(private).mint("org-1", project, "test", ["write"], ttl=timedelta(hours=1))
    # Reserved for the whole test, also while no process listens.
    reserved = ReservedPort()
    port = reserved.number
    factory = ChannelFactory()
    channel = factory.channel(f"127.0.0.1:{port}", services_of("recall"))
    messages = message_grpc.MessageServiceStub(channel)
    windows = window_grpc.WindowServiceStub(channel)
    engine = QdrantIndex(connect(vectors.url, vectors.api_key))
    ids_by_text: dict[str, str] = {}
    dice = random.Random(deaths)

    async def say(count: int) -> None:
        system = common.Message(id=new_id("message"), role=common.ROLE_SYSTEM)
        sent = [system]
        for _ in range(count):
            text = f"Trip {len(ids_by_text)} went to {PLACES[len(ids_by_text) % len(PLACES)]}."
            wire = common.Message(id=new_id("message"), role=common.ROLE_USER)
            wire.parts.add().text.text = text
            ids_by_text[text] = wire.id
            sent.append(wire)
        await windows.OpenWindow(
            window_pb.OpenWindowRequest(
                conversation_id=new_id("conversation"), agent_id=agent, messages=sent
            )
        )

    async def search_ids(text: str) -> list[str]:
        request = pb.SearchMessagesRequest(agent_id=agent, query=f'"{text}"')
        return [hit.message.id for hit in (await messages.SearchMessages(request)).hits]

    async def there() -> bool:
        try:
            await search_ids("nothing")
        except NotFoundError:
            # The service answers: the agent has no messages yet.
            return True
        except StrataError:
            return False
        return True

    async def complete() -> bool:
        try:
            where = Where(eq={"agent_id": agent})
            return await engine.count(MESSAGES, project, where) == len(ids_by_text)
        except StrataError:
            return False

    with use(RequestContext(caller=TokenVerifier(public).verify(token))):
        for _ in range(deaths):
            with service(urls, vectors, public, port) as pid:
                await eventually(there)
                await say(24)
                await asyncio.sleep(dice.uniform(0, 1.0))
                os.kill(pid, signal.SIGKILL)
        with service(urls, vectors, public, port):
            await eventually(there)
            for text in dice.sample(sorted(ids_by_text), 20):
                assert ids_by_text[text] in await search_ids(text)
            await eventually(complete, 60 + deaths * 2)
            request = pb.SearchMessagesRequest(
                agent_id=agent, query="Where did I go on trip 5?", limit=3
            )
            hits = (await messages.SearchMessages(request)).hits
            assert ids_by_text[f"Trip 5 went to {PLACES[5]}."] in [hit.message.id for hit in hits]
            # Words alone may find one among thousands of similar texts.
            assert any(hit.relevance.HasField("vector_rank") for hit in hits)
    await engine.close()
    await factory.close()
    reserved.release()
