"""The life of runs through the whole system: queue, cancel, resume, repeat."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from chat_messages import roles, text_of, user_message
from doubles.script import Call, ModelCall, Reply, Step, call, say
from run_events import RunStream
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.common.v1 import run_event_pb2 as event_pb
from strata.api.gateway.v1 import run_service_pb2 as run_pb
from strata.protocol.errors import AbortedError, AlreadyExistsError, NotFoundError, Reason
from whole_system import System

pytestmark = pytest.mark.asyncio(loop_scope="session")

LONG = "This is a long answer that takes its time to be told, piece by piece. " * 2


def slowly(text: str = LONG, held: asyncio.Event | None = None) -> Reply:
    return Reply(text=text, piece=4, pause=0.02, held=held)


def endlessly() -> Reply:
    """Returns an endless reply, so that an interruption is always in time."""
    return slowly(LONG * 40)


async def answer_of(system: System, agent: agent_pb.Agent, text: str) -> str:
    """Sends a message and returns the answer."""
    system.model.script(say(f"You said: {text}"))
    return (await system.send(agent, text)).text


async def test_message_is_stored_before_the_model_is_called(system: System) -> None:
    agent = await system.make_agent()
    asked: list[datetime] = []

    def responder(_: ModelCall) -> Step:
        asked.append(datetime.now(UTC))
        # The pause is long, so that no event arrives before the check.
        return Reply(text="Never said.", pause=60.0)

    system.model.respond(responder)
    call = system.begin(agent, "Remember me.")
    await system.model.received.wait()

    log = await system.log(agent)
    assert roles(log) == ["system", "user"]
    assert text_of(log[1]) == "Remember me."
    assert log[1].create_time.ToDatetime(tzinfo=UTC) <= asked[0]

    await call.until("run_started")
    await system.cancel(call.run_id)
    ran = await call.rest()
    assert ran.finished.stop_reason == event_pb.STOP_REASON_CANCELLED
    assert roles(await system.log(agent)) == ["system", "user"]


async def test_conversation_has_one_active_run(system: System) -> None:
    agent = await system.make_agent()
    go_on = asyncio.Event()
    system.model.script(slowly(held=go_on), say("Second answer."))
    first = system.begin(agent, "First.")
    await first.until("text_delta")

    second = await system.runs.StartRun(
        run_pb.StartRunRequest(agent_id=agent.id, messages=[user_message("Second.")])
    )
    assert second.run.state == run_pb.RUN_STATE_QUEUED
    assert len(system.model.requests) == 1
    assert roles(await system.log(agent)) == ["system", "user"]

    go_on.set()
    ran = await first.rest()
    following = await system.follow(second.run.id)

    assert ran.text == LONG
    assert following.text == "Second answer."
    assert [text_of(m) for m in (await system.log(agent))[1:]] == [
        "First.",
        LONG,
        "Second.",
        "Second answer.",
    ]
    finish, start = await system.run(ran.run_id), await system.run(second.run.id)
    assert finish.finish_time.ToDatetime() <= start.start_time.ToDatetime()


async def test_a_busy_conversation_refuses_a_message_on_request(system: System) -> None:
    agent = await system.make_agent()
    go_on = asyncio.Event()
    system.model.script(slowly(held=go_on))
    first = system.begin(agent, "First.")
    await first.until("text_delta")

    with pytest.raises(AbortedError) as caught:
        await system.send(agent, "Second.", on_busy=run_pb.ON_BUSY_REJECT)

    go_on.set()
    assert caught.value.reason is Reason.CONVERSATION_BUSY
    assert (await first.rest()).text == LONG
    assert roles(await system.log(agent)) == ["system", "user", "assistant"]


async def test_interrupting_message_cancels_the_run_and_starts_its_own(system: System) -> None:
    agent = await system.make_agent()
    system.model.script(endlessly(), say("Gladly."))
    first = system.begin(agent, "Tell me all.")
    await first.until("text_delta")

    second = await system.send(agent, "No, be brief.", on_busy=run_pb.ON_BUSY_INTERRUPT)

    ran = await first.rest()
    assert ran.finished.stop_reason == event_pb.STOP_REASON_CANCELLED
    assert second.text == "Gladly."
    assert roles(await system.log(agent)) == ["system", "user", "user", "assistant"]


async def test_other_conversations_of_the_agent_run_meanwhile(system: System) -> None:
    agent = await system.make_agent()
    created = await system.agents.CreateConversation(
        agent_pb.CreateConversationRequest(agent_id=agent.id, title="Another")
    )
    other = created.conversation.id
    go_on = asyncio.Event()
    system.model.script(slowly(held=go_on), say("Meanwhile."))
    first = system.begin(agent, "First.")
    await first.until("text_delta")

    meanwhile = await system.send(agent, "Second.", conversation_id=other)

    assert meanwhile.text == "Meanwhile."
    assert (await system.run(first.run_id)).state == run_pb.RUN_STATE_RUNNING
    go_on.set()
    assert (await first.rest()).text == LONG
    assert roles(await system.log(agent, other)) == ["system", "user", "assistant"]


async def test_cancelled_run_releases_the_model_and_the_conversation_continues(
    system: System,
) -> None:
    agent = await system.make_agent()
    system.model.script(endlessly())
    call = system.begin(agent, "Tell me all.")
    await call.until("text_delta")

    await system.cancel(call.run_id)

    ran = await call.rest()
    assert ran.finished.stop_reason == event_pb.STOP_REASON_CANCELLED
    assert (await system.run(ran.run_id)).state == run_pb.RUN_STATE_CANCELLED
    await asyncio.wait_for(system.model.abandoned.wait(), 30)
    assert roles(await system.log(agent)) == ["system", "user"]
    assert await answer_of(system, agent, "Never mind.") == "You said: Never mind."


async def test_cancelling_a_finished_run_changes_nothing(system: System) -> None:
    agent = await system.make_agent()
    system.model.script(say("Done."))
    ran = await system.send(agent, "Hi.")

    await system.cancel(ran.run_id)

    assert (await system.run(ran.run_id)).state == run_pb.RUN_STATE_COMPLETED
    assert (await system.follow(ran.run_id)).finished.stop_reason == event_pb.STOP_REASON_END_TURN


async def test_queued_run_can_be_cancelled(system: System) -> None:
    agent = await system.make_agent()
    go_on = asyncio.Event()
    system.model.script(slowly(held=go_on))
    first = system.begin(agent, "First.")
    await first.until("text_delta")
    second = await system.runs.StartRun(
        run_pb.StartRunRequest(agent_id=agent.id, messages=[user_message("Second.")])
    )

    await system.cancel(second.run.id)

    assert (await system.follow(second.run.id)).finished.stop_reason == (
        event_pb.STOP_REASON_CANCELLED
    )
    go_on.set()
    assert (await first.rest()).text == LONG
    assert len(system.model.requests) == 1


async def test_a_client_that_disconnects_does_not_stop_the_run(system: System) -> None:
    agent = await system.make_agent()
    go_on = asyncio.Event()
    system.model.script(slowly(held=go_on))
    call = system.begin(agent, "First.")
    await call.until("text_delta")
    call.leave()
    go_on.set()

    ran = await system.follow(call.run_id)

    assert ran.finished.stop_reason == event_pb.STOP_REASON_END_TURN
    assert text_of((await system.log(agent))[-1]) == LONG


async def test_events_can_be_read_again_after_any_sequence(system: System) -> None:
    agent = await system.make_agent()
    system.model.script(
        Reply(
            text="Let me note that.",
            calls=(
                Call("memory_insert", {"label": "human", "new_str": "Ada"}),
                Call("conversation_search", {"query": "name"}),
            ),
        ),
        say("Noted."),
    )
    ran = await system.send(agent, "I am Ada.")
    kept = ran.stored_events
    sequences = [event.sequence for event in kept]
    assert sequences == list(range(1, len(kept) + 1))

    for after in (0, 1, len(kept) // 2, len(kept) - 1):
        again = await system.follow(ran.run_id, after)
        assert again.events == kept[after:]
    assert (await system.follow(ran.run_id, len(kept))).events == []


async def test_follower_in_mid_reply_gets_the_text_so_far_and_the_rest(system: System) -> None:
    agent = await system.make_agent()
    go_on = asyncio.Event()
    system.model.script(slowly(held=go_on))
    call = system.begin(agent, "Tell me all.")
    await call.until("text_delta")
    seen = max(event.sequence for event in call.events)

    request = run_pb.StreamRunRequest(run_id=call.run_id, after_sequence=seen)
    follower = RunStream(system.runs.StreamRun(request))
    await follower.until("text_snapshot")
    go_on.set()
    late = await follower.rest()

    ran = await call.rest()
    assert late.events[0].HasField("text_snapshot")
    assert late.events[0].text_snapshot.text + late.streamed == LONG
    assert late.events[0].text_snapshot.message_id == ran.messages[-1].id
    assert [e.sequence for e in late.stored_events] == [
        e.sequence for e in ran.stored_events if e.sequence > seen
    ]
    assert ran.streamed == LONG


async def test_a_repeated_request_id_returns_the_first_run(system: System) -> None:
    agent = await system.make_agent()
    system.model.script(say("Once."))
    first = await system.send(agent, "Hi.", request_id="request-1")

    again = await system.send(agent, "Hi.", request_id="request-1")

    assert again.stored_events == first.stored_events
    assert len(system.model.requests) == 1
    assert roles(await system.log(agent)) == ["system", "user", "assistant"]
    with pytest.raises(AlreadyExistsError) as caught:
        await system.send(agent, "Something else.", request_id="request-1")
    assert caught.value.reason is Reason.REQUEST_ID_REUSED


async def test_request_id_repeated_during_the_run_follows_it(system: System) -> None:
    agent = await system.make_agent()
    go_on = asyncio.Event()
    system.model.script(slowly(held=go_on))
    call = system.begin(agent, "Tell me.", request_id="request-2")
    await call.until("text_delta")

    second = system.begin(agent, "Tell me.", request_id="request-2")
    await second.until("step_started")
    go_on.set()
    again = await second.rest()

    ran = await call.rest()
    assert again.stored_events == ran.stored_events
    assert again.text == ran.text == LONG
    assert len(system.model.requests) == 1


async def test_many_messages_at_once_are_answered_one_after_the_other(system: System) -> None:
    agent = await system.make_agent()

    def echo(request: ModelCall) -> Step:
        return say(f"You said: {request.last_text}", pause=0.01)

    system.model.respond(echo)
    texts = [f"Message {number}" for number in range(6)]

    runs = await asyncio.gather(*(system.send(agent, text) for text in texts))

    assert {ran.text for ran in runs} == {f"You said: {text}" for text in texts}
    stored_texts = [text_of(message) for message in (await system.log(agent))[1:]]
    assert sorted(stored_texts[::2]) == texts
    assert stored_texts[1::2] == [f"You said: {text}" for text in stored_texts[::2]]


async def test_stream_of_a_run_that_waits_begins_when_it_does(system: System) -> None:
    agent = await system.make_agent()
    system.model.script(slowly(), say("Second answer."))
    first = system.begin(agent, "First.")
    await first.until("text_delta")
    waiting = system.begin(agent, "Second.")

    ran = await first.rest()
    second = await waiting.rest()

    assert ran.text == LONG
    assert second.kinds[0] == "run_started"
    assert second.text == "Second answer."


async def test_an_agent_deleted_during_a_run_leaves_nothing_behind(system: System) -> None:
    agent = await system.make_agent()
    go_on = asyncio.Event()
    system.model.script(slowly(held=go_on))
    stream = system.begin(agent, "Tell me all.")
    await stream.until("text_delta")

    await system.agents.DeleteAgent(agent_pb.DeleteAgentRequest(agent_id=agent.id))
    go_on.set()

    ran = await stream.rest()
    assert ran.finished.stop_reason == event_pb.STOP_REASON_CANCELLED
    assert (await system.run(ran.run_id)).state == run_pb.RUN_STATE_CANCELLED
    with pytest.raises(NotFoundError):
        await system.log(agent)
    with pytest.raises(NotFoundError) as caught:
        await system.send(agent, "Are you there?")
    assert caught.value.reason is Reason.AGENT_NOT_FOUND


async def test_runs_queued_for_a_deleted_agent_are_cancelled_and_ask_nothing(
    system: System,
) -> None:
    agent = await system.make_agent()
    go_on = asyncio.Event()
    system.model.script(slowly(held=go_on))
    stream = system.begin(agent, "First.")
    await stream.until("text_delta")
    start = run_pb.StartRunRequest(agent_id=agent.id, messages=[user_message("Second.")])
    queued = [(await system.runs.StartRun(start)).run.id for _ in range(3)]

    await system.agents.DeleteAgent(agent_pb.DeleteAgentRequest(agent_id=agent.id))

    # The model's reply is not released yet: only the deletion can end these runs.
    for run_id in (stream.run_id, *queued):
        ended = await system.follow(run_id)
        assert ended.finished.stop_reason == event_pb.STOP_REASON_CANCELLED
        assert not ended.finished.HasField("error")
    go_on.set()
    assert len(system.model.requests) == 1


async def test_shared_block_is_seen_by_both_agents(system: System) -> None:
    first = await system.make_agent()
    block = await system.block(first, "human")
    second = await system.make_agent(block_ids=[block.id])
    system.model.script(
        call("memory_insert", {"label": "human", "new_str": "Likes tea."}),
        say("Noted."),
        say("Tea, I hear."),
    )
    await system.send(first, "I like tea.")

    await system.send(second, "What do I like?")

    assert "<value>\nLikes tea.\n</value>" in system.model.requests[-1].system
    assert "<value>\nLikes tea.\n</value>" in await system.system_message(second)


async def test_next_turn_runs_the_changed_agent(system: System) -> None:
    agent = await system.make_agent()
    system.model.script(say("Hello."), say("Ahoy."))
    await system.send(agent, "Hi.")

    await system.agents.UpdateAgent(
        agent_pb.UpdateAgentRequest(
            agent_id=agent.id,
            system="You are a pirate.",
            tools=agent_pb.NameList(names=["conversation_search"]),
            model=agent_pb.ModelConfig(handle="anthropic/test-model"),
        )
    )
    await system.send(agent, "Hi again.")

    before, after = system.model.requests
    assert after.dialect == "anthropic"
    assert after.tool_names == ["conversation_search"]
    assert after.system.startswith("You are a pirate.\n\n<memory_blocks>")
    assert "memory_insert" in before.tool_names
