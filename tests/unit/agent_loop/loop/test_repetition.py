"""A run that repeats itself without progress gets a note, and is stopped later."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.agent_loop.context.packaging import package
from strata.agent_loop.domain.agent.tool_rules import ToolRule
from strata.agent_loop.domain.conversation.messages import Message, ToolReturn
from strata.agent_loop.domain.model.chat import ImagePart, ModelReply, ToolCall, ToolChoice
from strata.agent_loop.rules.repetition import StepTrace, repetitions, traces_of
from strata.shared.messages import MessageRole, ToolStatus
from strata.shared.stop_reasons import StopReason
from unit.agent_loop.loop.loop_harness import LoopHarness, assert_pairs_are_whole
from unit.agent_loop.loop.model_replies import reply
from unit.agent_loop.loop.ruled import (
    AUTO,
    harness_with,
    heartbeats,
    leaves,
    offered,
    parent,
    required,
    until_done,
)

NOTE = "You made the same tool calls with the same arguments 3 times in a row"


def notes(harness: LoopHarness) -> list[str]:
    return [json.loads(message.text)["reason"] for message in heartbeats(harness)]


def calls(harness: LoopHarness, *names: str, times: int = 50) -> list[ModelReply]:
    return [
        harness.calls(name) for _, name in zip(range(times), itertools.cycle(names), strict=False)
    ]


async def test_third_equal_call_is_noted_and_the_fifth_ends_the_run() -> None:
    harness = harness_with()
    sink = await harness.run(None, *calls(harness, "reads"))

    assert sink.outcome.stop_reason is StopReason.NO_PROGRESS
    assert sink.outcome.step_count == 5
    [note] = notes(harness)
    assert NOTE in note
    assert NOTE in harness.model.requests[3].messages[-1].text
    assert_pairs_are_whole(harness.recall.messages)
    harness.model.replies = [reply("On with it.")]
    assert (await harness.run()).outcome.stop_reason is StopReason.END_TURN


async def test_model_that_heeds_the_note_is_not_stopped() -> None:
    harness = harness_with()
    sink = await harness.run(
        None, *calls(harness, "reads", times=4), harness.calls("acts"), reply("Done.")
    )
    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert len(notes(harness)) == 1


async def test_polling_with_different_results_is_not_a_repetition() -> None:
    harness = harness_with()
    count = itertools.count()

    def poll() -> None:
        harness.tools.text = f"{next(count)} of 20 done"

    harness.tools.on_call = poll
    sink = await harness.run(None, *calls(harness, "reads", times=20), reply("Done."))
    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert notes(harness) == []


async def test_calls_with_different_arguments_are_no_repetition_whatever_their_formatting() -> None:
    for spellings, stop in (
        (('{"a": %d}',), StopReason.END_TURN),
        (('{"a": 1, "b": 2}', '{"b":2,"a":1}'), StopReason.NO_PROGRESS),
    ):
        harness = harness_with()
        replies = []
        for number in range(8):
            text = spellings[number % len(spellings)]
            arguments = text % number if "%" in text else text
            replies.append(reply("", ToolCall(f"call_{number}", "reads", arguments)))
        sink = await harness.run(None, *replies, reply("Done."))
        assert sink.outcome.stop_reason is stop


@pytest.mark.parametrize("cycle", [("reads", "acts"), ("reads", "acts", "keyed")])
async def test_short_cycles_are_repetitions(cycle: Sequence[str]) -> None:
    harness = harness_with()
    sink = await harness.run(None, *calls(harness, *cycle))
    assert sink.outcome.stop_reason is StopReason.NO_PROGRESS
    assert sink.outcome.step_count == 5 * len(cycle)
    assert len(notes(harness)) == 1


async def test_refused_calls_are_repetitions_too() -> None:
    harness = harness_with()
    sink = await harness.run(None, *calls(harness, "no_such_tool"))
    assert sink.outcome.stop_reason is StopReason.NO_PROGRESS
    assert sink.outcome.step_count == 5


async def test_repetitions_are_counted_across_attempts() -> None:
    for death in range(1, 12):
        harness = harness_with()
        replies = [*calls(harness, "reads", times=5), reply("Never asked for.")]
        sink = await until_done(harness, replies, [death, death + 3])
        assert sink.outcome.stop_reason is StopReason.NO_PROGRESS
        assert len(harness.recall.commits) == 5
        assert len(notes(harness)) == 1


@pytest.mark.parametrize("rules", [(), (required("acts"),)], ids=["calls", "replies"])
async def test_another_attempt_after_the_end_requests_nothing(rules: Sequence[ToolRule]) -> None:
    harness = harness_with(*rules)
    replies = [reply(f"Bye {number}.") for number in range(5)] if rules else None
    request = harness.request("Say this once.")
    ended = await harness.run(request, *(replies or calls(harness, "reads", times=5)))
    assert ended.outcome.stop_reason is StopReason.NO_PROGRESS
    harness.model.replies = [reply("Never asked for.")]

    again = await harness.run(replace(request, attempt=2))

    assert again.outcome.stop_reason is StopReason.NO_PROGRESS
    assert len(harness.model.requests) == len(harness.recall.commits) == 5


async def test_required_tool_is_forced_after_a_reply_that_would_end_the_turn() -> None:
    harness = harness_with(required("acts"))
    sink = await harness.run(None, reply("Bye."), harness.calls("acts"), reply("Bye."))

    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert offered(harness) == [
        (["keyed", "reads", "acts"], AUTO),
        (["acts"], ToolChoice.named("acts")),
        (["keyed", "reads", "acts"], AUTO),
    ]
    assert len(heartbeats(harness)) == 1


async def test_several_required_tools_are_the_only_ones_offered() -> None:
    harness = harness_with(required("acts"), required("keyed"))
    await harness.run(
        None,
        reply("Bye."),
        harness.calls("keyed"),
        reply("Bye."),
        harness.calls("acts"),
        reply("Bye."),
    )
    assert offered(harness)[1] == (["keyed", "acts"], ToolChoice.required())
    assert offered(harness)[3] == (["acts"], ToolChoice.named("acts"))


async def test_required_tool_is_forced_after_the_exit_tool() -> None:
    harness = harness_with(required("acts"), leaves("reads"))
    sink = await harness.run(
        None, harness.calls("reads"), harness.calls("acts"), harness.calls("reads")
    )
    assert sink.outcome.stop_reason is StopReason.TOOL_RULE
    assert offered(harness)[1] == (["acts"], ToolChoice.named("acts"))


async def test_required_tool_that_may_not_be_called_yet_is_not_forced() -> None:
    harness = harness_with(required("acts"), parent("keyed", "acts"))
    sink = await harness.run(
        None, reply("Bye."), harness.calls("keyed"), harness.calls("acts"), reply("Bye.")
    )
    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert offered(harness)[1] == (["keyed", "reads"], AUTO)


async def test_model_that_ignores_a_forced_tool_is_stopped() -> None:
    for death in (None, 3, 7, 9):
        harness = harness_with(required("acts"))
        replies = [reply(f"Bye {number}.") for number in range(5)]
        padded = [*replies, reply("Never asked for.")]
        sink = await until_done(harness, padded, [death] if death else [])
        assert sink.outcome.stop_reason is StopReason.NO_PROGRESS
        assert len(harness.recall.commits) == 5
        assert offered(harness)[-1] == (["acts"], ToolChoice.named("acts"))


async def test_repeating_the_exit_tool_without_the_required_tool_stops_the_run() -> None:
    harness = harness_with(required("acts"), leaves("reads"))
    sink = await harness.run(None, *calls(harness, "reads"))
    assert sink.outcome.stop_reason is StopReason.NO_PROGRESS
    assert sink.outcome.step_count == 5


async def test_repetitions_of_an_earlier_run_do_not_count() -> None:
    harness = harness_with()
    for _ in range(3):
        sink = await harness.run(None, *calls(harness, "reads", times=2), reply("Done."))
        assert sink.outcome.stop_reason is StopReason.END_TURN
    assert notes(harness) == []


async def test_changed_result_starts_the_count_again() -> None:
    harness = harness_with()
    texts = iter(["a"] * 4 + ["b"] * 4)
    harness.tools.on_call = lambda: setattr(harness.tools, "text", next(texts))
    sink = await harness.run(None, *calls(harness, "reads", times=8), reply("Done."))
    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert len(notes(harness)) == 2


async def test_other_tools_with_the_same_result_are_not_a_repetition() -> None:
    harness = harness_with()
    harness.tools.text = "Done."
    order = ("reads", "acts", "acts", "reads", "keyed", "acts", "reads", "keyed", "keyed")
    sink = await harness.run(None, *calls(harness, *order, times=len(order)), reply("Done."))
    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert notes(harness) == []


def test_steps_differ_in_tool_arguments_status_output_and_images() -> None:
    def trace(
        *,
        name: str = "reads",
        arguments: str = "{}",
        status: ToolStatus = ToolStatus.OK,
        output: str = "x",
        image: str = "sha-1",
    ) -> StepTrace:
        now = next(times)
        content = package(status, output, now, "UTC")
        images = (ImagePart("image/png", image),)
        call = ToolCall(f"call_{now}", name, arguments)
        part = ToolReturn(call.id, name, status, content, images=images)
        [step_trace] = traces_of(
            [
                Message("m-1", MessageRole.ASSISTANT, (call,), "conversation", "agent"),
                Message("m-2", MessageRole.TOOL, (part,), "conversation", "agent"),
            ]
        )
        return step_trace

    start = datetime(2026, 1, 1, tzinfo=UTC)
    times = (start + timedelta(hours=number) for number in itertools.count())
    assert trace() == trace()
    assert trace(name="acts") != trace()
    assert trace(arguments='{"a": 1}') != trace()
    assert trace(status=ToolStatus.UNKNOWN) != trace()
    assert trace(output="y") != trace()
    assert trace(image="sha-2") != trace(), "a screenshot that changes is progress"


@given(st.lists(st.integers(0, 3)), st.lists(st.integers(0, 3), min_size=1, max_size=3))
def test_repetitions_are_counted_from_the_end(before: list[int], cycle: list[int]) -> None:
    for times in range(1, 6):
        assert repetitions([*before, *cycle * times]) >= times


@given(st.lists(st.integers(), unique=True, min_size=1))
def test_different_steps_count_once_each(steps: list[int]) -> None:
    assert repetitions(steps) == 1
