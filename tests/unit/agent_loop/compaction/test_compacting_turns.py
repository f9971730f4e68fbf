"""Turns with a full window: when it is compacted, also after crashes and concurrent changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from histories import assert_answered
from strata.agent_loop.compaction.compactor import MAX_SWAPS
from strata.agent_loop.context.requests import View
from strata.agent_loop.context.token_budget import TokenBudget
from strata.agent_loop.domain.agent.agents import CompactionSettings
from strata.agent_loop.domain.conversation.messages import Message, SummaryPart, Window
from strata.agent_loop.domain.model.chat import ModelReply
from strata.agent_loop.domain.model.errors import ModelError, ModelErrorKind
from strata.agent_loop.domain.ports import BoundModel, WindowSwap
from strata.agent_loop.domain.run.events import (
    ReplyReceived,
    StepRestarted,
    WindowCompacted,
)
from strata.agent_loop.loop.turn import Turn
from strata.protocol.errors import AbortedError, Reason, UnavailableError
from strata.shared.messages import MessageRole
from strata.shared.stop_reasons import StopReason
from strata.shared.usage import Usage
from unit.agent_loop.loop.in_memory_ports import LoopWorld, Sink, reply
from unit.agent_loop.loop.journals import Died

VIEW = View(5000)
OVERFLOW = ModelError(ModelErrorKind.CONTEXT_OVERFLOW, "too long")


async def filled(turns: int = 12, window: int = 4096, size: int = 400) -> LoopWorld:
    """A world whose next turn may have to compact the window."""
    world = LoopWorld(window_tokens=window)
    for number in range(turns):
        await world.run(world.request(f"Question {number} " + "q" * size), reply("a" * size))
    return world


async def full() -> LoopWorld:
    """A world whose next turn must compact the window, and has not yet."""
    world = await filled(8)
    while not world.recall.swaps:
        before = [*world.recall.messages], world.recall.revision, dict(world.recall.log)
        await world.run(world.request("more " + "q" * 400), reply("a" * 400))
    world.recall.swaps.clear()
    world.recall.messages, world.recall.revision, world.recall.log = before
    world.recall.hidden = 0
    world.model.summarised.clear()
    return world


def summary_of(world: LoopWorld) -> SummaryPart:
    (message,) = [m for m in world.recall.messages if m.role is MessageRole.SUMMARY]
    (part,) = message.parts
    assert isinstance(part, SummaryPart)
    return part


async def test_summary_is_stored_once_recall_is_available_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("strata.agent_loop.domain.retries._FIRST_PAUSE_S", 0.0)
    world = await full()
    failures = iter([UnavailableError("recall is away")] * 3)

    def fail() -> None:
        if (error := next(failures, None)) is not None:
            raise error

    world.recall.on_swap = fail
    sink = await world.run(world.request("Last " + "q" * 400), reply("Done."))
    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert len(world.model.summarised) == 1
    assert len(world.recall.swaps) == 1
    assert len(sink.of(WindowCompacted)) == 1
    stored = {message.id for message in world.recall.messages}
    (spent,) = [reply.usage for reply in sink.of(ReplyReceived) if reply.message_id not in stored]
    assert spent.total_tokens > 0, "the gateway is informed of its cost"


async def test_a_full_window_is_compacted_before_the_model_is_called() -> None:
    world = await full()
    before = [m.id for m in world.recall.messages]
    sink = await world.run(world.request("Last " + "q" * 400), reply("Done."))

    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert sink.of(StepRestarted) == []
    (event,) = sink.of(WindowCompacted)
    assert event.tokens_after < event.tokens_before
    assert world.recall.messages[1] == event.summary
    part = summary_of(world)
    assert part.text == "- They talked."
    assert part.first_message_id == before[1]
    assert part.message_count == before.index(part.last_message_id)
    shown = world.model.requests[-1].messages
    assert '"type": "system_alert"' in shown[1].text
    assert "- They talked." in shown[1].text
    assert shown[2].text.startswith(("Question", "more"))
    assert shown[-1].text.startswith("Last")
    hidden = part.message_count
    assert f"- {hidden} previous messages" in shown[0].text, "the counts are told anew"
    assert world.recall.commits[-1].system_text == shown[0].text


async def test_a_second_summary_takes_in_the_first() -> None:
    world = await filled(40)
    assert len(world.recall.swaps) > 1
    transcript = world.model.summarised[-1].messages[1].text
    assert transcript.startswith('{"role": "summary", "content": "- They talked."}')
    part = summary_of(world)
    gone = [m for m in world.recall.log.values() if m.role is not MessageRole.SUMMARY]
    kept = {m.id for m in world.recall.messages}
    assert part.message_count == len([m for m in gone if m.id not in kept])
    assert (part.first_sequence, part.first_message_id) == (1, gone[0].id)


async def test_a_plain_turn_with_space_asks_for_nothing_more() -> None:
    world = await filled(3)
    assert world.recall.swaps == []
    assert world.model.summarised == []


async def test_the_exact_count_of_the_provider_decides_where_it_is_known() -> None:
    dense = LoopWorld(window_tokens=4096)
    text = "q" * 4000
    # By the usual estimate this is a third of the window; the provider counts two bytes a token.
    exact = replace(reply("ok"), usage=Usage(prompt_tokens=2100, completion_tokens=5))
    exact = replace(exact, model="test/model")
    await dense.run(dense.request(text), exact)
    await dense.run(dense.request(text), exact)
    assert dense.recall.swaps != [], "the second turn would not have fitted"

    easy = LoopWorld(window_tokens=4096)
    exact = replace(exact, usage=Usage(prompt_tokens=500, completion_tokens=5))
    for _ in range(4):
        await easy.run(easy.request(text), exact)
    assert easy.recall.swaps == [], "16,000 bytes are 2,000 tokens here"


async def test_a_refusal_for_length_compacts_the_window_and_the_model_is_asked_again() -> None:
    world = await filled(6)
    assert world.recall.swaps == []
    sink = await world.run(world.request("Last."), OVERFLOW, reply("Done."))

    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert len(sink.of(WindowCompacted)) == 1
    (restarted,) = sink.of(StepRestarted)
    assert "older messages are summarised" in restarted.reason
    assert len(world.recall.swaps) == 1


async def test_after_a_second_refusal_the_request_is_halved_and_a_third_ends_the_run() -> None:
    world = await filled(6)
    sink = await world.run(world.request("Last."), OVERFLOW, OVERFLOW, reply("Done."))
    assert sink.outcome.stop_reason is StopReason.END_TURN
    sizes = [VIEW_SIZE(request) for request in world.model.requests[-3:]]
    assert sizes[2] <= sizes[1] / 2 < sizes[1] < sizes[0]
    assert len(world.recall.swaps) == 1

    sink = await world.run(world.request("Again."), OVERFLOW, OVERFLOW, OVERFLOW)
    assert sink.outcome.stop_reason is StopReason.LLM_API_ERROR
    assert sink.outcome.failure is not None
    assert sink.outcome.failure.reason is Reason.CONTEXT_WINDOW_EXCEEDED
    assert world.recall.messages[-1].text == "Again."


def VIEW_SIZE(request: Any) -> int:
    return sum(len(message.text) for message in request.messages)


async def test_a_user_message_larger_than_the_window_is_answered_nevertheless() -> None:
    world = LoopWorld(window_tokens=4096)
    sink = await world.run(world.request("q" * 100_000), reply("That is long."))
    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert "[truncated" in world.model.requests[-1].messages[-1].text
    assert world.recall.messages[1].text == "q" * 100_000, "what is stored is never cut"


async def test_huge_returns_of_many_calls_fit_a_tiny_window() -> None:
    world = LoopWorld(window_tokens=4096)
    world.tools.text = "r" * 30_000
    names = ["reads"] * 5
    sink = await world.run(None, *[world.calls(*names) for _ in range(4)], reply("Done."))
    assert sink.outcome.stop_reason is StopReason.END_TURN
    for request in world.model.requests:
        assert_answered(request.messages)
        assert VIEW_SIZE(request) < 4096 * 3.2
    assert len(world.recall.swaps) > 0
    assert_answered(VIEW.chats(world.recall.messages))


async def test_pinned_messages_survive_any_number_of_compactions() -> None:
    world = await filled(2)
    for position in (1, 4):
        world.recall.messages[position] = replace(world.recall.messages[position], pinned=True)
    pinned = [m.id for m in world.recall.messages if m.pinned]
    for number in range(40):
        await world.run(world.request(f"More {number} " + "q" * 400), reply("a" * 400))
    assert len(world.recall.swaps) > 2
    assert [m.id for m in world.recall.messages if m.pinned] == pinned
    roles = [m.role for m in world.recall.messages[:3]]
    assert roles == [MessageRole.SYSTEM, MessageRole.SUMMARY, MessageRole.USER]
    assert world.recall.messages[2].id == pinned[0], "pinned ones stand after the summary"


async def test_memory_without_space_for_messages_causes_no_summary_each_turn() -> None:
    world = await filled(6)
    assert world.recall.swaps == []
    usable = TokenBudget(world.ports.tokens, world.models.settings, world.agent.id).max_bytes
    world.memory.text = "<memory_blocks>\n" + "m" * int(usable * 0.97) + "\n</memory_blocks>"
    for number in range(6):
        sink = await world.run(world.request(f"Then {number} " + "q" * 400), reply("a" * 400))
        assert sink.outcome.stop_reason is StopReason.END_TURN
        assert f"Then {number} " in world.model.requests[-1].messages[-1].text
    assert world.model.summarised == []
    assert world.recall.swaps == []

    world.memory.text = "<memory_blocks>\nsmall\n</memory_blocks>"
    for number in range(8):
        await world.run(world.request(f"Now {number} " + "q" * 400), reply("a" * 400))
    assert world.recall.swaps != [], "once there is space, the window is compacted"


async def test_pinned_messages_that_fill_the_space_cause_no_summary_each_turn() -> None:
    world = await filled(10)
    before = len(world.recall.swaps)
    for position, message in enumerate(world.recall.messages[1:], start=1):
        if message.role is not MessageRole.SUMMARY:
            world.recall.messages[position] = replace(message, pinned=True)
    await world.run(world.request("p" * 9_000), reply("a"))
    world.recall.messages[-2] = replace(world.recall.messages[-2], pinned=True)
    for number in range(4):
        sink = await world.run(world.request(f"More {number} " + "q" * 400), reply("a" * 400))
        assert sink.outcome.stop_reason is StopReason.END_TURN
    assert len(world.recall.swaps) <= before + 1


async def test_open_files_are_closed_before_they_take_the_space_of_the_messages() -> None:
    world = await filled(4)
    first_question = "Question 0 "
    usable = TokenBudget(world.ports.tokens, world.models.settings, world.agent.id).max_bytes
    file = '<directories>\n<file status="open" name="a/b">\n{}\n</file>\n</directories>'
    world.memory.text = file.format("f" * int(usable))
    world.memory.without_files = "<directories>\nnothing is open\n</directories>"
    sink = await world.run(world.request("Go on."), reply("Yes."))

    assert sink.outcome.stop_reason is StopReason.END_TURN
    (most,) = world.memory.fitted
    assert most < usable * 0.75
    shown = world.model.requests[-1].messages
    assert "nothing is open" in shown[0].text
    assert first_question in shown[1].text, "no message had to leave"
    assert world.recall.swaps == []
    assert world.recall.commits[-1].system_text == shown[0].text

    world.memory.text = file.format("f" * int(usable * 0.5))
    world.memory.without_files = None
    await world.run(world.request("And on."), reply("Yes."))
    assert world.memory.fitted == [most], "half of the prompt may be files"


async def test_a_refusal_for_length_closes_files_if_they_are_the_reason() -> None:
    world = await filled(2)
    usable = TokenBudget(world.ports.tokens, world.models.settings, world.agent.id).max_bytes
    file = '<directories>\n<file status="open" name="a/b">\n{}\n</file>\n</directories>'
    world.memory.text = file.format("f" * int(usable * 0.6))
    world.memory.without_files = "<directories>\nnothing is open\n</directories>"
    sink = await world.run(world.request("Go on."), OVERFLOW, reply("Yes."))
    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert len(world.memory.fitted) == 1
    assert "nothing is open" in world.model.requests[-1].messages[0].text


async def test_failed_summaries_do_not_fail_the_turn() -> None:
    world = await full()
    world.model.on_summary = lambda request: ModelError(ModelErrorKind.RATE_LIMITED, "429")
    sink = await world.run(world.request("Last " + "q" * 400), reply("Done."))
    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert summary_of(world).text.startswith("No model could be asked")


async def test_the_configured_summarizer_makes_the_summary_and_its_tokens_are_counted() -> None:
    world = await full()
    other = LoopWorld().model
    other.on_summary = lambda request: reply("- By another.")
    chosen = replace(world.models.settings, handle="small/model", context_window=32_000)
    world.models.others["small/model"] = BoundModel(other, chosen)
    compaction = CompactionSettings(model="small/model", mode="all")
    world.ports.agents.agent = replace(world.agent, compaction=compaction)  # type: ignore[attr-defined]
    sink = await world.run(world.request("Last " + "q" * 400), reply("Done."))

    assert summary_of(world).text == "- By another."
    assert [m.role.value for m in world.recall.messages] == [
        "system",
        "summary",
        "user",
        "assistant",
    ]
    assert sink.outcome.usage.prompt_tokens == 20
    assert sink.outcome.step_count == 1


@pytest.mark.parametrize(("position", "summaries"), [(1, 2), (-1, 1)])
async def test_concurrent_pin_is_honoured(position: int, summaries: int) -> None:
    world = await full()
    chosen = world.recall.messages[position].id

    def pin() -> None:
        if not any(m.pinned for m in world.recall.messages):
            world.recall.messages = [
                replace(m, pinned=m.id == chosen) for m in world.recall.messages
            ]
            world.recall.revision += 1

    world.recall.on_swap = pin
    sink = await world.run(world.request("Last " + "q" * 400), reply("Done."))

    assert sink.outcome.stop_reason is StopReason.END_TURN
    # What was to stay anyway changes nothing in the summary.
    assert len(world.model.summarised) == summaries
    assert [m.id for m in world.recall.messages if m.pinned] == [chosen]
    assert len(world.recall.swaps) == 1


async def test_window_that_keeps_changing_does_not_fail_the_turn() -> None:
    world = await full()
    tries = 0

    def move() -> None:
        nonlocal tries
        tries += 1
        world.recall.revision += 1

    world.recall.on_swap = move
    sink = await world.run(world.request("Last " + "q" * 400), reply("Done."))
    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert tries == MAX_SWAPS
    assert sink.of(WindowCompacted) == []


async def test_messages_archived_during_the_turn_stay_archived() -> None:
    world = await full()
    archived = {message.id for message in world.recall.messages[1:-2]}

    def archive() -> None:
        # A memory agent takes older messages out; the turn goes on with the window that it read.
        shown = world.recall.messages
        world.recall.messages = [message for message in shown if message.id not in archived]
        world.recall.revision += len(world.recall.messages) < len(shown)

    world.tools.on_call = archive
    world.tools.text = "r" * 2_000
    sink = await world.run(None, world.calls("reads"), world.calls("reads"), reply("Done."))
    assert not archived.intersection(message.id for message in world.recall.messages)
    assert sink.outcome.stop_reason is StopReason.END_TURN


async def test_newer_attempt_fences_off_the_compaction() -> None:
    world = await full()

    def taken_over(request: Any) -> ModelReply:
        world.recall._fence = (asked.run_id, 2)
        return reply("- Late.")

    world.model.on_summary = taken_over
    asked = world.request("Last " + "q" * 400)
    with pytest.raises(AbortedError) as raised:
        await Turn(world.ports, asked, Sink()).run()
    assert raised.value.reason is Reason.STALE_ATTEMPT
    assert world.recall.swaps == []


async def test_crash_at_any_point_leaves_the_old_or_the_new_window() -> None:
    points = 0
    while True:
        world = await full()
        old = {m.id for m in world.recall.messages}
        asked = world.request("Last " + "q" * 400)
        world.fate.calls, world.fate.last = 0, points
        world.model.replies = [reply("Done.")]
        try:
            await Turn(world.ports, asked, Sink()).run()
        except Died:
            finished = False
        else:
            finished = True
        world.fate.last = None
        _assert_sound(world, old)
        if not finished:
            world.model.replies = [reply("Done.")]
            sink = Sink()
            await Turn(world.ports, replace(asked, attempt=2), sink).run()
            assert sink.outcome.stop_reason is StopReason.END_TURN
            _assert_sound(world, old)
            assert len(world.recall.swaps) == 1, "a second dispatch finds it done"
            assert [m.text for m in world.recall.messages[-2:]] == [asked_text(asked), "Done."]
        if finished:
            break
        points += 1
    assert points > 5


def asked_text(request: Any) -> str:
    return str(request.inputs[0].parts[0].text)


def _assert_sound(world: LoopWorld, old: set[str]) -> None:
    """No message is lost: each is in the window or stood for by the summary."""
    shown: list[Message] = world.recall.messages
    assert len({m.id for m in shown}) == len(shown)
    now = {m.id for m in shown}
    if world.recall.swaps:
        assert summary_of(world).message_count == len(old - now)
    else:
        assert old <= now


async def test_summary_is_made_once_and_stored_once_recall_is_available_again() -> None:
    world = await full()
    swap, away = world.recall.swap_window, 3

    async def swap_later(change: WindowSwap) -> Window:
        nonlocal away
        if away:
            away -= 1
            raise UnavailableError("down")
        return await swap(change)

    world.recall.swap_window = swap_later  # type: ignore[assignment,method-assign]
    sink = await world.run(world.request("Last " + "q" * 400), reply("Done."))

    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert len(world.model.summarised) == 1
    assert len(sink.of(WindowCompacted)) == 1


async def test_tokens_of_a_summary_are_counted_even_if_it_cannot_be_stored() -> None:
    world = await full()

    async def refuse(_: WindowSwap) -> Window:
        raise AbortedError("taken over", reason=Reason.STALE_ATTEMPT)

    world.recall.swap_window = refuse  # type: ignore[assignment,method-assign]
    sink = Sink()
    with pytest.raises(AbortedError):
        await Turn(world.ports, world.request("Last " + "q" * 400), sink).run()

    (arrived,) = sink.of(ReplyReceived)
    assert arrived.message_id not in world.recall.log
    assert arrived.usage.total_tokens > 0
