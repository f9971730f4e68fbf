"""Crashes and cancelled runs, on the real services and the real journal."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from chat_messages import roles, user_message
from doubles.script import Call, Reply, rate_limited, say
from inner_services import InnerServices
from mortal_loop import Died, Mortal, Sink, human, remember
from strata.agent_loop.clients.recall import RecallClient
from strata.agent_loop.convert.runs import run_from_proto
from strata.agent_loop.domain.ports import StepCommit
from strata.agent_loop.domain.run.events import MessageStored, RunEvent, RunStarted, StepStarted
from strata.agent_loop.domain.run.journal import key_of
from strata.agent_loop.domain.tools import CallFinished, CallStarted, ToolEvent
from strata.agent_loop.loop.control import TurnControl
from strata.agent_loop.loop.turn import Turn
from strata.agent_loop.servicers.turns import DetachTerms, TurnServicer
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.agent_loop.v1 import turn_service_pb2 as turn_pb
from strata.api.agent_loop.v1 import turn_service_pb2_grpc as turn_grpc
from strata.api.archival.v1 import passage_service_pb2 as passage_pb
from strata.api.common.v1 import run_event_pb2, tool_pb2
from strata.protocol.errors import AbortedError, UnavailableError
from strata.shared.channels import ChannelFactory
from strata.shared.ids import new_id
from strata.shared.inprocess import InProcessNetwork
from strata.shared.interceptors.auth import TokenAuthenticator
from strata.shared.server import GrpcServer
from strata.shared.service import GrpcService, Service
from strata.shared.settings import ServiceSettings
from strata.shared.stop_reasons import StopReason

pytestmark = pytest.mark.asyncio(loop_scope="session")


def request_of(agent: agent_pb.Agent, text: str, **fields: Any) -> turn_pb.ExecuteRunRequest:
    return turn_pb.ExecuteRunRequest(
        run_id=new_id("run"),
        attempt=1,
        agent_id=agent.id,
        conversation_id=agent.default_conversation_id,
        messages=[user_message(text)],
        **fields,
    )


async def read(stream: Any) -> list[run_event_pb2.RunEvent]:
    return [response.event async for response in stream if response.HasField("event")]


@asynccontextmanager
async def served(
    services: InnerServices, mortal: Mortal, transport: str, terms: DetachTerms | None = None
) -> AsyncIterator[turn_grpc.TurnServiceStub]:
    """Serves the turns of a loop that can die."""
    name = turn_pb.DESCRIPTOR.services_by_name["TurnService"].full_name
    add = turn_grpc.add_TurnServiceServicer_to_server
    no_groups: Any = None
    servicer = TurnServicer(mortal.ports, no_groups, terms)
    service = Service("mortal", [GrpcService(name, add, servicer)])
    async with AsyncExitStack() as stack:
        if transport == "socket":
            server = GrpcServer(
                service, ServiceSettings(), TokenAuthenticator(services.keys.verifier)
            )
            await server.start()
            stack.push_async_callback(server.stop, 0.1)
            factory = ChannelFactory()
            stack.push_async_callback(factory.close)
            channel: Any = factory.channel(server.address)
        else:
            network = await stack.enter_async_context(InProcessNetwork(services.keys.verifier))
            network.register(service)
            channel = network.channel("mortal")
        stack.push_async_callback(servicer.close)
        yield turn_grpc.TurnServiceStub(channel)


async def test_crash_before_the_tools_leaves_a_reply_to_resume(
    services: InnerServices, mortal: Mortal
) -> None:
    agent = await services.make_agent()
    request = mortal.request(agent, "I am Ada.")
    services.model.script(Reply(calls=(remember("Ada"),)), say("Noted."))

    await mortal.die(request)
    assert roles((await services.window(agent)).messages) == ["system", "user"]

    sink = await mortal.run(replace(request, attempt=2))

    assert sink.stop_reason is StopReason.END_TURN
    assert len(services.model.requests) == 2
    assert await human(services, agent) == "Ada"
    window = await services.window(agent)
    assert roles(window.messages) == ["system", "user", "assistant", "tool", "assistant"]


@pytest.mark.parametrize("when", ["before its tools", "after its tools"])
async def test_reply_of_a_fallback_model_is_requested_once_despite_crashes(
    services: InnerServices, mortal: Mortal, when: str
) -> None:
    agent = await services.make_agent(
        model=agent_pb.ModelConfig(handle="test/test-model", fallback_models=["claude/test-model"])
    )
    request = mortal.request(agent, "I am Ada.")
    # Longer than any wait: the request is not repeated.
    services.model.script(rate_limited(3600), Reply(calls=(remember("Ada"),)), say("Noted."))

    await mortal.die(request, CallStarted if when.startswith("before") else CallFinished)
    sink = await mortal.run(replace(request, attempt=2))

    assert sink.stop_reason is StopReason.END_TURN
    asked = [request.dialect for request in services.model.requests]
    assert asked == ["openai", "anthropic", "anthropic"], "the attempt keeps to the fallback model"
    assert await human(services, agent) == "Ada"
    stored = (await services.window(agent)).messages
    assert [message.model for message in stored if message.model] == ["claude/test-model"] * 2
    started = [event for event in sink.events if isinstance(event, StepStarted)]
    assert [event.model for event in started] == ["claude/test-model"] * 2


async def test_memory_tools_whose_results_were_lost_have_their_effect_once(
    services: InnerServices, mortal: Mortal
) -> None:
    agent = await services.make_agent()
    request = mortal.request(agent, "Remember both.")
    services.model.script(Reply(calls=(remember("one"), remember("two"))), say("Noted."))

    await mortal.die(request, CallFinished, 2)
    value = await human(services, agent)
    assert value.split("\n") == ["one", "two"]

    await mortal.run(replace(request, attempt=2))

    assert await human(services, agent) == value
    returns = (await services.window(agent)).messages[3].parts
    assert [json.loads(part.tool_return.content)["status"] for part in returns] == ["OK", "OK"]


@pytest.mark.parametrize("dies_in", [1, 2, 3])
async def test_a_resumed_turn_makes_the_same_decisions_under_rules(
    services: InnerServices, mortal: Mortal, dies_in: int
) -> None:
    """The history of calls is read from what is committed and journalled, on every dispatch."""

    def rule(kind: int, name: str, **fields: object) -> tool_pb2.ToolRule:
        return tool_pb2.ToolRule(type=kind, tool_name=name, **fields)  # type: ignore[arg-type]

    agent = await services.make_agent(
        tool_rules=[
            rule(tool_pb2.TOOL_RULE_TYPE_RUN_FIRST, "conversation_search"),
            rule(tool_pb2.TOOL_RULE_TYPE_MAX_COUNT_PER_STEP, "memory_insert", max_count_limit=2),
            rule(tool_pb2.TOOL_RULE_TYPE_REQUIRED_BEFORE_EXIT, "memory_insert"),
        ]
    )
    request = mortal.request(agent, "Remember both.")
    script = (
        Reply(calls=(Call("conversation_search", {"query": "x"}),)),
        say("Bye."),
        Reply(calls=(remember("one"),)),
        Reply(calls=(remember("two"), remember("three"))),
        say("Noted."),
    )
    services.model.script(*script)

    await mortal.die(request, CallFinished, dies_in)
    sink = await mortal.run(replace(request, attempt=2))

    assert sink.stop_reason is StopReason.END_TURN
    assert len(services.model.requests) == len(script)
    assert await human(services, agent) == "one\ntwo"
    window = (await services.window(agent)).messages
    assert roles(window[2:]) == [
        *("assistant", "tool"),
        *("assistant", "user"),
        *("assistant", "tool") * 2,
        "assistant",
    ]
    returns = [json.loads(part.tool_return.content) for part in window[9].parts]
    assert [body["status"] for body in returns] == ["OK", "Failed"]
    assert "Cannot call memory_insert" in returns[1]["message"]
    choices = [asked.body["tool_choice"] for asked in services.model.requests]
    # After "Bye." the required tool is forced.
    assert [choice == "auto" for choice in choices] == [False, True, False, True, True]


class DyingSink(Sink):
    """A sink whose process dies when a step begins."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self._step = step

    async def emit(self, event: RunEvent) -> None:
        if isinstance(event, StepStarted) and event.step == self._step:
            raise Died
        await super().emit(event)


