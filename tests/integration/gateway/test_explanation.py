"""ExplainRun and ListSteps, computed from the events that the gateway stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from integration.gateway.scripted_runs import delta, event, finished, plays, started, stored
from integration.gateway.scripted_services import Gateway, ScriptedServices
from rpc_errors import reason
from run_events import collect
from strata.api.agent_loop.v1 import turn_service_pb2 as turn_pb
from strata.api.common.v1 import message_pb2, run_event_pb2, usage_pb2
from strata.api.gateway.v1 import run_service_pb2 as pb
from strata.gateway.runs.explanation.prices import ModelPrice
from strata.shared.ids import new_id

MODEL = "test/one"


def step_of(number: int) -> run_event_pb2.RunEvent:
    return event(
        step_started=run_event_pb2.StepStarted(
            step_id=f"step-{number}", step=number, model=MODEL, message_id=f"message-{number}"
        )
    )


def sent(number: int) -> turn_pb.ExecuteRunResponse:
    request = turn_pb.ModelRequestSent(message_id=f"message-{number}", prompt_tokens=9)
    return turn_pb.ExecuteRunResponse(request=request)


def replied(number: int) -> turn_pb.ExecuteRunResponse:
    usage = usage_pb2.Usage(prompt_tokens=100, completion_tokens=10, total_tokens=110)
    reply = turn_pb.ReplyReceived(message_id=f"message-{number}", usage=usage)
    return turn_pb.ExecuteRunResponse(reply=reply)


async def turn_with_a_tool(request: Any) -> AsyncIterator[Any]:
    first = started()
    first.run_started.attempt = request.attempt
    yield first
    yield step_of(1)
    yield sent(1)
    yield delta("Let me see.", "message-1")
    if request.attempt == 1 and request.messages[0].parts[0].text.text == "die":
        raise OSError("the replica died")
    yield replied(1)
    yield event(tool_started=run_event_pb2.ToolStarted(tool_call_id="call-1", name="search"))
    returned = message_pb2.ToolReturnPart(
        tool_call_id="call-1", name="search", status=message_pb2.TOOL_STATUS_FAILED
    )
    yield event(tool_finished=run_event_pb2.ToolFinished(tool_return=returned, duration_ms=0))
    yield stored("Let me see.", "message-1")
    yield step_of(2)
    yield sent(2)
    yield replied(2)
    yield stored("Done.", "message-2")
    yield finished(steps=2)


async def explained(gateway: Gateway, run_id: str) -> pb.ExplainRunResponse:
    answer: pb.ExplainRunResponse = await gateway.runs.ExplainRun(
        pb.ExplainRunRequest(run_id=run_id), metadata=gateway.metadata
    )
    return answer


async def test_run_is_explained_from_its_log(services: ScriptedServices) -> None:
    services.turns.script = turn_with_a_tool
    gateway = await services.gateway(model_prices={MODEL: ModelPrice(input=3, output=5)})
    events = await collect(gateway.send(services.new_agent()))
    answer = await explained(gateway, events[0].run_id)
    assert answer.run == await gateway.run(events[0].run_id)
    shown = [span for span in answer.spans if span.kind in ("model", "tool")]
    assert [(span.kind, span.name, span.step) for span in shown] == [
        ("model", MODEL, 1),
        ("tool", "search", 1),
        ("model", MODEL, 2),
    ]
    assert shown[0].HasField("first_token_ms")
    assert not shown[2].HasField("first_token_ms")
    assert (shown[1].status, shown[1].tool_call_id) == (message_pb2.TOOL_STATUS_FAILED, "call-1")
    assert shown[0].usage.total_tokens == 110
    assert shown[0].cost_micros == 350
    assert answer.cost_micros == 700
    assert sum(span.share_ms for span in answer.spans) == answer.total_ms
    starts = [span.start_time.ToMicroseconds() for span in answer.spans]
    assert starts == sorted(starts)

    request = pb.ListStepsRequest(run_id=events[0].run_id, page_size=1)
    first = await gateway.runs.ListSteps(request, metadata=gateway.metadata)
    request.page_token = first.next_page_token
    second = await gateway.runs.ListSteps(request, metadata=gateway.metadata)
    assert second.next_page_token == ""
    steps = [*first.steps, *second.steps]
    assert [(s.step, s.step_id, s.model, list(s.tools)) for s in steps] == [
        (1, "step-1", MODEL, ["search"]),
        (2, "step-2", MODEL, []),
    ]
    assert [(s.model_calls, s.usage.total_tokens, s.cost_micros) for s in steps] == [
        (1, 110, 350)
    ] * 2


async def test_each_attempt_of_a_run_is_explained(services: ScriptedServices) -> None:
    services.turns.script = turn_with_a_tool
    gateway = await services.gateway()
    events = await collect(gateway.send(services.new_agent(), "die"))
    answer = await explained(gateway, events[0].run_id)
    models = [span for span in answer.spans if span.kind == "model"]
    assert [(span.attempt, span.step) for span in models] == [(1, 1), (2, 1), (2, 2)]
    assert "the reply was lost" in models[0].note
    [takeover] = [span for span in answer.spans if span.name == "take-over"]
    assert takeover.attempt == 2
    assert sum(span.share_ms for span in answer.spans) == answer.total_ms
    assert not answer.HasField("cost_micros")


async def test_a_run_cancelled_in_the_queue_has_no_steps(services: ScriptedServices) -> None:
    go_on = asyncio.Event()

    services.turns.script = plays(started(), go_on, finished(steps=0))
    gateway = await services.gateway()
    agent = services.new_agent()
    active = await gateway.start_run(agent)
    waiting = await gateway.start_run(agent)
    await gateway.cancel(waiting.id)
    answer = await explained(gateway, waiting.id)
    assert {span.kind for span in answer.spans} <= {"wait"}
    assert sum(span.share_ms for span in answer.spans) == answer.total_ms
    listed = await gateway.runs.ListSteps(
        pb.ListStepsRequest(run_id=waiting.id), metadata=gateway.metadata
    )
    assert list(listed.steps) == []
    # A run under way is explained up to its last stored event.
    assert (await explained(gateway, active.id)).run.state == pb.RUN_STATE_RUNNING
    go_on.set()


@pytest.mark.parametrize("call", ["ExplainRun", "ListSteps"])
async def test_wrong_requests_are_refused(services: ScriptedServices, call: str) -> None:
    gateway = await services.gateway()
    method = getattr(gateway.runs, call)
    requests = {"ExplainRun": pb.ExplainRunRequest, "ListSteps": pb.ListStepsRequest}

    async def refused(**fields: Any) -> tuple[grpc.StatusCode, str]:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await method(requests[call](**fields), metadata=gateway.metadata)
        return raised.value.code(), reason(raised.value)

    assert await refused(run_id=new_id("run")) == (grpc.StatusCode.NOT_FOUND, "RUN_NOT_FOUND")
    for wrong in ("", "x", new_id("agent")):
        code, _ = await refused(run_id=wrong)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
    if call == "ListSteps":
        for field in ({"page_size": -1}, {"page_token": "x"}):
            code, _ = await refused(run_id=new_id("run"), **field)
            assert code is grpc.StatusCode.INVALID_ARGUMENT
