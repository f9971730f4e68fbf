"""No work blocks the event loop for long."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from doubles.script import say
from loop_watch import assert_never_held, watch_loop
from passage_uploads import upload_passages
from polling import eventually
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.archival.v1 import archive_service_pb2 as archive_pb
from strata.api.archival.v1 import passage_service_pb2 as passage_pb
from strata.api.recall.v1 import message_service_pb2 as message_pb
from whole_system import Shape, System, open_system

LONGEST_MS = 20.0
DIM = 384
WORDS = (
    "harbour",
    "lantern",
    "copper",
    "meadow",
    "violin",
    "thunder",
    "orchard",
    "saddle",
    "winter",
)


def some_text(draw: random.Random, words: int) -> str:
    return f"{' '.join(draw.choices(WORDS, k=words))} {draw.random()}."


@pytest.fixture
async def small_world(databases: Any, vectors: Any) -> Any:
    async with open_system(databases, vectors, Shape.IN_PROCESS) as system:
        system.model.respond(lambda _: say("Yes."))
        # After these turns the modules that are loaded in the background, the SDKs of the models,
        # are loaded.
        for model in ("openai/test-model", "anthropic/test-model"):
            await system.send(await system.make_agent(model), "Are you there?")
        yield system


@pytest.mark.slow
async def test_large_batches_of_passages_do_not_block_the_event_loop(small_world: System) -> None:
    system = small_world
    draw = random.Random(1)

    def batch_of(archive: Any) -> list[passage_pb.NewPassage]:
        return [
            passage_pb.NewPassage(
                text=some_text(draw, 50),
                tags=["a", "b"],
                embedding=[draw.gauss(0, 1) for _ in range(DIM)],
                embedding_model=archive.embedding_model,
            )
            for _ in range(700)
        ]

    created = await system.archives.CreateArchive(archive_pb.CreateArchiveRequest(name="Large"))
    archive = created.archive
    batches = [batch_of(archive) for _ in range(2)]

    async def insert_and_search() -> None:
        await upload_passages(system.passages, *batches, archive_id=archive.id)
        # A long passage, without a stored vector.
        passage = passage_pb.NewPassage(text=some_text(draw, 3_000))
        request = passage_pb.InsertPassageRequest(archive_id=archive.id, passage=passage)
        await system.passages.InsertPassage(request)

        async def are_indexed() -> bool:
            asked = archive_pb.GetArchiveRequest(archive_id=archive.id)
            await system.passages.SearchPassages(
                passage_pb.SearchPassagesRequest(
                    archive_ids=[archive.id], query=some_text(draw, 6), top_k=50, explain=True
                )
            )
            await asyncio.sleep(0.5)
            return not (await system.archives.GetArchive(asked)).archive.unindexed_count

        await eventually(are_indexed, 120)
        await system.passages.ListPassages(
            passage_pb.ListPassagesRequest(archive_id=archive.id, page_size=500)
        )

    await assert_never_held(insert_and_search, LONGEST_MS)


async def test_long_conversations_do_not_block_the_event_loop(small_world: System) -> None:
    system = small_world
    draw = random.Random(2)

    async def search(agent: Any) -> bool:
        response = await system.messages.SearchMessages(
            message_pb.SearchMessagesRequest(
                agent_id=agent.id,
                query=f"{some_text(draw, 8)} last March",
                limit=50,
                neighbours=3,
                explain=True,
            )
        )
        return bool(response.hits)

    # A statement is compiled when it is first used.
    first = await system.make_agent("openai/test-model")
    for _ in range(3):
        await system.send(first, some_text(draw, 20))
        await search(first)

    async def talk() -> None:
        agent = await system.make_agent("openai/test-model")
        for number in range(12):
            texts = [some_text(draw, 2_000) for _ in range(4)]
            await system.send(agent, *texts)
            assert await search(agent), number
        await system.agents.CompactConversation(
            agent_pb.CompactConversationRequest(agent_id=agent.id)
        )
        await asyncio.gather(*(system.log(agent) for _ in range(3)))

    await assert_never_held(talk, LONGEST_MS)


async def test_the_watch_names_code_that_blocks_the_event_loop() -> None:
    async def hog() -> None:
        total = 0
        for number in range(3_000_000):
            total += number

    async with watch_loop() as watch:
        await asyncio.create_task(hog())
        await asyncio.sleep(0.2)
    assert any("hog" in delay.what for delay in watch.longer_than(LONGEST_MS))


async def test_code_that_blocks_the_loop_once_is_named() -> None:
    def work(count: int) -> None:
        total = 0
        for number in range(count):
            total += number

    async def hold(count: int) -> None:
        for _ in range(150):
            await asyncio.sleep(0)
        work(count)

    await assert_never_held(lambda: hold(10), LONGEST_MS)
    with pytest.raises(AssertionError, match="hold"):
        await assert_never_held(lambda: hold(3_000_000), LONGEST_MS)


async def test_names_of_blocking_code_contain_no_addresses() -> None:
    # Two runs are compared by these names.
    async def hold_after_a_wait() -> None:
        await asyncio.to_thread(list)
        total = 0
        for number in range(3_000_000):
            total += number

    async with watch_loop() as watch:
        await asyncio.create_task(hold_after_a_wait())
    places = [delay.what for delay in watch.longer_than(LONGEST_MS)]
    assert any("hold_after_a_wait" in place for place in places)
    assert not any("0x" in place for place in places)


async def test_a_callback_that_blocks_the_event_loop_is_named() -> None:
    async def scenario() -> None:
        done = asyncio.Event()

        def hold() -> None:
            total = 0
            for number in range(3_000_000):
                total += number
            done.set()

        for _ in range(150):
            await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(hold)
        await done.wait()

    with pytest.raises(AssertionError, match="hold"):
        await assert_never_held(scenario, LONGEST_MS)
