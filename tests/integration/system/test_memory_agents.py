"""Memory agents read every message of a conversation once, in the background."""

from __future__ import annotations

import asyncio
import re

import pytest

from chat_messages import roles, text_of, user_message
from doubles.script import Call, Fault, ModelCall, Reply, Step, say
from polling import eventually
from strata.agent_loop.memory_inputs.transcripts import REMINDER
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.agent_loop.v1 import group_service_pb2 as group_pb
from strata.api.common.v1 import run_event_pb2
from strata.api.core_memory.v1 import block_service_pb2 as block_pb
from strata.api.gateway.v1 import run_service_pb2 as run_pb
from strata.shared.ids import default_conversation_id, new_id
from whole_system import System

pytestmark = pytest.mark.asyncio(loop_scope="session")


class Memory:
    """Answers for both agents; records the inputs of the memory agent.

    Attributes:
        held: While it is clear, the memory agent waits for its model.
        answers: What its next replies are instead.
        calls: How often its model was called.
    """

    def __init__(self) -> None:
        self.held = asyncio.Event()
        self.held.set()
        self.answers: list[Step] = []
        self.calls = 0

    def __call__(self, call: ModelCall) -> Step:
        if not _tools(call) & {"memory_finish_edits"}:
            return say(f"reply to {_last_user(call)}")
        self.calls += 1
        if self.answers:
            return self.answers.pop(0)
        return Reply(calls=(Call("memory_finish_edits"),), held=self.held, pause=0.0)


def _tools(call: ModelCall) -> set[str]:
    return {tool["function"]["name"] for tool in call.body.get("tools", ())}


def _last_user(call: ModelCall) -> str:
    texts = [m["content"] for m in call.body["messages"] if m["role"] == "user"]
    return texts[-1] if isinstance(texts[-1], str) else texts[-1][0]["text"]


@pytest.fixture
def memory(system: System) -> Memory:
    memory = Memory()
    system.model.respond(memory)
    return memory


async def transcripts(system: System, agent: agent_pb.Agent) -> list[str]:
    """Returns the inputs of its memory agent, without the reminder."""
    memory_agent = agent_pb.Agent(
        default_conversation_id=default_conversation_id(agent.memory_agent_id)
    )
    sent = [text_of(m) for m in await system.log(memory_agent) if roles([m]) == ["user"]]
    head = f"{REMINDER}\n\nMessages:\n"
    assert all(text.startswith(head) for text in sent)
    return [text.removeprefix(head) for text in sent]


async def is_quiet(system: System, agent: agent_pb.Agent) -> bool:
    return not (await system.memory_status(agent)).run_open


async def test_the_memory_agent_writes_a_fact_of_the_chat_to_a_block(
    system: System, memory: Memory
) -> None:
    agent = await system.make_agent(enable_sleeptime=True)
    memory.answers = [
        Reply(calls=(Call("memory_insert", {"label": "human", "new_str": "Name: Ada"}),)),
    ]
    ran = await system.send(agent, "I am Ada.")
    await eventually(lambda: is_quiet(system, agent))

    assert await transcripts(system, agent) == ["user: I am Ada.\nassistant: reply to I am Ada."]
    assert "Name: Ada" in (await system.block(agent, "human")).value
    [run] = await system.memory_runs(agent)
    assert (run.kind, run.state) == (run_pb.RUN_KIND_SLEEPTIME, run_pb.RUN_STATE_COMPLETED)
    assert run.parent_run_id == ran.run_id
    # The history names the memory agent, and one call takes back all that the run wrote.
    block = await system.block(agent, "human")
    listed = await system.blocks.ListBlockVersions(
        block_pb.ListBlockVersionsRequest(block_id=block.id)
    )
    origins = [(version.origin.kind, version.origin.run_id) for version in listed.versions]
    assert (block_pb.EDITOR_KIND_SLEEPTIME_AGENT, run.id) in origins
    await system.blocks.RevertBlock(
        block_pb.RevertBlockRequest(agent_id=agent.memory_agent_id, run_id=run.id)
    )
    assert "Ada" not in (await system.block(agent, "human")).value
    state = await system.memory_status(agent)
    assert (state.pending_messages, state.failures, state.turns_counter) == (0, 0, 0)
    assert state.last_processed_message_id == ran.messages[-1].id


