"""Turns with fallback models, in both dialects, with a scripted model API on a socket."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from chat_messages import roles
from doubles.script import Call, Fault, ModelCall, Reply, Step, rate_limited, say, unauthorized
from image_samples import png
from inner_services import InnerServices
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.agent_loop.v1 import turn_service_pb2 as turn_pb
from strata.api.common.v1 import message_pb2
from strata.api.common.v1 import run_event_pb2 as event_pb
from strata.protocol.errors import InvalidArgumentError
from strata.shared.ids import new_id

pytestmark = pytest.mark.asyncio(loop_scope="session")

OPENAI, ANTHROPIC = "test/test-model", "claude/test-model"
BOTH_WAYS = pytest.mark.parametrize(("own", "fallback"), [(OPENAI, ANTHROPIC), (ANTHROPIC, OPENAI)])
DIALECTS = {OPENAI: "openai", ANTHROPIC: "anthropic", "blind/test-model": "openai"}
LATER = rate_limited(3600)
"""Asks for a longer wait than any request is repeated after."""

NO_CREDIT = Fault(402, "Insufficient balance.", "billing_error")
QUOTA = Fault(429, "You exceeded your quota.", "insufficient_quota", "insufficient_quota")


async def agent_of(
    services: InnerServices, own: str, *fallbacks: str, **fields: Any
) -> agent_pb.Agent:
    model = agent_pb.ModelConfig(handle=own, fallback_models=fallbacks, **fields)
    return await services.make_agent(model=model)


def restarts(events: list[event_pb.RunEvent]) -> list[event_pb.StepRestarted]:
    return [event.step_restarted for event in events if event.HasField("step_restarted")]


def asked(services: InnerServices) -> list[str]:
    return [request.dialect for request in services.model.requests]


@BOTH_WAYS
@pytest.mark.parametrize(
    ("fault", "reason", "requests"),
    [
        (LATER, "MODEL_RATE_LIMITED", 1),
        (QUOTA, "MODEL_RATE_LIMITED", 1),
        (NO_CREDIT, "MODEL_AUTHENTICATION", 1),
        (Fault(503, "No capacity.", "api_error"), "MODEL_UNAVAILABLE", 2),
        (Reply(text="", refusal="No."), "MODEL_REQUEST_REFUSED", 1),
    ],
    ids=["rate", "quota", "credit", "503", "refusal"],
)
async def test_next_model_answers_in_the_same_step(
    services: InnerServices, own: str, fallback: str, fault: Step, reason: str, requests: int
) -> None:
    if isinstance(fault, Reply) and own == ANTHROPIC:
        fault = Reply(text="", finish="refusal")
    agent = await agent_of(services, own, fallback)
    services.model.script(*[fault] * requests, say("Hello, Ada."))

    ran = await services.run(agent, "I am Ada.", stream_tokens=True)

    assert ran.finished.stop_reason == event_pb.STOP_REASON_END_TURN
    assert ran.text == "Hello, Ada."
    assert ran.finished.step_count == 1
    assert asked(services) == [DIALECTS[own]] * requests + [DIALECTS[fallback]]
    [restarted] = restarts(ran.events)
    assert (restarted.failed_model, restarted.failed_reason) == (own, reason)
    assert (restarted.model, restarted.given_up) == (fallback, False)
    assert own in restarted.reason
    assert fallback in restarted.reason
    stored = ran.messages[-1]
    assert stored.model == fallback
    # A refused reply has a price, a refused request has none.
    refused = reason == "MODEL_REQUEST_REFUSED"
    assert (stored.usage == ran.finished.usage) != refused
    assert "fork" not in restarted.reason


@BOTH_WAYS
async def test_shown_text_of_the_model_that_failed_is_withdrawn(
    services: InnerServices, own: str, fallback: str
) -> None:
    finish = "content_filter" if own == OPENAI else "refusal"
    agent = await agent_of(services, own, fallback)
    services.model.script(say("This is how you", finish=finish), say("I would rather not."))

    ran = await services.run(agent, "How?", stream_tokens=True)

    assert ran.kinds[2:] == [
        "text_delta",
        "step_restarted",
        "text_delta",
        "message_stored",
        "run_finished",
    ]
    assert "This is how you" not in str(await services.window(agent))


@pytest.mark.parametrize("fault", [unauthorized(), Fault(400, "Bad.", "invalid_request_error")])
async def test_fault_of_the_configuration_is_not_hidden_by_another_model(
    services: InnerServices, fault: Fault
) -> None:
    agent = await agent_of(services, OPENAI, ANTHROPIC)
    services.model.script(fault)

    ran = await services.run(agent, "I am Ada.")

    assert ran.finished.stop_reason == event_pb.STOP_REASON_LLM_API_ERROR
    assert asked(services) == ["openai"]
    assert fault.message.rstrip(".") in ran.finished.error.message


async def test_a_run_fails_with_the_error_of_each_model(
    services: InnerServices,
) -> None:
    agent = await agent_of(services, OPENAI, ANTHROPIC, "blind/test-model")
    services.model.script(LATER, unauthorized(), QUOTA)

    ran = await services.run(agent, "I am Ada.", stream_tokens=True)

    error = ran.finished.error
    assert (error.reason, error.retryable) == ("MODEL_RATE_LIMITED", True)
    assert "fork" not in error.message
    assert "Rate limit reached." in error.message
    assert f"{ANTHROPIC}: Incorrect API key" in error.message
    assert "blind/test-model: You exceeded your quota" in error.message
    assert [restart.model for restart in restarts(ran.events)] == [ANTHROPIC, "blind/test-model"]
    assert roles((await services.window(agent)).messages) == ["system", "user"]


async def test_run_stays_with_the_fallback_and_the_next_run_starts_with_the_own_model(
    services: InnerServices,
) -> None:
    agent = await agent_of(services, OPENAI, ANTHROPIC)
    remember = Call("memory_insert", {"label": "human", "new_str": "Ada"})
    services.model.script(LATER, Reply(calls=(remember,)), say("Noted."), say("Hello again."))

    ran = await services.run(agent, "I am Ada.")
    await services.run(agent, "Hello.")

    assert asked(services) == ["openai", "anthropic", "anthropic", "openai"]
    started = [e.step_started.model for e in ran.events if e.HasField("step_started")]
    assert started == [OPENAI, ANTHROPIC]


async def test_fallback_model_that_fails_later_is_skipped_for_any_error(
    services: InnerServices,
) -> None:
    agent = await agent_of(services, OPENAI, ANTHROPIC, "blind/test-model")
    remember = Call("memory_insert", {"label": "human", "new_str": "Ada"})
    services.model.script(LATER, Reply(calls=(remember,)), unauthorized(), say("Noted."))

    ran = await services.run(agent, "I am Ada.")

    assert ran.text == "Noted."
    assert ran.messages[-1].model == "blind/test-model"


@BOTH_WAYS
async def test_calls_and_reasoning_are_converted_for_the_provider_of_the_fallback(
    services: InnerServices, own: str, fallback: str
) -> None:
    """The doubles refuse invalid requests; `services` then fails the test."""
    agent = await agent_of(services, own, fallback, max_reasoning_tokens=2048)
    remember = Call("memory_insert", {"label": "human", "new_str": "Ada"}, id="call/1 ü")
    thought = Reply(reasoning="She says her name.", calls=(remember,))
    services.model.script(thought, LATER, say("Noted."), say("Hello again."))

    first = await services.run(agent, "I am Ada.")
    second = await services.run(agent, "Hello.")

    assert (first.text, second.text) == ("Noted.", "Hello again.")
    to_fallback, to_own = services.model.requests[2], services.model.requests[3]
    assert asked(services) == [DIALECTS[own]] * 2 + [DIALECTS[fallback], DIALECTS[own]]
    assert "She says her name." not in json.dumps(to_fallback.body)
    # The provider that signed the reasoning gets it back.
    assert ("She says her name." in json.dumps(to_own.body)) == (own == ANTHROPIC)


async def test_fallback_model_without_images_gets_a_text_instead(
    services: InnerServices,
) -> None:
    agent = await agent_of(services, ANTHROPIC, "blind/test-model")
    services.model.script(LATER, say("I cannot see it."))
    parts = [
        message_pb2.Part(text=message_pb2.TextPart(text="What is this?")),
        message_pb2.Part(image=message_pb2.ImagePart(media_type="image/png", data=png(8, 8))),
    ]
    request = turn_pb.ExecuteRunRequest(
        run_id=new_id("run"),
        attempt=1,
        agent_id=agent.id,
        conversation_id=agent.default_conversation_id,
        messages=[message_pb2.MessageInput(role=message_pb2.ROLE_USER, parts=parts)],
    )

    events = [r.event async for r in services.execute(request) if r.HasField("event")]

    assert events[-1].run_finished.stop_reason == event_pb.STOP_REASON_END_TURN
    seeing, blind = services.model.requests
    assert seeing.images == [("image/png", png(8, 8))]
    assert blind.images == []
    assert base64.b64encode(png(8, 8)).decode() not in json.dumps(blind.body)
    assert "this model is not shown images" in json.dumps(blind.body)


async def test_refused_request_costs_nothing_and_each_call_names_its_model(
    services: InnerServices,
) -> None:
    agent = await agent_of(services, OPENAI, ANTHROPIC)
    services.model.script(LATER, say("Hello.", usage=(90, 10)))

    responses = [response async for response in services.dispatch(agent, "Hi.")]

    sent = [r.request.model for r in responses if r.HasField("request")]
    replies = [
        (r.reply.model, r.reply.usage.total_tokens) for r in responses if r.HasField("reply")
    ]
    assert sent == [OPENAI, ANTHROPIC]
    assert replies == [(OPENAI, 0), (ANTHROPIC, 100)]


async def test_fallback_models_are_stored_in_order_and_replaced_with_the_configuration(
    services: InnerServices,
) -> None:
    agent = await agent_of(services, OPENAI, ANTHROPIC, "blind/test-model")
    got = await services.agents.GetAgent(agent_pb.GetAgentRequest(agent_id=agent.id))
    assert got.agent.model.fallback_models == [ANTHROPIC, "blind/test-model"]

    changed = agent_pb.ModelConfig(handle=ANTHROPIC, fallback_models=[OPENAI])
    request = agent_pb.UpdateAgentRequest(agent_id=agent.id, model=changed, request_id="r1")
    for _ in range(2):
        updated = (await services.agents.UpdateAgent(request)).agent
        assert updated.model.fallback_models == [OPENAI]


@pytest.mark.parametrize(
    ("fallbacks", "field"),
    [
        ([ANTHROPIC, ANTHROPIC], "model.fallback_models[1]"),
        ([OPENAI], "model.fallback_models[0]"),
        (["none/such"], "model.fallback_models[0]"),
        (["claude/such"], "model.fallback_models[0]"),
        (["listing/such"], "model.fallback_models[0]"),
        ([ANTHROPIC, ""], "model.fallback_models[1]"),
        ([ANTHROPIC, "nope"], "model.fallback_models[1]"),
        ([f"claude/{number}" for number in range(6)], "model.fallback_models"),
    ],
)
async def test_invalid_fallback_model_is_refused_with_its_index(
    services: InnerServices, fallbacks: list[str], field: str
) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        await agent_of(services, OPENAI, *fallbacks)
    assert [violation.field for violation in refused.value.violations] == [field]

    agent = await agent_of(services, OPENAI)
    model = agent_pb.ModelConfig(handle=OPENAI, fallback_models=fallbacks)
    with pytest.raises(InvalidArgumentError) as refused:
        await services.agents.UpdateAgent(
            agent_pb.UpdateAgentRequest(agent_id=agent.id, model=model)
        )
    assert [violation.field for violation in refused.value.violations] == [field]


async def test_the_conversation_is_compacted_to_the_window_of_the_fallback_model(
    services: InnerServices,
) -> None:
    agent = await agent_of(services, ANTHROPIC, "blind/test-model")

    def answer(request: ModelCall) -> Step:
        is_own = request.dialect == "anthropic"
        return LATER if is_own and request.last_text.endswith("Hi.") else say("Noted.")

    services.model.respond(answer)
    await services.run(agent, "The diary. " * 5_000)
    ran = await services.run(agent, "Hi.")

    assert ran.finished.stop_reason == event_pb.STOP_REASON_END_TURN
    assert "window_compacted" in ran.kinds
    to_fallback = services.model.requests[-1]
    own = next(r for r in reversed(services.model.requests) if r.dialect == "anthropic")
    assert len(json.dumps(own.body)) > 50_000
    assert len(json.dumps(to_fallback.body)) < 32_000


async def test_the_reasoning_effort_of_the_own_model_is_not_sent_to_the_fallback(
    services: InnerServices,
) -> None:
    agent = await agent_of(services, OPENAI, ANTHROPIC, reasoning_effort="high")
    services.model.script(LATER, say("Hello, Ada."))
    ran = await services.run(agent, "I am Ada.")
    assert ran.text == "Hello, Ada."
    first, second = [json.dumps(request.body) for request in services.model.requests]
    assert '"high"' in first
    assert '"effort"' not in second
