"""An engine or a service is killed under load; the others keep working, and nothing is lost."""

from __future__ import annotations

import asyncio

import grpc
import psutil
import pytest

from faults.live import Client, Live, ModelThread, dialogue, slowly
from faults.load import further, talking
from faults.victims import kill
from strata.api.archival.v1 import passage_service_pb2
from strata.api.common.v1 import run_event_pb2
from strata.api.core_memory.v1 import block_service_pb2
from strata.api.gateway.v1 import run_service_pb2

# The first test of a shape starts the Strata of all.
pytestmark = pytest.mark.timeout(240)

SERVICES = (
    *("core_memory", "recall", "archival", "tool_runner", "tool_execution", "agent_loop"),
    "gateway",
)
BOTH = pytest.mark.parametrize(
    "live",
    [
        pytest.param(False, id="single"),
        pytest.param(True, id="split", marks=pytest.mark.slow),
    ],
    indirect=True,
)


@BOTH
async def test_nothing_is_lost_when_postgres_is_killed(live: Live) -> None:
    async with talking(live) as talks:
        await further(talks, 2)
        pid = kill(live, "postgres").pid
        await further(talks, 3)
        async with live.client() as client:
            for talk in talks:
                # Edits of messages that are sent while the block is read may be in it or not.
                facts = [text.partition(" ")[2] for text in talk.sent_texts if "remember" in text]
                block = await _human(client, talk.agent_id)
                # Each edit is stored once, although its turn may have been repeated.
                assert [line for line in block.splitlines() if line in facts] == facts
    assert not psutil.pid_exists(pid)
    assert any(talk.failures for talk in talks) or _engine_restarts(live, "PostgreSQL") == 1


async def test_memory_works_without_the_vector_engine_and_is_indexed_later(live: Live) -> None:
    def text(number: int, turn: int) -> str:
        return (
            f"archive fact {turn} of talk {number}" if turn % 2 == 0 else f"search fact {turn - 1}"
        )

    async with talking(live, 3, text) as talks:
        await further(talks, 2)
        kill(live, "vectors")
        await further(talks, 4)
        assert [talk.failures for talk in talks] == [[], [], []]
    async with live.client() as client:
        for talk in talks:
            facts = {t.removeprefix("archive ") for t in talk.sent_texts if t.startswith("archive")}
            passages = await _indexed(client, talk.agent_id)
            assert {passage.text for passage in passages} == facts
            response = await client.passages.SearchPassages(
                passage_service_pb2.SearchPassagesRequest(
                    agent_id=talk.agent_id, query="a truth that was put away", top_k=100
                ),
                **client.call,
            )
            # Query and facts have no word in common, so only the vector search can find them.
            assert {hit.passage.text for hit in response.hits} == facts
            assert all(hit.relevance.HasField("vector_rank") for hit in response.hits)
    assert _engine_restarts(live, "vector engine") == 1


@pytest.mark.slow
@pytest.mark.parametrize("live", [True], ids=["split"], indirect=True)
async def test_nothing_is_lost_when_services_are_killed_one_after_the_other(live: Live) -> None:
    killed = {}
    async with talking(live) as talks:
        for service in SERVICES:
            await further(talks, 1)
            killed[service] = kill(live, service).pid
            await further(talks, 2)
    restarted = {service for service, pid in killed.items() if not psutil.pid_exists(pid)}
    assert restarted == set(SERVICES)


@pytest.mark.parametrize("live", [True], ids=["split"], indirect=True)
async def test_a_turn_survives_the_death_of_its_agent_loop(live: Live, model: ModelThread) -> None:
    async with live.client() as client:
        agent = await client.new_agent()
        text = slowly()
        turn = await client.begin(model, agent.id, text)
        assert not turn.done()
        kill(live, "agent_loop")
        answered = await turn
        assert answered.ended_well
        assert answered.reply == f"You said: {text}"
        run = await client.run(answered.run_id)
        assert run.attempt > 1
        kinds = [event.WhichOneof("event") for event in answered.events]
        assert "step_restarted" in kinds
        assert answered.durable == sorted(set(answered.durable))


@pytest.mark.slow
@pytest.mark.parametrize("live", [True], ids=["split"], indirect=True)
async def test_a_run_is_cancelled_while_its_agent_loop_hangs(
    live: Live, model: ModelThread
) -> None:
    async with live.client() as client:
        agent = await client.new_agent()
        turn = await client.begin(model, agent.id, slowly())
        hung = psutil.Process(live.runtime.processes["agent_loop"])
        hung.suspend()
        try:
            listed = run_service_pb2.ListRunsRequest(agent_id=agent.id)
            [run] = (await client.runs.ListRuns(listed, **client.call)).runs
            cancel = run_service_pb2.CancelRunRequest(run_id=run.id)
            cancelled = (await client.runs.CancelRun(cancel, **client.call)).run
            assert cancelled.state == run_service_pb2.RUN_STATE_CANCELLING
            async with asyncio.timeout(60):
                ended = await turn
            assert ended.finished.stop_reason == run_event_pb2.STOP_REASON_CANCELLED
            following = asyncio.create_task(client.send(agent.id, "next"))
        finally:
            hung.resume()
        assert (await following).reply == "You said: next"
        # The agent loop, which works again, has stored no reply of the cancelled turn.
        log = await client.log(agent.default_conversation_id)
        assert [text for _, text in dialogue(log)][1:] == ["next", "You said: next"]


@pytest.mark.slow
@pytest.mark.parametrize("live", [True], ids=["split"], indirect=True)
async def test_a_client_whose_gateway_died_follows_its_run_to_the_end(
    live: Live, model: ModelThread
) -> None:
    async with live.client() as client:
        agent = await client.new_agent()
        text = slowly()
        turn = await client.begin(model, agent.id, text, request_id=agent.id)
        kill(live, "gateway")
        with pytest.raises(grpc.aio.AioRpcError) as broken:
            await turn
        assert broken.value.code() is grpc.StatusCode.UNAVAILABLE
        while True:
            try:
                followed = await client.send(agent.id, text, request_id=agent.id)
                break
            except grpc.aio.AioRpcError as error:
                assert error.code() is grpc.StatusCode.UNAVAILABLE
                await asyncio.sleep(0.1)
        assert followed.ended_well
        assert followed.reply == f"You said: {text}"
        assert (await client.send(agent.id, "next")).ended_well


async def _human(client: Client, agent_id: str) -> str:
    request = block_service_pb2.GetBlockRequest(agent_id=agent_id, label="human")
    return str((await client.blocks.GetBlock(request, **client.call)).block.value)


async def _indexed(client: Client, agent_id: str) -> list[passage_service_pb2.Passage]:
    """Returns the passages of an agent after all of them are in the index."""
    request = passage_service_pb2.ListPassagesRequest(agent_id=agent_id, page_size=500)
    async with asyncio.timeout(30):
        while True:
            passages = (await client.passages.ListPassages(request, **client.call)).passages
            if all(
                passage.index_state == passage_service_pb2.INDEX_STATE_INDEXED
                for passage in passages
            ):
                return list(passages)
            await asyncio.sleep(0.1)


def _engine_restarts(live: Live, engine: str) -> int:
    died = [line for line in live.log.splitlines() if "engine died" in line]
    return sum(1 for line in died if engine in line)