async def test_a_message_to_the_group_of_an_agent_and_its_memory_agent_is_read_by_the_latter(
    system: System, memory: Memory
) -> None:
    agent = await system.make_agent(enable_sleeptime=True, sleeptime_agent_frequency=1)
    manager = group_pb.ManagerConfig(
        type=group_pb.MANAGER_TYPE_SLEEPTIME, manager_agent_id=agent.id
    )
    request = group_pb.CreateGroupRequest(manager=manager)
    group = (await system.groups.CreateGroup(request)).group
    assert [member.agent_id for member in group.members] == [agent.memory_agent_id]
    started = await system.runs.StartRun(
        run_pb.StartRunRequest(group_id=group.id, messages=[user_message("I am Ada.")])
    )
    following = run_pb.StreamRunRequest(run_id=started.run.id)
    events = [response.event async for response in system.runs.StreamRun(following)]
    [turn] = [event.member for event in events if event.HasField("turn_finished")]
    assert turn.agent_id == agent.id
    assert {e.member.agent_id for e in events if e.HasField("message_stored")} == {agent.id}
    await eventually(lambda: is_quiet(system, agent))

    assert await transcripts(system, agent) == ["user: I am Ada.\nassistant: reply to I am Ada."]
    # It follows the turn of the agent, and is not part of the run of the group.
    [run] = await system.memory_runs(agent)
    assert (run.kind, run.parent_run_id) == (run_pb.RUN_KIND_SLEEPTIME, turn.run_id)
    [own] = [e.run_finished for e in events if e.HasField("run_finished")]
    assert own.stop_reason == run_event_pb2.STOP_REASON_END_TURN


async def test_the_memory_agent_runs_after_the_first_turn_and_then_every_frequency_turns(
    system: System, memory: Memory
) -> None:
    agent = await system.make_agent(enable_sleeptime=True, sleeptime_agent_frequency=2)
    for number in range(4):
        await system.send(agent, f"m{number}")
        await eventually(lambda: is_quiet(system, agent))

    assert await transcripts(system, agent) == [
        "user: m0\nassistant: reply to m0",
        "user: m1\nassistant: reply to m1\nuser: m2\nassistant: reply to m2",
    ]
    assert (await system.memory_status(agent)).pending_messages == 2


async def test_turns_that_end_during_a_memory_run_are_read_by_the_next_run(
    system: System, memory: Memory
) -> None:
    agent = await system.make_agent(enable_sleeptime=True, sleeptime_agent_frequency=1)
    memory.held.clear()
    for number in range(4):
        await system.send(agent, f"m{number}")
    memory.held.set()
    await eventually(lambda: is_quiet(system, agent))

    read = await transcripts(system, agent)
    # The end of the last turn is recorded a moment after it is visible: the next run may have
    # begun.
    assert len(read) in {2, 3}
    lines = [re.findall(r"user: (m\d)", transcript) for transcript in read]
    assert (lines[0], lines[1][:2]) == (["m0"], ["m1", "m2"])
    assert [name for names in lines for name in names] == ["m0", "m1", "m2", "m3"]


async def test_a_memory_agent_with_a_small_window_reads_a_long_conversation_in_several_runs(
    system: System, memory: Memory
) -> None:
    agent = await system.make_agent(enable_sleeptime=True, sleeptime_agent_frequency=9)
    model = agent_pb.ModelConfig(handle=agent.model.handle, context_window=8000)
    update = agent_pb.UpdateAgentRequest(agent_id=agent.memory_agent_id, model=model)
    await system.agents.UpdateAgent(update)
    await system.send(agent, "m0")
    await eventually(lambda: is_quiet(system, agent))
    texts = [f"m{number} {'word ' * 700}end of m{number}" for number in range(1, 7)]
    for text in texts:
        await system.send(agent, text)

    await system.runs.StartMemoryRun(run_pb.StartMemoryRunRequest(agent_id=agent.id))
    await eventually(lambda: is_read(system, agent))

    read = await transcripts(system, agent)
    assert len(read) > 3
    lines = [line for text in read for line in text.splitlines() if line.startswith("user: ")]
    # Each message is shown whole, and in one of the runs.
    assert lines == ["user: m0", *(f"user: {text}" for text in texts)]
    assert "left out" not in "".join(read)
    runs = await system.memory_runs(agent)
    assert {run.state for run in runs} == {run_pb.RUN_STATE_COMPLETED}
    state = await system.memory_status(agent)
    assert state.last_processed_message_id == (await system.log(agent))[-1].id


