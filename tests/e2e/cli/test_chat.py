"""``strata chat`` without a terminal: replies on standard output, the rest on standard error."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from command_line import Run
from e2e.cli.scripted import (
    RUN_ID,
    ScriptedGateway,
    delta,
    event,
    finished,
    play,
    reply,
    snapshot,
    started,
    step,
    stored,
    thought,
    tool_finished,
    tool_started,
)
from strata.api.common.v1 import message_pb2, run_event_pb2
from strata.api.common.v1.run_event_pb2 import RunEvent
from strata.cli.chat.turn_view import TurnView
from strata.client.run_follower import ConnectionLost, Update
from strata.protocol.errors import (
    AbortedError,
    InvalidArgumentError,
    Reason,
    ResourceExhaustedError,
    UnavailableError,
)

DIFF = "@@ -1,1 +1,2 @@\n Name: Ann\n+Likes: olives"


@pytest.fixture(autouse=True)
def ann(gateway: ScriptedGateway) -> Any:
    return gateway.agents.add("ann")


async def test_a_message_gets_its_reply(strata: Run, gateway: ScriptedGateway, ann: Any) -> None:
    done = await strata("chat", "ann", "--message", "Hi")
    assert (done.code, done.out) == (0, "Hello!\n")
    assert "1,234 tokens in, 56 out · 1 model call" in done.err
    [request] = gateway.runs.sent
    assert request.agent_id == ann.id
    assert request.messages[0].parts[0].text.text == "Hi"
    assert request.request_id


async def test_each_line_of_the_input_is_a_message(strata: Run, gateway: ScriptedGateway) -> None:
    done = await strata("chat", "ann", typed="one\n\ntwo\n")
    assert (done.code, done.out) == (0, "Hello!\nHello!\n")
    texts = [request.messages[0].parts[0].text.text for request in gateway.runs.sent]
    assert texts == ["one", "two"]
    assert len({request.request_id for request in gateway.runs.sent}) == 2


async def test_tool_calls_memory_edits_and_reasoning_are_printed(
    strata: Run, gateway: ScriptedGateway
) -> None:
    gateway.runs.on_send = play(
        started(),
        step(),
        thought("Ann told me\nsomething."),
        delta("I note that."),
        tool_started('{"label": "human", "new_string": "Likes: olives"}'),
        tool_finished("done", diff=DIFF),
        stored("I note that.", 5),
        step(6, 2),
        delta("Noted.", 6),
        stored("Noted.", 7),
        finished(),
    )
    done = await strata("chat", "ann", "-m", "I like olives", "--no-usage")
    assert done.out == "I note that.\nNoted.\n"
    assert done.err.splitlines() == [
        "[thinking] Ann told me",
        "[thinking] something.",
        '→ memory_insert(label="human", new_string="Likes: olives")',
        "  memory block human: lines inserted, revision 4",
        "  + Likes: olives",
    ]


@pytest.mark.parametrize(
    ("operation", "sentence"),
    [
        ("create", "  new memory block human, revision 4"),
        ("rename", "  memory block human has a new label or description, revision 4"),
        (
            "delete",
            "  memory block human removed from memory; strata memory restore brings it back",
        ),
        ("", "  memory block human, revision 4"),
    ],
)
async def test_edits_that_do_not_change_text_are_described(
    strata: Run, gateway: ScriptedGateway, operation: str, sentence: str
) -> None:
    gateway.runs.on_send = play(
        started(),
        step(),
        tool_started("{}"),
        tool_finished("done", operation=operation),
        stored("Done."),
        finished(),
    )
    done = await strata("chat", "ann", "-m", "x", "--no-usage")
    assert done.err.splitlines()[1:] == [sentence]


async def test_a_long_edit_is_shortened(strata: Run, gateway: ScriptedGateway) -> None:
    diff = "\n".join(["@@ -1,1 +1,30 @@", *(f"+{'x' * 500}{n}" for n in range(30))])
    gateway.runs.on_send = play(
        started(),
        step(),
        tool_started("{}"),
        tool_finished("done", diff=diff),
        stored("Done."),
        finished(),
    )
    done = await strata("chat", "ann", "-m", "x", "--no-usage")
    lines = done.err.splitlines()[2:]
    assert lines[-1] == "  … 18 more lines"
    assert len(lines) == 13
    assert all(len(line) < 210 for line in lines)


async def test_failure_of_a_tool_is_printed(strata: Run, gateway: ScriptedGateway) -> None:
    gateway.runs.on_send = play(
        started(),
        step(),
        tool_started("{}"),
        tool_finished("the block is read-only", status=message_pb2.TOOL_STATUS_FAILED),
        stored("I could not."),
        finished(),
    )
    done = await strata("chat", "ann", "-m", "x", "--no-usage")
    assert done.code == 0
    assert "memory_insert failed: the block is read-only" in done.err


async def test_a_failed_run_is_printed_as_one_sentence(
    strata: Run, gateway: ScriptedGateway
) -> None:
    error = run_event_pb2.RunError(
        reason="MODEL_RATE_LIMITED", message="The provider asks to wait.", retryable=True
    )
    gateway.runs.on_send = play(
        started(), finished(stop=run_event_pb2.STOP_REASON_LLM_API_ERROR, error=error)
    )
    done = await strata("chat", "ann", "-m", "Hi", "--no-usage")
    assert done.code == 1
    assert done.out == ""
    assert done.err == (
        "The provider asks to wait. [MODEL_RATE_LIMITED] Sending it again may work.\n"
    )


async def test_a_cancelled_run_is_a_failure(strata: Run, gateway: ScriptedGateway) -> None:
    gateway.runs.on_send = play(started(), finished(stop=run_event_pb2.STOP_REASON_CANCELLED))
    done = await strata("chat", "ann", "-m", "Hi", "--no-usage")
    assert (done.code, done.err) == (1, "Cancelled.\n")


async def test_events_are_printed_as_json_lines(strata: Run) -> None:
    done = await strata("chat", "ann", "-m", "Hi", "--json")
    events = [json.loads(line) for line in done.out.splitlines()]
    assert [list(event)[-1] for event in events] == [
        "runStarted",
        "stepStarted",
        "textDelta",
        "textDelta",
        "messageStored",
        "runFinished",
    ]
    assert done.err == ""


async def test_a_restarted_step_is_shown_once(strata: Run, gateway: ScriptedGateway) -> None:
    restarted = run_event_pb2.StepRestarted(step=1, reason="The step is repeated.")
    gateway.runs.on_send = play(
        started(),
        step(),
        delta("Wro"),
        event(3, step_restarted=restarted),
        step(4),
        delta("Right.", 4),
        stored("Right.", 5),
        finished(),
    )
    done = await strata("chat", "ann", "-m", "Hi", "--no-usage")
    assert (done.out, done.err) == ("Right.\n", "")


async def test_text_of_a_cancelled_run_that_is_not_stored_is_not_shown(
    strata: Run, gateway: ScriptedGateway
) -> None:
    restarted = run_event_pb2.StepRestarted(step=1, message_id="message-1", given_up=True)
    gateway.runs.on_send = play(
        started(),
        step(),
        delta("Half of it"),
        event(3, step_restarted=restarted),
        finished(stop=run_event_pb2.STOP_REASON_CANCELLED),
    )
    done = await strata("chat", "ann", "-m", "Hi", "--no-usage")
    assert (done.code, done.out, done.err) == (1, "", "Cancelled.\n")


async def test_an_unknown_agent_is_created_with_the_option(
    strata: Run, gateway: ScriptedGateway
) -> None:
    done = await strata("chat", "nobody", "--create", "-m", "Hi")
    assert (done.code, done.out) == (0, "Hello!\n")
    listed = await strata("agents", "list", "--json")
    assert "nobody" in listed.out
    assert len(gateway.runs.sent) == 1


async def test_an_unknown_agent_is_not_created_unasked(
    strata: Run, gateway: ScriptedGateway
) -> None:
    done = await strata("chat", "nobody", "-m", "Hi")
    assert done.code == 1
    assert "Create it with: strata agents create nobody" in done.err
    assert [agent.name for agent in gateway.agents.agents] == ["ann"]


async def test_requests_that_the_gateway_refuses_are_not_repeated(
    strata: Run, gateway: ScriptedGateway
) -> None:
    async def refuse(_: Any) -> AsyncIterator[Any]:
        raise AbortedError("Another run is active.", reason=Reason.CONVERSATION_BUSY)
        yield

    gateway.runs.on_send = refuse
    done = await strata("chat", "ann", "-m", "Hi")
    assert done.code == 1
    assert "Another run is active. [CONVERSATION_BUSY]" in done.err
    assert len(gateway.runs.sent) == 1


async def test_a_run_is_followed_across_a_restart_of_the_gateway(
    strata: Run, gateway: ScriptedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    half_shown, lost = threading.Event(), threading.Event()
    show = TurnView.show

    def watched(view: TurnView, update: Update, elapsed_s: float = 0.0) -> None:
        show(view, update, elapsed_s)
        if isinstance(update, RunEvent) and update.HasField("text_delta"):
            half_shown.set()
        elif isinstance(update, ConnectionLost):
            lost.set()

    async def first_half(_: Any) -> AsyncIterator[Any]:
        for run_event in (started(), step(), delta("It goes ")):
            yield run_event
        await asyncio.Event().wait()

    monkeypatch.setattr(TurnView, "show", watched)

    gateway.runs.on_send = first_half
    gateway.runs.on_stream = play(
        snapshot("It goes on "), delta("and ends."), stored("It goes on and ends."), finished()
    )
    command = asyncio.create_task(strata("chat", "ann", "-m", "Hi", "--no-usage"))
    assert await asyncio.to_thread(half_shown.wait, 30)
    await gateway.stop()
    assert await asyncio.to_thread(lost.wait, 30)
    # Leaves time for an attempt or two that fail.
    await asyncio.sleep(0.5)
    await gateway.start()
    done = await command
    assert (done.code, done.out) == (0, "It goes on and ends.\n")
    assert done.err.splitlines() == ["Connection lost; trying again …", "Connected again."]
    assert len(gateway.runs.sent) == 1
    [resumed] = gateway.runs.streamed
    assert (resumed.run_id, resumed.after_sequence) == (RUN_ID, 2)


async def test_a_message_that_may_be_lost_is_sent_again_under_its_id(
    strata: Run, gateway: ScriptedGateway
) -> None:
    async def fail_once(request: Any) -> AsyncIterator[Any]:
        if len(gateway.runs.sent) == 1:
            raise UnavailableError("Going down.", reason=Reason.SHUTTING_DOWN)
        if len(gateway.runs.sent) == 2:
            raise ResourceExhaustedError("Too much at once.", retry_after=0.1)
        async for run_event in reply("Hello!")(request):
            yield run_event

    gateway.runs.on_send = fail_once
    done = await strata("chat", "ann", "-m", "Hi")
    assert (done.code, done.out) == (0, "Hello!\n")
    assert len(gateway.runs.sent) == 3
    assert len({request.request_id for request in gateway.runs.sent}) == 1


async def test_repeated_events_are_shown_once(strata: Run, gateway: ScriptedGateway) -> None:
    async def cut(_: Any) -> AsyncIterator[Any]:
        for run_event in (started(), step(), tool_started('{"a": 1}'), tool_finished("fine")):
            yield run_event
        raise UnavailableError("Going down.", reason=Reason.SHUTTING_DOWN)

    gateway.runs.on_send = cut
    # A server that sends too much: it starts from the beginning, whatever was requested.
    gateway.runs.on_stream = play(
        started(),
        step(),
        tool_started('{"a": 1}'),
        tool_finished("fine"),
        stored("Done.", 5),
        finished(),
    )
    done = await strata("chat", "ann", "-m", "Hi", "--no-usage")
    assert done.out == "Done.\n"
    assert done.err.count("memory_insert(") == 1
    assert gateway.runs.streamed[0].after_sequence == 4


async def test_a_stream_that_ends_early_is_resumed(strata: Run, gateway: ScriptedGateway) -> None:
    gateway.runs.on_send = play(started(), step())
    gateway.runs.on_stream = play(stored("Whole."), finished())
    done = await strata("chat", "ann", "-m", "Hi")
    assert (done.code, done.out) == (0, "Whole.\n")


async def test_an_unknown_run_stops_the_reconnection_attempts(
    strata: Run, gateway: ScriptedGateway
) -> None:
    async def gone(_: Any) -> AsyncIterator[Any]:
        raise InvalidArgumentError("This is not a run.")
        yield

    gateway.runs.on_send = play(started())
    gateway.runs.on_stream = gone
    done = await strata("chat", "ann", "-m", "Hi")
    assert done.code == 1
    assert "This is not a run." in done.err
    assert len(gateway.runs.streamed) == 1
