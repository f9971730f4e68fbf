"""Streaming, tool calls and failures of the model, in the whole system and both dialects."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from chat_messages import roles, text_of
from doubles.script import (
    Call,
    Dialect,
    Fault,
    Reply,
    Step,
    call,
    cut,
    overflow,
    rate_limited,
    say,
    server_error,
    unauthorized,
)
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.common.v1 import message_pb2
from strata.api.common.v1 import run_event_pb2 as event_pb
from strata.api.gateway.v1 import run_service_pb2 as run_pb
from whole_system import System

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def agent_on(system: System, dialect: Dialect) -> agent_pb.Agent:
    return await system.make_agent(f"{dialect}/test-model")


async def test_reply_is_streamed_as_it_is_stored(system: System, dialect: Dialect) -> None:
    agent = await agent_on(system, dialect)
    text = "Grüße aus dem Norden, wo die Tage kurz sind. ☃"
    # Deltas that arrive at the same time are sent as one.
    system.model.script(say(text, piece=3, usage=(120, 30), pause=0.02))

    ran = await system.send(agent, "Hello!")

    assert system.model.requests[0].dialect == dialect
    assert sum(event.HasField("text_delta") for event in ran.events) > 1
    assert ran.streamed == ran.text == text
    assert ran.finished.stop_reason == event_pb.STOP_REASON_END_TURN
    assert ran.finished.usage.prompt_tokens == 120
    assert ran.finished.usage.completion_tokens == 30
    assert (await system.run(ran.run_id)).usage == ran.finished.usage


async def test_without_tokens_only_whole_messages_are_sent(
    system: System, dialect: Dialect
) -> None:
    agent = await agent_on(system, dialect)
    system.model.script(say("Hello there.", piece=2))

    ran = await system.send(agent, "Hello!", stream_tokens=False)

    assert ran.kinds == ["run_started", "step_started", "message_stored", "run_finished"]
    assert ran.text == "Hello there."


async def test_calls_of_one_reply_are_all_run_and_returned_in_order(
    system: System, dialect: Dialect
) -> None:
    agent = await agent_on(system, dialect)
    system.model.script(
        Reply(
            text="One moment.",
            calls=(
                Call("memory_insert", {"label": "human", "new_str": "Likes tea."}),
                Call("archival_memory_search", {"query": "tea"}),
                Call("memory_insert", {"label": "no_such_block", "new_str": "x"}),
                Call("conversation_search", {"query": "tea"}),
            ),
        ),
        say("You like tea."),
    )

    ran = await system.send(agent, "I like tea.")

    assistant, tool, answer = ran.messages
    asked = [part.tool_call for part in assistant.parts if part.HasField("tool_call")]
    returned = [part.tool_return for part in tool.parts]
    assert [part.tool_call_id for part in returned] == [part.tool_call_id for part in asked]
    assert [part.name for part in returned] == [
        "memory_insert",
        "archival_memory_search",
        "memory_insert",
        "conversation_search",
    ]
    assert [part.status for part in returned] == [
        message_pb2.TOOL_STATUS_OK,
        message_pb2.TOOL_STATUS_OK,
        message_pb2.TOOL_STATUS_FAILED,
        message_pb2.TOOL_STATUS_OK,
    ]
    assert text_of(answer) == "You like tea."
    sent = [json.loads(text) for text in system.model.requests[1].answered]
    assert sent == [json.loads(part.content) for part in returned]
    assert (await system.block(agent, "human")).value == "Likes tea."


@dataclass(frozen=True)
class Failure:
    """The scripted failure of the model, and the expected end of the run."""

    steps: Sequence[Step]
    reason: str
    retryable: bool
    shown: str = ""
    stop: event_pb.StopReason.ValueType = event_pb.STOP_REASON_LLM_API_ERROR


def _at_once(fault: Fault) -> Fault:
    """Returns a fault with ``Retry-After: 0``, so that the request is repeated without a pause."""
    return replace(fault, headers={"retry-after": "0"})


def failures(dialect: Dialect) -> dict[str, Failure]:
    unavailable = _at_once(server_error())
    return {
        "wrong key": Failure([unauthorized()], "MODEL_AUTHENTICATION", retryable=False),
        "rate limit": Failure([rate_limited(0)] * 3, "MODEL_RATE_LIMITED", retryable=True),
        "rate limit for an hour": Failure(
            [rate_limited(3600)], "MODEL_RATE_LIMITED", retryable=True
        ),
        "server error": Failure([unavailable] * 3, "MODEL_UNAVAILABLE", retryable=True),
        "cut in mid-reply": Failure([cut(after=2)] * 3, "MODEL_UNAVAILABLE", retryable=True),
        "error in mid-reply": Failure(
            [Reply(text="It goes well so far.", error_after=(1, unavailable))] * 3,
            "MODEL_UNAVAILABLE",
            retryable=True,
        ),
        "too long a prompt": Failure(
            [overflow(dialect)], "CONTEXT_WINDOW_EXCEEDED", retryable=False
        ),
        "refused request": Failure(
            [Fault(400, "no such parameter", "invalid_request_error")],
            "MODEL_REQUEST_REFUSED",
            retryable=False,
        ),
        "nothing at all": Failure(
            [say(""), say("")],
            "MODEL_UNAVAILABLE",
            retryable=True,
            stop=event_pb.STOP_REASON_INVALID_LLM_RESPONSE,
        ),
    }


@pytest.mark.parametrize("name", list(failures("openai")))
async def test_failed_model_ends_the_run_and_loses_nothing(
    system: System, dialect: Dialect, name: str
) -> None:
    failure = failures(dialect)[name]
    agent = await agent_on(system, dialect)
    system.model.script(*failure.steps)

    ran = await system.send(agent, "Is anybody there?")

    assert len(system.model.requests) == len(failure.steps)
    assert ran.finished.stop_reason == failure.stop
    assert ran.finished.error.reason == failure.reason
    assert ran.finished.error.retryable is failure.retryable
    assert ran.finished.error.message
    stored = await system.run(ran.run_id)
    assert stored.state == run_pb.RUN_STATE_FAILED
    assert stored.error == ran.finished.error
    log = await system.log(agent)
    assert roles(log) == ["system", "user"]
    assert text_of(log[1]) == "Is anybody there?"

    system.model.script(say("Yes, now."))
    following = await system.send(agent, "And now?")

    assert following.text == "Yes, now."
    assert roles(await system.log(agent)) == ["system", "user", "user", "assistant"]
    asked = json.dumps(system.model.requests[-1].body)
    assert "Is anybody there?" in asked
    assert "And now?" in asked


async def test_a_reply_that_breaks_off_is_requested_again(system: System, dialect: Dialect) -> None:
    agent = await agent_on(system, dialect)
    system.model.script(cut(after=3, text="This answer is void from here on."), say("All is well."))

    ran = await system.send(agent, "How are you?")

    assert ran.kinds == [
        "run_started",
        "step_started",
        "text_delta",
        "step_restarted",
        "text_delta",
        "message_stored",
        "run_finished",
    ]
    assert ran.text == "All is well."
    assert ran.finished.step_count == 1
    assert roles(await system.log(agent)) == ["system", "user", "assistant"]


async def test_failure_after_a_step_keeps_the_step(system: System, dialect: Dialect) -> None:
    agent = await agent_on(system, dialect)
    system.model.script(
        call("memory_insert", {"label": "human", "new_str": "Likes tea."}), unauthorized()
    )

    ran = await system.send(agent, "I like tea.")

    assert ran.finished.error.reason == "MODEL_AUTHENTICATION"
    assert roles(await system.log(agent)) == ["system", "user", "assistant", "tool"]
    assert (await system.block(agent, "human")).value == "Likes tea."
    system.model.script(say("You like tea."))
    assert (await system.send(agent, "What do I like?")).text == "You like tea."


async def test_after_a_context_overflow_the_oldest_messages_are_summarised(
    system: System, dialect: Dialect
) -> None:
    agent = await agent_on(system, dialect)
    long = "word " * 400
    for number in range(3):
        system.model.script(say(f"{long} {number}"))
        await system.send(agent, f"Tell me story {number}. {long}")
    system.model.requests.clear()
    system.model.script(overflow(dialect), say("- Stories were told."), say("In short: yes."))

    ran = await system.send(agent, "And the moral?")

    assert ran.text == "In short: yes."
    assert "window_compacted" in ran.kinds
    before, asked, after = (json.dumps(request.body) for request in system.model.requests)
    assert len(after) < len(before)
    assert "tools" not in system.model.requests[1].body
    assert "Tell me story 0." in asked
    assert "Tell me story 0." not in after
    assert "- Stories were told." in after
    assert "And the moral?" in after
    assert len(await system.log(agent)) == 10, "removed from the window but kept in the log"


async def test_broken_calls_are_reported_to_the_model(system: System, dialect: Dialect) -> None:
    agent = await agent_on(system, dialect)
    system.model.script(
        Reply(calls=(Call("no_such_tool", {}), Call("memory_insert", {"label": "human"}))),
        say("I see."),
    )

    ran = await system.send(agent, "Do something odd.")

    returned = [json.loads(part.tool_return.content) for part in ran.messages[1].parts]
    assert [tool_return["status"] for tool_return in returned] == ["Failed", "Failed"]
    assert "no_such_tool" in returned[0]["message"]
    assert "new_str" in returned[1]["message"]
    assert ran.text == "I see."


async def test_encrypted_reasoning_is_stored_and_sent_back_with_its_call(system: System) -> None:
    agent = await system.make_agent("openai_responses/test-model")
    system.model.script(
        Reply(reasoning="I should look.", calls=(Call("no_such_tool"),)),
        say("Nothing."),
        say("Hi."),
    )
    await system.send(agent, "Look.")
    await system.send(agent, "And now?")
    assert system.model.violations == []
    kinds = [
        [item.get("type") for item in call.body["input"] if item.get("type")]
        for call in system.model.requests
    ]
    kept = ["reasoning", "function_call", "function_call_output"]
    assert kinds == [[], kept, kept]
