"""What a client sees of a run in which another model answered."""

from __future__ import annotations

import pytest

from doubles.script import Call, Reply, rate_limited, say
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.gateway.v1 import run_service_pb2 as run_pb
from whole_system import System

pytestmark = pytest.mark.asyncio(loop_scope="session")

OPENAI, ANTHROPIC = "openai/test-model", "anthropic/test-model"


async def test_run_is_explained_by_the_models_that_were_called(system: System) -> None:
    agent = await system.make_agent()
    config = agent_pb.ModelConfig(handle=OPENAI, fallback_models=[ANTHROPIC])
    await system.agents.UpdateAgent(agent_pb.UpdateAgentRequest(agent_id=agent.id, model=config))
    remember = Call("memory_insert", {"label": "human", "new_str": "Ada"})
    system.model.script(
        rate_limited(3600),
        Reply(calls=(remember,), usage=(1_000, 20), cached=400),
        say("Noted.", usage=(1_000, 5), cached=800),
    )

    ran = await system.send(agent, "I am Ada.")

    run_id = ran.events[0].run_id
    explained = await system.runs.ExplainRun(run_pb.ExplainRunRequest(run_id=run_id))
    by_model = {used.model: used for used in explained.models}
    assert list(by_model) == [OPENAI, ANTHROPIC]
    assert by_model[OPENAI].calls == 1
    assert by_model[OPENAI].usage.total_tokens == 0
    assert by_model[ANTHROPIC].calls == 2
    usage = by_model[ANTHROPIC].usage
    assert (usage.prompt_tokens, usage.cached_input_tokens) == (2_000, 1_200)
    assert explained.run.usage == usage
    steps = (await system.runs.ListSteps(run_pb.ListStepsRequest(run_id=run_id))).steps
    assert [(step.model, step.model_calls) for step in steps] == [(ANTHROPIC, 2), (ANTHROPIC, 1)]
    notes = [span.note for span in explained.spans if span.name == OPENAI]
    assert any("anthropic/test-model is asked instead" in note for note in notes)
