"""What is stored and shown of a run whose model failed."""

from __future__ import annotations

import pytest

from doubles.script import Fault, Reply, say
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.common.v1 import run_event_pb2
from strata.api.gateway.v1 import run_service_pb2 as run_pb
from whole_system import System

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize("answer", ["error", "refusal"])
async def test_a_failure_with_a_character_that_cannot_be_stored_ends_the_run_at_once(
    system: System, answer: str
) -> None:
    text = "I will not\0 do this."
    agent = await system.make_agent()
    system.model.script(Fault(400, text) if answer == "error" else Reply(refusal=text))
    ran = await system.send(agent, "Hello")
    # An end that cannot be stored is followed by another attempt when the lease has expired.
    attempts = [event.run_started.attempt for event in ran.events if event.HasField("run_started")]
    assert attempts == [1]
    end = ran.events[-1].run_finished
    assert end.stop_reason == run_event_pb2.STOP_REASON_LLM_API_ERROR
    assert "I will not do this." in end.error.message
    stored = await system.run(ran.events[0].run_id)
    assert stored.state == run_pb.RUN_STATE_FAILED
    assert stored.error == end.error
    assert len(system.model.requests) == 1


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
@pytest.mark.parametrize("usage", [(10**30, 5), (-7, -1)])
async def test_impossible_token_counts_are_not_stored(
    system: System, usage: tuple[int, int], dialect: str
) -> None:
    agent = await system.make_agent()
    model = agent_pb.ModelConfig(handle=f"{dialect}/test-model")
    await system.agents.UpdateAgent(agent_pb.UpdateAgentRequest(agent_id=agent.id, model=model))
    system.model.script(say("Hi.", usage=usage))
    ran = await system.send(agent, "Hello")
    end = ran.events[-1].run_finished
    assert end.stop_reason == run_event_pb2.STOP_REASON_END_TURN
    assert 0 <= end.usage.prompt_tokens < 10**9
    assert 0 < end.usage.completion_tokens < 10**9
    assert len(system.model.requests) == 1