@pytest.mark.parametrize("where", ["in the call", "after the call", "before the next step"])
@pytest.mark.parametrize(
    "step",
    [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(3, marks=pytest.mark.slow)],
)
async def test_a_v2_turn_that_is_taken_over_keeps_each_heartbeat_once(
    services: InnerServices, mortal: Mortal, step: int, where: str
) -> None:
    agent = await services.make_agent(
        type=agent_pb.AGENT_TYPE_MEMGPT_V2,
        include_base_tools=False,
        include_base_tool_rules=False,
        tools=["send_message", "memory_insert"],
    )
    before = roles((await services.window(agent)).messages)
    request = mortal.request(agent, "Remember all.")
    texts = ("one", "two", "three")
    script = (
        *(Reply(calls=(remember(text, request_heartbeat=True),)) for text in texts),
        Reply(calls=(Call("send_message", {"message": "Noted."}),)),
    )
    services.model.script(*script)

    if where == "before the next step":
        with pytest.raises(Died):
            await Turn(mortal.ports, request, DyingSink(step + 1)).run()
    else:
        kind = CallFinished if where == "after the call" else CallStarted
        await mortal.die(request, kind, step)
    sink = await mortal.run(replace(request, attempt=2))

    assert sink.stop_reason is StopReason.END_TURN
    assert len(services.model.requests) == len(script)
    assert await human(services, agent) == "\n".join(texts)
    window = (await services.window(agent)).messages[len(before) :]
    step_roles = ("assistant", "tool", "user")
    assert roles(window) == ["user", *step_roles * 3, "assistant", "tool"]
    again = await mortal.run(replace(request, attempt=3))
    assert again.stop_reason is StopReason.END_TURN
    assert len((await services.window(agent)).messages) == len(before) + len(window)