async def is_read(system: System, agent: agent_pb.Agent) -> bool:
    state = await system.memory_status(agent)
    return not state.run_open and not state.pending_messages


async def test_a_failing_memory_agent_backs_off_and_no_message_is_skipped(
    system: System, memory: Memory
) -> None:
    agent = await system.make_agent(enable_sleeptime=True, sleeptime_agent_frequency=1)
    memory.answers = [Fault(400, "invalid_request_error", "broken")]
    await system.send(agent, "m0")

    async def has_failed() -> bool:
        return (await system.memory_status(agent)).failures == 1

    await eventually(has_failed)
    failed = await system.memory_status(agent)
    assert failed.run_open
    assert failed.last_error
    run = await system.run(failed.run_id)
    assert run.state == run_pb.RUN_STATE_QUEUED
    assert failed.next_run_time.ToDatetime() > run.create_time.ToDatetime()
    # A turn is not delayed, and a requested run starts at once.
    await system.send(agent, "m1")
    await system.runs.StartMemoryRun(run_pb.StartMemoryRunRequest(agent_id=agent.id))
    await eventually(lambda: is_quiet(system, agent))
    assert (await system.memory_status(agent)).failures == 0
    runs = await system.memory_runs(agent)
    ended = [run_pb.RunState.Name(run.state) for run in runs]
    assert ended == ["RUN_STATE_FAILED", "RUN_STATE_COMPLETED", "RUN_STATE_COMPLETED"]
    read = await transcripts(system, agent)
    # The failed run and its repetition read the same messages; the third run reads the rest.
    assert read == [
        "user: m0\nassistant: reply to m0",
        "user: m0\nassistant: reply to m0",
        "user: m1\nassistant: reply to m1",
    ]


async def test_a_run_can_be_started_manually_if_there_are_unread_messages(
    system: System, memory: Memory
) -> None:
    agent = await system.make_agent(enable_sleeptime=True, sleeptime_agent_frequency=9)
    start = run_pb.StartMemoryRunRequest(agent_id=agent.id)
    assert not (await system.runs.StartMemoryRun(start)).HasField("run")
    await system.send(agent, "m0")
    await eventually(lambda: is_quiet(system, agent))
    await system.send(agent, "m1")

    run = (await system.runs.StartMemoryRun(start)).run
    assert (run.agent_id, run.kind) == (agent.memory_agent_id, run_pb.RUN_KIND_SLEEPTIME)
    await system.follow(run.id)
    assert (await transcripts(system, agent))[-1] == "user: m1\nassistant: reply to m1"
    assert not (await system.runs.StartMemoryRun(start)).HasField("run")


async def test_deleting_an_agent_cancels_the_work_of_its_memory_agent(
    system: System, memory: Memory
) -> None:
    agent = await system.make_agent(enable_sleeptime=True)
    memory.held.clear()
    await system.send(agent, "m0")
    [run] = await system.memory_runs(agent)
    # A run that begins after the deletion fails instead: its agent is missing.
    await eventually(lambda: memory.calls)
    await system.agents.DeleteAgent(agent_pb.DeleteAgentRequest(agent_id=agent.id))

    async def is_over() -> bool:
        return (await system.run(run.id)).state == run_pb.RUN_STATE_CANCELLED

    # The model does not reply before: a run with a reply may complete instead.
    await eventually(is_over)
    memory.held.set()
    request = run_pb.GetMemoryStatusRequest(agent_id=agent.id)
    assert not (await system.runs.GetMemoryStatus(request)).conversations


async def test_a_person_who_talks_to_the_memory_agent_does_not_wait_for_its_queue(
    system: System, memory: Memory
) -> None:
    agent = await system.make_agent(enable_sleeptime=True, sleeptime_agent_frequency=1)
    memory.answers = [Fault(400, "invalid_request_error", "broken")]
    await system.send(agent, "m0")

    async def waits() -> bool:
        return (await system.memory_status(agent)).failures == 1

    await eventually(waits)
    direct = agent_pb.Agent(id=agent.memory_agent_id)
    ran = await system.send(direct, "What do you know?", request_id=new_id("x"))
    assert ran.finished.step_count == 1
    assert (await system.memory_status(agent)).run_open
