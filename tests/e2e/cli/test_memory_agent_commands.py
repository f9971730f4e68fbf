"""``strata agents sleep``, and memory agents in ``create``, ``update`` and ``show``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from command_line import Run
from e2e.cli.scripted import ScriptedGateway
from strata.api.common.v1 import run_event_pb2
from strata.api.gateway.v1 import run_service_pb2 as pb
from strata.shared.ids import new_id

RUN = new_id("run")


async def edits(_: Any) -> AsyncIterator[run_event_pb2.RunEvent]:
    edit = run_event_pb2.MemoryEdit(label="human", operation="insert")
    yield run_event_pb2.RunEvent(
        sequence=1, tool_finished=run_event_pb2.ToolFinished(memory_edits=[edit])
    )
    yield run_event_pb2.RunEvent(sequence=2, run_finished=run_event_pb2.RunFinished())


async def test_agent_is_created_with_a_memory_agent(gateway: ScriptedGateway, strata: Run) -> None:
    done = await strata("agents", "create", "bo", "--sleeptime", "--sleeptime-frequency", "3")
    assert done.code == 0, done
    [request] = gateway.agents.created
    assert (request.enable_sleeptime, request.sleeptime_agent_frequency) == (True, 3)


async def test_sleep_runs_the_memory_agent_and_prints_how_to_undo_it(
    gateway: ScriptedGateway, strata: Run
) -> None:
    agent = gateway.agents.add("bo")
    agent.enable_sleeptime, agent.memory_agent_id = True, new_id("agent")
    run = pb.Run(id=RUN, agent_id=agent.memory_agent_id, state=pb.RUN_STATE_COMPLETED)
    gateway.runs.runs.append(run)
    gateway.runs.memory_run = pb.StartMemoryRunResponse(run=run)
    gateway.runs.on_stream = edits

    done = await strata("agents", "sleep", "bo")

    assert done.code == 0, done
    assert "human (insert)" in done.out
    assert f"strata memory revert {agent.memory_agent_id} --run {RUN}" in done.err


async def test_sleep_reports_that_there_are_no_new_turns(
    gateway: ScriptedGateway, strata: Run
) -> None:
    gateway.agents.add("bo").enable_sleeptime = True
    done = await strata("agents", "sleep", "bo")
    assert (done.code, done.out.strip()) == (0, "Its memory agent has read all messages.")


async def test_sleep_of_an_agent_without_memory_agent_prints_how_to_add_one(
    gateway: ScriptedGateway, strata: Run
) -> None:
    gateway.agents.add("bo")
    done = await strata("agents", "sleep", "bo")
    assert done.code == 2
    assert "strata agents update bo --sleeptime" in done.err


async def test_show_lists_unread_turns_and_failures(gateway: ScriptedGateway, strata: Run) -> None:
    agent = gateway.agents.add("bo")
    agent.enable_sleeptime, agent.memory_agent_id = True, new_id("agent")
    agent.sleeptime_agent_frequency = 5
    status = pb.MemoryStatus(
        conversation_id=agent.default_conversation_id,
        pending_messages=4,
        run_id=RUN,
        run_open=True,
        failures=2,
        last_error="INTERNAL: broken",
    )
    gateway.runs.memory = pb.GetMemoryStatusResponse(conversations=[status])
    done = await strata("agents", "show", "bo")
    assert done.code == 0, done
    for text in (agent.memory_agent_id, "every 5 turns", "4 message(s) not read", RUN,
                 "failed 2 time(s), last with INTERNAL: broken"):  # fmt: skip
        assert text in done.out


async def test_ingest_prints_its_start_and_show_prints_its_progress(
    gateway: ScriptedGateway, strata: Run
) -> None:
    agent = gateway.agents.add("bo")
    agent.enable_sleeptime, agent.memory_agent_id = True, new_id("agent")
    status = pb.MemoryStatus(
        file_id=new_id("file"), file_name="a b.txt", block_label="a_b.txt", pending_messages=7
    )
    gateway.runs.ingested = pb.IngestFilesResponse(started=[status], open_files=1, waiting_files=9)
    done = await strata("agents", "ingest", "bo")
    assert done.code == 0, done
    assert "a b.txt (block a_b.txt)" in done.out
    assert "9" in done.out

    gateway.runs.memory = pb.GetMemoryStatusResponse(conversations=[status])
    done = await strata("agents", "show", "bo")
    assert "7 line(s) not read; block a_b.txt" in done.out
    assert "a b.txt" in done.out