@pytest.mark.parametrize("when", ["before it is stored", "after it is stored"])
async def test_passage_of_a_resumed_reply_names_its_message(
    services: InnerServices, mortal: Mortal, when: str
) -> None:
    agent = await services.make_agent()
    request = mortal.request(agent, "My boat is called Kestrel.")
    insert = Call("archival_memory_insert", {"content": "Her boat is called Kestrel."})
    services.model.script(Reply(calls=(insert,)), say("Noted."))

    await mortal.die(request, CallStarted if when.startswith("before") else CallFinished)
    await mortal.run(replace(request, attempt=2))

    asked = (await services.window(agent)).messages[2]
    listed = await services.passages.ListPassages(
        passage_pb.ListPassagesRequest(agent_id=agent.id, message_id=asked.id)
    )
    assert [passage.text for passage in listed.passages] == ["Her boat is called Kestrel."]


async def test_a_keyed_call_without_a_result_is_sent_again(
    services: InnerServices, mortal: Mortal
) -> None:
    agent = await services.make_agent()
    request = mortal.request(agent, "Remember both.")
    services.model.script(Reply(calls=(remember("one"), remember("two"))), say("Noted."))
    ended = 0

    finished: list[str] = []

    def break_off(event: ToolEvent) -> None:
        nonlocal ended
        if isinstance(event, CallFinished):
            ended += 1
            finished.append(event.result.tool_return.name)
        elif ended == 1:
            ended += 1
            raise UnavailableError("the executor is gone")

    mortal.tools.at = break_off
    sink = await mortal.run(request)

    # The call without a result was sent again; the model was not asked again.
    assert finished == ["memory_insert", "memory_insert"]
    assert sink.stop_reason is StopReason.END_TURN
    assert (await human(services, agent)).split("\n") == ["one", "two"]


async def test_a_suspended_attempt_cannot_write_when_it_continues(
    services: InnerServices, mortal: Mortal
) -> None:
    agent = await services.make_agent()
    request = mortal.request(agent, "I am Ada.")
    services.model.script(Reply(calls=(remember("Ada"),)), say("Noted."))
    mortal.tools.pause = frozen = asyncio.Event()
    first = asyncio.create_task(mortal.run(request))
    await asyncio.wait_for(services.model.received.wait(), 30)
    while await human(services, agent) != "Ada":
        await asyncio.sleep(0.01)
    mortal.tools.pause = None

    sink = await mortal.run(replace(request, attempt=2))
    frozen.set()
    with pytest.raises(AbortedError):
        await first

    assert sink.stop_reason is StopReason.END_TURN
    assert await human(services, agent) == "Ada"
    window = await services.window(agent)
    assert roles(window.messages) == ["system", "user", "assistant", "tool", "assistant"]


