"""One turn of the pure loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.agent_loop.domain.events import StepRestarted, ToolFinished
from strata.agent_loop.domain.messages import MessageRole, ToolStatus
from strata.agent_loop.domain.runs import RunRequest, StopReason
from strata.agent_loop.loop.packaging import CANCELLED, NOT_STARTED
from strata.agent_loop.loop.turn import Turn
from strata.agent_loop.models.domain import FinishReason, ModelReply, ToolCall, Usage
from strata.agent_loop.models.errors import ModelError, ModelErrorKind
from strata.agent_loop.prompts.system_message import ArchivalStats
from strata.shared.errors import (
    AbortedError,
    FailedPreconditionError,
    Reason,
    UnavailableError,
)
from unit.agent_loop.loop.journals import Died
from unit.agent_loop.loop.world import USAGE, LoopWorld, Sink, assert_pairs_are_whole, reply
from unit.loop_time import put_forward


def roles(world: LoopWorld) -> list[str]:
    return [message.role.value for message in world.recall.messages]


def content(world: LoopWorld, message: int, part: int = 0) -> str:
    told = world.recall.messages[message].tool_returns[part].content
    return str(json.loads(told)["message"])


async def test_usage_is_summed_and_steps_are_counted() -> None:
    world = LoopWorld()
    sink = await world.run(None, world.calls("reads"), world.calls("keyed"), reply("Done."))

    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert sink.outcome.step_count == 3
    assert sink.outcome.usage == USAGE + USAGE + USAGE
    assert roles(world) == ["system", "user"] + ["assistant", "tool"] * 2 + ["assistant"]


async def test_plain_turn_writes_no_journal_and_asks_for_no_counts() -> None:
    world = LoopWorld()
    await world.run(None, reply("Hello."))

    assert world.journal.opened == 0
    assert world.archival.asked == 0
    assert world.memory.compiled == 1
    assert world.recall.commits[0].system_text is None
    assert world.recall.commits[0].metadata_stale is None


async def test_calls_that_are_all_refused_write_no_journal() -> None:
    world = LoopWorld()
    sink = await world.run(None, world.calls("nonsense", "rubbish"), reply("Sorry."))

    assert world.journal.opened == 0
    assert [e.result.tool_return.status for e in sink.of(ToolFinished)] == [ToolStatus.FAILED] * 2
    assert "Cannot call rubbish, valid tools include: ['keyed'" in content(world, 3, 1)


async def test_good_calls_run_beside_refused_ones_and_returns_keep_the_order() -> None:
    world = LoopWorld()
    await world.run(None, world.calls("acts", "nonsense", "reads"), reply("Done."))

    assert_pairs_are_whole(world.recall.messages)
    statuses = [part.status for part in world.recall.messages[3].tool_returns]
    assert statuses == [ToolStatus.OK, ToolStatus.FAILED, ToolStatus.OK]


async def test_memory_edit_rebuilds_the_prompt_for_the_next_step_and_stores_it_with_it() -> None:
    world = LoopWorld()

    def edit() -> None:
        world.memory.text = "<memory_blocks>\nnew\n</memory_blocks>"

    world.tools.on_edit = edit
    world.archival.answer = ArchivalStats(2, ("a", "b"))
    await world.run(None, world.calls("edits"), reply("Done."))

    first, second = (request.messages[0].text for request in world.model.requests)
    assert "empty" in first
    assert "new" in second
    assert "Available archival memory tags: a, b" in second
    assert [commit.system_text for commit in world.recall.commits] == [None, second]
    assert world.recall.commits[1].metadata_stale is False


async def test_rebuilt_prompt_that_no_step_stored_is_rebuilt_again_next_time() -> None:
    world = LoopWorld()
    world.memory.text = "<memory_blocks>\nnew\n</memory_blocks>"
    await world.run(None, ModelError(ModelErrorKind.BAD_REQUEST, "no"))
    assert "empty" in world.recall.messages[0].text

    await world.run(None, reply("Hello."))
    assert "new" in world.recall.messages[0].text


async def test_counts_that_are_not_to_be_had_stay_and_are_asked_for_again() -> None:
    world = LoopWorld()
    world.recall.stale = True
    world.archival.answer = ArchivalStats(7, ("x",))
    await world.run(None, reply("Hello."))
    assert world.recall.stale is False

    world.recall.stale = True
    world.archival.answer = UnavailableError("down")
    await world.run(None, reply("Hello."))
    assert "- 7 total memories" in world.recall.messages[0].text
    assert world.recall.stale is True


async def test_a_new_day_is_told_once_and_the_prompt_stays_through_the_day() -> None:
    world = LoopWorld()
    await world.run(None, reply("Hello."))
    assert world.recall.commits[-1].system_text is None
    world.clock.advance(24 * 3600)
    await world.run(None, reply("Hello."))
    told = world.recall.commits[-1].system_text
    assert told is not None
    assert f"date is: {world.clock.now():%B %d, %Y}\n" in told
    await world.run(None, reply("Hello."))
    assert world.recall.commits[-1].system_text is None


async def test_the_window_does_not_grow_with_the_conversation() -> None:
    world = LoopWorld(window_tokens=4096)
    sizes = []
    for number in range(60):
        asked = world.request(f"Question {number} " + "q" * 400)
        sink = await world.run(asked, reply("a" * 400))
        assert sink.outcome.stop_reason is StopReason.END_TURN
        sizes.append(len(world.recall.messages))
    assert max(sizes[30:]) <= max(sizes[:30])
    assert world.recall.messages[-2].text.startswith("Question 59")
    assert world.recall.hidden + len(world.recall.messages) == 121 + len(world.recall.swaps)
    out_of_view = world.recall.hidden - (len(world.recall.swaps) - 1)
    assert f"- {out_of_view} previous" in world.recall.messages[0].text
    assert 0 < len(world.recall.swaps) < 20
    assert len(world.model.summarised) == len(world.recall.swaps)


async def test_hidden_messages_are_counted_and_never_negative() -> None:
    world = LoopWorld()
    world.recall.stale = True
    world.recall.hidden = 12
    await world.run(None, reply("Hello."))
    assert "- 12 previous messages between you and the user" in world.recall.messages[0].text

    world.recall.stale = True
    world.recall.hidden = -5
    await world.run(None, reply("Hello."))
    assert "- 0 previous messages between you and the user" in world.recall.messages[0].text


async def test_call_ids_that_repeat_are_made_unique() -> None:
    world = LoopWorld()
    same = (ToolCall("call_0", "reads", ""), ToolCall("call_0", "acts", ""))
    await world.run(None, reply("", *same), reply("", *same), reply("Done."))

    ids = [call.id for message in world.recall.messages for call in message.tool_calls]
    assert len(set(ids)) == 4
    assert list(world.tools.acted.values()) == [1, 1]
    assert_pairs_are_whole(world.recall.messages)


async def test_text_that_cannot_be_stored_is_tidied() -> None:
    world = LoopWorld()
    bad = ToolCall("c\0", "reads", '{"a": "\ud800"}')
    await world.run(None, reply("a\0b\udc00", bad), reply("Done."))

    stored = world.recall.messages[2]
    assert stored.text == "ab?"
    assert stored.tool_calls[0].arguments == '{"a": "?"}'


async def test_cut_reply_runs_its_whole_calls_and_stops() -> None:
    world = LoopWorld()
    calls = (ToolCall("a", "acts", "{}"), ToolCall("b", "acts", '{"x": '))
    sink = await world.run(None, reply("", *calls, finish=FinishReason.LENGTH))

    assert sink.outcome.stop_reason is StopReason.MAX_TOKENS_EXCEEDED
    assert len(world.tools.acted) == 1
    assert "cut at the limit of output tokens" in content(world, 3, 1)


async def test_reply_cut_before_any_text_fails_with_advice() -> None:
    world = LoopWorld()
    sink = await world.run(None, reply("", finish=FinishReason.LENGTH))

    assert sink.outcome.stop_reason is StopReason.MAX_TOKENS_EXCEEDED
    assert sink.outcome.failure is not None
    assert "max_output_tokens" in sink.outcome.failure.message


@pytest.mark.parametrize(
    ("kind", "stop", "reason", "retryable"),
    [
        ("authentication", "llm_api_error", "MODEL_AUTHENTICATION", False),
        ("rate_limited", "llm_api_error", "MODEL_RATE_LIMITED", True),
        ("timeout", "llm_api_error", "MODEL_UNAVAILABLE", True),
        ("bad_request", "llm_api_error", "MODEL_REQUEST_REFUSED", False),
        ("refused", "llm_api_error", "MODEL_REQUEST_REFUSED", False),
        ("invalid_reply", "invalid_llm_response", "MODEL_UNAVAILABLE", True),
        ("not_configured", "llm_api_error", "MODEL_NOT_CONFIGURED", False),
    ],
)
async def test_model_errors_end_the_run_with_a_reason(
    kind: str, stop: str, reason: str, retryable: bool
) -> None:
    world = LoopWorld()
    error = ModelError(ModelErrorKind(kind), "What the provider said.")
    if kind == "not_configured":
        world.models.error = error
        sink = await world.run()
    else:
        sink = await world.run(None, *[error] * 3)

    assert sink.outcome.stop_reason.value == stop
    assert sink.outcome.failure is not None
    assert sink.outcome.failure.reason.value == reason
    assert sink.outcome.failure.retryable is retryable
    assert roles(world) == ["system", "user"]


async def test_broken_stream_is_begun_anew_twice_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("strata.agent_loop.loop.asking._FIRST_DELAY", 0.0)
    world = LoopWorld()
    broken = ModelError(ModelErrorKind.CUT_OFF, "cut")
    sink = await world.run(None, broken, broken, reply("Whole."))
    assert len(sink.of(StepRestarted)) == 2
    assert sink.outcome.stop_reason is StopReason.END_TURN

    sink = await world.run(None, broken, broken, broken)
    assert len(sink.of(StepRestarted)) == 2
    assert sink.outcome.stop_reason is StopReason.LLM_API_ERROR


async def test_system_prompt_larger_than_the_window_never_reaches_the_model() -> None:
    world = LoopWorld(window_tokens=4096)
    world.memory.text = "<memory_blocks>\n" + "x" * 40_000 + "\n</memory_blocks>"
    sink = await world.run()

    stop = StopReason.CONTEXT_WINDOW_OVERFLOW_IN_SYSTEM_PROMPT
    assert sink.outcome.stop_reason is stop
    assert world.model.requests == []


async def test_definite_refusal_of_a_room_ends_the_run_with_the_message_stored() -> None:
    world = LoopWorld()

    async def refuse(names: Sequence[str], *, skip_missing: bool = False) -> None:
        raise FailedPreconditionError("No.", reason=Reason.SCHEMA_OUTDATED)

    world.tools.resolve = refuse  # type: ignore[assignment,method-assign]
    sink = await world.run()

    assert sink.outcome.stop_reason is StopReason.ERROR
    assert sink.outcome.failure is not None
    assert sink.outcome.failure.reason is Reason.SCHEMA_OUTDATED
    assert roles(world) == ["system", "user"]


async def test_room_that_cannot_be_reached_leaves_the_run_open() -> None:
    world = LoopWorld()
    world.tools.error = UnavailableError("down")
    world.model.replies = [world.calls("keyed")]
    sink = Sink()
    with pytest.raises(UnavailableError):
        await Turn(world.ports, world.request(), sink).run()
    assert "RunFinished" not in sink.kinds
    assert roles(world) == ["system", "user"]


async def test_executor_that_refuses_is_told_to_the_model() -> None:
    world = LoopWorld()
    world.tools.error = FailedPreconditionError("Not now.", reason=Reason.IN_USE)
    sink = await world.run(None, world.calls("acts", "reads"), reply("Pity."))

    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert content(world, 3) == "The tool could not be run: Not now."
    assert_pairs_are_whole(world.recall.messages)


async def cancelled_turn(world: LoopWorld, ready: asyncio.Event) -> Sink:
    sink = Sink()
    task = asyncio.create_task(Turn(world.ports, world.request(), sink).run())
    await ready.wait()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return sink


async def test_cancel_while_tools_run_keeps_the_pair_whole() -> None:
    world = LoopWorld()
    world.model.replies = [world.calls("acts", "blocks", "acts")]
    await cancelled_turn(world, world.tools.running)

    assert world.tools.killed == 1
    assert roles(world) == ["system", "user", "assistant", "tool"]
    assert_pairs_are_whole(world.recall.messages)
    returns = world.recall.messages[3].tool_returns
    assert [part.status for part in returns] == [
        ToolStatus.OK,
        ToolStatus.FAILED,
        ToolStatus.FAILED,
    ]
    assert content(world, 3, 1) == CANCELLED
    assert content(world, 3, 2) == NOT_STARTED


async def test_cancel_while_the_model_talks_stores_nothing_of_the_step() -> None:
    world = LoopWorld()
    world.model.hold = asyncio.Event()
    world.model.replies = [reply("Never heard.")]
    sink = Sink()
    task = asyncio.create_task(Turn(world.ports, world.request(), sink).run())
    while not world.model.requests:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert roles(world) == ["system", "user"]
    world.model.hold = None
    assert (await world.run(None, reply("Hello."))).outcome.stop_reason is StopReason.END_TURN


async def test_deadline_ends_the_run_and_says_so() -> None:
    world = LoopWorld()
    world.model.replies = [world.calls("blocks")]
    deadline = world.clock.now() + timedelta(hours=1)
    turn = asyncio.create_task(world.run(world.request(deadline=deadline)))
    await world.tools.running.wait()
    put_forward(3_600)
    sink = await turn

    assert sink.outcome.stop_reason is StopReason.ERROR
    assert sink.outcome.failure is not None
    assert sink.outcome.failure.reason is Reason.DEADLINE_EXCEEDED
    assert_pairs_are_whole(world.recall.messages)
    assert roles(world)[-1] == "tool"


async def die(world: LoopWorld, request: RunRequest) -> None:
    with pytest.raises(Died):
        await world.run(request)


async def test_journalled_reply_is_not_asked_for_again_and_unknown_outcomes_are_told() -> None:
    world = LoopWorld()
    world.model.replies = [world.calls("acts", "keyed", "reads", "acts"), reply("Done.")]
    request = world.request()
    # Dies in the middle of the third call; the first was written down at once.
    world.fate.last = 13
    await die(world, request)
    asked = len(world.model.requests)
    assert asked == 1
    assert sum(world.tools.acted.values()) == 1

    world.fate.last = None
    sink = await world.run(replace(request, attempt=2))

    assert len(world.model.requests) == asked + 1
    statuses = [part.status for part in world.recall.messages[3].tool_returns]
    assert statuses == [ToolStatus.OK, ToolStatus.OK, ToolStatus.OK, ToolStatus.UNKNOWN]
    assert max(world.tools.acted.values()) == 1
    assert sink.outcome.usage == USAGE + USAGE


async def test_dispatch_that_was_given_up_stops_at_the_fence() -> None:
    world = LoopWorld()
    world.model.hold = asyncio.Event()
    world.model.replies = [world.calls("acts"), reply("From the second.")]
    request = world.request()
    first = asyncio.create_task(Turn(world.ports, request, Sink()).run())
    while not world.model.requests:
        await asyncio.sleep(0)
    held, world.model.hold = world.model.hold, None
    sink = await world.run(replace(request, attempt=2))
    held.set()
    with pytest.raises(AbortedError):
        await first

    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert world.tools.acted == {}
    assert roles(world) == ["system", "user", "assistant"]


def scripts() -> st.SearchStrategy[list[list[str]]]:
    names = st.sampled_from(["keyed", "reads", "acts", "edits", "files", "nonsense"])
    return st.lists(st.lists(names, min_size=1, max_size=3), max_size=4)


@settings(max_examples=150, deadline=None)
@given(script=scripts(), deaths=st.lists(st.integers(0, 25), max_size=4))
async def test_whatever_dies_when_nothing_is_lost_doubled_or_parted(
    script: list[list[str]], deaths: list[int]
) -> None:
    world = LoopWorld()
    request = world.request("Say this once.")
    asked_before: dict[int, ModelReply] = {}

    def queue_replies() -> None:
        done = len(world.recall.commits)
        rest = [
            asked_before.setdefault(done + index, world.calls(*names))
            for index, names in enumerate(script[done:])
        ]
        world.model.replies = [*rest, reply("Done.")]

    sink = None
    for attempt in range(1, len(deaths) + 2):
        resumed = world.journal.rows.get(request.run_id, (0, None))[1]
        queue_replies()
        if resumed is not None and resumed.step == len(world.recall.commits) + 1:
            # A journalled reply is not asked for again.
            world.model.replies = world.model.replies[1:]
        last = deaths[attempt - 1] if attempt <= len(deaths) else None
        world.fate.last = None if last is None else world.fate.calls + last
        try:
            sink = await world.run(replace(request, attempt=attempt))
            break
        except Died:
            continue

    assert sink is not None
    assert sink.outcome.stop_reason is StopReason.END_TURN
    users = [m for m in world.recall.messages if m.role is MessageRole.USER]
    assert [m.text for m in users] == ["Say this once."]
    assert_pairs_are_whole(world.recall.messages)
    assert roles(world)[2:] == ["assistant", "tool"] * len(script) + ["assistant"]
    # A tool that acts on the world acts once, or its outcome is unknown and the model is told.
    assert all(times == 1 for times in world.tools.acted.values())
    assert sink.outcome.step_count == len(script) + 1
    assert isinstance(sink.outcome.usage, Usage)
