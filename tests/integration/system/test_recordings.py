"""Real runs are recorded over the API, and replayed without the system."""

from __future__ import annotations

import json
from typing import Any

import pytest

from doubles.script import Call, Reply, call, rate_limited, say
from strata.agent_loop.convert.recordings import recording_from_json
from strata.agent_loop.replay.recording import Recording
from strata.agent_loop.replay.replay import replay
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.gateway.v1 import run_service_pb2 as run_pb
from strata.protocol.errors import NotFoundError, Reason
from whole_system import System

pytestmark = pytest.mark.asyncio(loop_scope="session")

OPENAI, ANTHROPIC = "openai/test-model", "anthropic/test-model"


async def record(client: Any, run_id: str) -> bytes:
    request = run_pb.RecordRunRequest(run_id=run_id)
    return b"".join([response.piece async for response in client.runs.RecordRun(request)])


async def assert_same(recording: Recording, steps: int) -> None:
    assert list(recording.notes) == []
    replayed = await replay(recording)
    assert replayed.difference is None
    assert (replayed.steps, replayed.unknown) == (steps, ())


async def test_run_that_changes_memory_and_fails_over_is_replayed(system: System) -> None:
    agent = await system.make_agent()
    config = agent_pb.ModelConfig(handle=OPENAI, fallback_models=[ANTHROPIC])
    await system.agents.UpdateAgent(agent_pb.UpdateAgentRequest(agent_id=agent.id, model=config))
    system.model.script(say("Hello."))
    await system.send(agent, "Hi.")
    system.model.script(
        Reply(
            calls=(
                Call("memory_insert", {"label": "human", "new_str": "Ada"}),
                Call("memory_replace", {"label": "human", "old_str": "Eve", "new_str": "Bo"}),
            ),
        ),
        rate_limited(3600),
        call("archival_memory_insert", {"content": "Ada likes tea."}),
        say("Noted."),
    )
    ran = await system.send(agent, "I am Ada.")
    system.model.script(call("memory_insert", {"label": "human", "new_str": "Tea"}), say("Yes."))
    await system.send(agent, "And I like tea.")

    data = await record(system, ran.run_id)

    recording = recording_from_json(data)
    assert [len(step.messages) for step in recording.steps] == [2, 2, 1]
    assert [step.model for step in recording.steps] == [OPENAI, ANTHROPIC, ANTHROPIC]
    await assert_same(recording, 3)
    assert [
        event.model_calls[0].HasField("request") for event in ran.events if event.model_calls
    ] == [False for event in ran.events if event.model_calls]
    for private in (system.key, system.model.openai_url, system.model.anthropic_url):
        assert private.encode() not in data
    document = json.loads(data)
    assert "metadata" not in document["agent"]
    assert not any("key" in name for model in document["models"] for name in model)


async def test_run_of_the_v2_loop_is_replayed(system: System) -> None:
    agent = await system.make_agent(type=agent_pb.AGENT_TYPE_MEMGPT_V2)
    config = agent_pb.ModelConfig(handle=ANTHROPIC, put_inner_thoughts_in_kwargs=True)
    await system.agents.UpdateAgent(agent_pb.UpdateAgentRequest(agent_id=agent.id, model=config))
    edit = {"label": "human", "new_str": "Ada", "thinking": "A name.", "request_heartbeat": True}
    wrong = {**edit, "label": "nobody"}
    system.model.script(
        call("memory_insert", edit),
        call("memory_insert", wrong),
        call("send_message", {"thinking": "Done.", "message": "Noted."}),
    )
    ran = await system.send(agent, "I am Ada.")

    recording = recording_from_json(await record(system, ran.run_id))

    await assert_same(recording, 3)


async def test_run_of_a_deleted_agent_is_not_recorded(system: System) -> None:
    agent = await system.make_agent()
    system.model.script(say("Hello."))
    ran = await system.send(agent, "Hi.")
    await system.agents.DeleteAgent(agent_pb.DeleteAgentRequest(agent_id=agent.id))
    with pytest.raises(NotFoundError) as raised:
        await record(system, ran.run_id)
    assert raised.value.reason is Reason.AGENT_NOT_FOUND