async def test_run_cancelled_during_the_reply_keeps_only_the_message(
    services: InnerServices,
) -> None:
    agent = await services.make_agent()
    services.model.script(say("A very long answer indeed." * 40, pause=0.1), say("Short."))
    stream = services.dispatch(agent, "Tell me.", stream_tokens=True)
    events = []
    async for response in stream:
        events.append(response.event)
        if response.event.WhichOneof("event") == "text_delta" and services.last is not None:
            services.last.cancel()
            services.last = None
    assert events[-1].run_finished.stop_reason == run_event_pb2.STOP_REASON_CANCELLED
    await asyncio.wait_for(services.model.abandoned.wait(), 30)

    assert roles((await services.window(agent)).messages) == ["system", "user"]
    ran = await services.run(agent, "Again.")
    assert ran.text == "Short."
    assert roles((await services.window(agent)).messages) == ["system", "user", "user", "assistant"]


class _CancellingRecall(RecallClient):
    """Recall that stores what one method brings; the run is cancelled before it answers."""

    def __init__(self, services: InnerServices, method: str) -> None:
        super().__init__(services.channel("recall"))
        self._method = method
        self.cancel: Callable[[], object] = lambda: None

    async def begin_turn(self, *args: Any, **fields: Any) -> Any:
        return await self._answer("begin_turn", await super().begin_turn(*args, **fields))

    async def commit_step(self, commit: StepCommit) -> Any:
        return await self._answer("commit_step", await super().commit_step(commit))

    async def _answer(self, method: str, answer: Any) -> Any:
        if method == self._method:
            self._method = ""
            self.cancel()
            await asyncio.Event().wait()
        return answer


@pytest.mark.parametrize(
    ("call", "asks"), [("begin_turn", False), ("commit_step", False), ("commit_step", True)]
)
async def test_cancelled_run_reports_the_messages_that_recall_has_stored(
    services: InnerServices, mortal: Mortal, call: str, asks: bool
) -> None:
    rule = tool_pb2.ToolRule(
        type=tool_pb2.TOOL_RULE_TYPE_REQUIRES_APPROVAL, tool_name="memory_insert"
    )
    agent = await services.make_agent(tool_rules=[rule])
    request = mortal.request(agent, "Tell me.")
    services.model.script(Reply(text="Yes.", calls=(remember("Ada"),) if asks else ()))
    recall = _CancellingRecall(services, call)
    sink, control = Sink(), TurnControl()
    turn = Turn(replace(mortal.ports, recall=recall), request, sink, control)
    task = asyncio.create_task(turn.run())

    def cancel() -> None:
        control.cancelled = True
        task.cancel()

    recall.cancel = cancel
    await task

    assert sink.stop_reason is StopReason.CANCELLED
    [begun] = [event for event in sink.events if isinstance(event, RunStarted)]
    messages = [event.message.id for event in sink.events if isinstance(event, MessageStored)]
    stored = [message.id for message in (await services.window(agent)).messages[1:]]
    assert [*begun.input_message_ids, *messages] == stored
    assert len(messages) == (call == "commit_step")
    services.model.reset()


async def test_cancelled_tool_calls_have_their_returns(
    services: InnerServices, mortal: Mortal
) -> None:
    agent = await services.make_agent()
    request = mortal.request(agent, "Remember.")
    services.model.script(Reply(calls=(remember("one"), remember("two"))))
    ended = asyncio.Event()

    def hold(event: ToolEvent) -> None:
        if isinstance(event, CallFinished):
            mortal.tools.pause = None
        elif ended.is_set():
            mortal.tools.pause = asyncio.Event()
        if isinstance(event, CallFinished):
            ended.set()

    mortal.tools.at = hold
    control = TurnControl()
    task = asyncio.create_task(Turn(mortal.ports, request, Sink(), control).run())
    while mortal.tools.pause is None:
        await asyncio.sleep(0.01)
    control.cancelled = True
    task.cancel()
    await task

    window = await services.window(agent)
    assert roles(window.messages) == ["system", "user", "assistant", "tool"]
    returns = [part.tool_return for part in window.messages[3].parts]
    assert [json.loads(part.content)["status"] for part in returns] == ["OK", "Unknown"]
    services.model.script(say("Here."))
    assert (await services.run(agent, "Still there?")).text == "Here."


@pytest.mark.parametrize("transport", ["socket", "inprocess"])
async def test_cancelling_a_run_while_tools_run_keeps_calls_with_their_returns(
    services: InnerServices, mortal: Mortal, transport: str
) -> None:
    agent = await services.make_agent()
    services.model.script(Reply(calls=(remember("one"),)))
    mortal.tools.pause = asyncio.Event()
    async with served(services, mortal, transport) as stub:
        stream: Any = services.execute(request_of(agent, "Remember."), stub)
        events = []
        async for response in stream:
            events.append(response.event)
            if response.event.WhichOneof("event") == "step_started":
                while await human(services, agent) != "one":
                    await asyncio.sleep(0.01)
                assert services.last is not None
                services.last.cancel()
    window = await services.window(agent)
    assert roles(window.messages) == ["system", "user", "assistant", "tool"]
    body = json.loads(window.messages[3].parts[0].tool_return.content)
    assert (body["status"], "cancelled" in body["message"]) == ("Unknown", True)
    # The stored messages of the step are sent before the end.
    kinds = [event.WhichOneof("event") for event in events]
    assert kinds[-4:] == ["tool_finished", "message_stored", "message_stored", "run_finished"]
    assert events[-1].run_finished.stop_reason == run_event_pb2.STOP_REASON_CANCELLED


@pytest.mark.parametrize("transport", ["socket", "inprocess"])
async def test_lost_caller_leaves_the_outcome_of_running_tools_to_the_next_attempt(
    services: InnerServices, mortal: Mortal, transport: str
) -> None:
    """A broken stream does not cancel: the calls end, and the next attempt finds them done."""
    agent = await services.make_agent()
    services.model.script(Reply(calls=(remember("one"), remember("two"))), say("Noted."))
    mortal.tools.pause = asyncio.Event()
    request = request_of(agent, "Remember.")
    async with served(services, mortal, transport) as stub:
        stream: Any = services.execute(request, stub)
        async for response in stream:
            if response.event.WhichOneof("event") == "step_started":
                break
        while "one" not in await human(services, agent):
            await asyncio.sleep(0.01)
        stream.cancel()
        request.attempt = 2
        while not await mortal.ports.journal.is_finishing(key_of(run_from_proto(request))):
            await asyncio.sleep(0.01)
        successor: Any = services.execute(request, stub)
        reading = asyncio.create_task(read(successor))
        await asyncio.sleep(0.3)
        assert not reading.done()
        mortal.tools.pause.set()
        mortal.tools.pause = None
        events = await reading
    window = await services.window(agent)
    assert roles(window.messages) == ["system", "user", "assistant", "tool", "assistant"]
    returns = [json.loads(part.tool_return.content) for part in window.messages[3].parts]
    assert [tool_return["status"] for tool_return in returns] == ["OK", "OK"]
    assert (await human(services, agent)).split("\n") == ["one", "two"]
    assert len(services.model.requests) == 2
    assert events[-1].run_finished.stop_reason == run_event_pb2.STOP_REASON_END_TURN
    assert events[-1].run_finished.step_count == 2


@pytest.mark.parametrize("transport", ["socket", "inprocess"])
async def test_lost_caller_does_not_repeat_the_model_request(
    services: InnerServices, mortal: Mortal, transport: str
) -> None:
    agent = await services.make_agent()
    services.model.script(say("A long answer indeed." * 3, pause=0.05))
    request = request_of(agent, "Tell me.", stream_tokens=True)
    async with served(services, mortal, transport) as stub:
        stream: Any = services.execute(request, stub)
        async for response in stream:
            if response.event.WhichOneof("event") == "text_delta":
                break
        stream.cancel()
        while not await mortal.ports.journal.is_finishing(
            replace(key_of(run_from_proto(request)), attempt=2)
        ):
            await asyncio.sleep(0.01)
        request.attempt = 2
        events = await read(services.execute(request, stub))
    assert len(services.model.requests) == 1
    assert roles((await services.window(agent)).messages) == ["system", "user", "assistant"]
    assert events[-1].run_finished.usage.total_tokens > 0
    assert [event.WhichOneof("event") for event in events] == [
        "run_started",
        "message_stored",
        "run_finished",
    ]


async def test_run_whose_deadline_has_passed_has_that_reason(services: InnerServices) -> None:
    agent = await services.make_agent()
    request = turn_pb.ExecuteRunRequest(
        run_id=new_id("run"),
        attempt=1,
        agent_id=agent.id,
        conversation_id=agent.default_conversation_id,
        messages=[user_message("Quick!")],
    )
    request.remaining_time.FromNanoseconds(0)
    call: Any = services.execute(request)
    events = await read(call)
    assert events[-1].run_finished.error.reason == "DEADLINE_EXCEEDED"
    assert roles((await services.window(agent)).messages) == ["system", "user"]
