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
from strata.agent_loop.domain.run.events import ReplyReceived, StepRestarted, WindowCompacted
from strata.agent_loop.loop.turn import Turn
from strata.protocol.errors import AbortedError, Reason, UnavailableError
from strata.shared.messages import MessageRole
from strata.shared.stop_reasons import StopReason
from strata.shared.usage import Usage
from unit.agent_loop.compaction.full_windows import filled, full
from unit.agent_loop.loop.in_memory_ports import Sink
from unit.agent_loop.loop.journals import Died
from unit.agent_loop.loop.loop_harness import LoopHarness
from unit.agent_loop.loop.model_replies import reply

VIEW = View(5000)
OVERFLOW = ModelError(ModelErrorKind.CONTEXT_OVERFLOW, "too long")


def summary_of(harness: LoopHarness) -> SummaryPart:
    (message,) = [m for m in harness.recall.messages if m.role is MessageRole.SUMMARY]
    (part,) = message.parts
    assert isinstance(part, SummaryPart)
    return part


async def test_summary_is_stored_once_recall_is_available_again() -> None:
    harness = await full()
    failures = iter([UnavailableError("recall is away")] * 3)

    def fail() -> None:
        if (error := next(failures, None)) is not None:
            raise error

    harness.recall.on_swap = fail
    sink = await harness.run(harness.request("Last " + "q" * 400), reply("Done."))
    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert len(harness.model.summarised) == 1
    assert len(harness.recall.swaps) == 1
    assert len(sink.of(WindowCompacted)) == 1
    stored = {message.id for message in harness.recall.messages}
    (spent,) = [reply.usage for reply in sink.of(ReplyReceived) if reply.message_id not in stored]
    assert spent.total_tokens > 0, "the gateway is informed of its cost"


async def test_a_full_window_is_compacted_before_the_model_is_called() -> None:
    harness = await full()
    before = [m.id for m in harness.recall.messages]
    sink = await harness.run(harness.request("Last " + "q" * 400), reply("Done."))

    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert sink.of(StepRestarted) == []
    (event,) = sink.of(WindowCompacted)
    assert event.tokens_after < event.tokens_before
    assert harness.recall.messages[1] == event.summary
    part = summary_of(harness)
    assert part.text == "- They talked."
    assert part.first_message_id == before[1]
    assert part.message_count == before.index(part.last_message_id)
    shown = harness.model.requests[-1].messages
    assert '"type": "system_alert"' in shown[1].text
    assert "- They talked." in shown[1].text
    assert shown[2].text.startswith(("Question", "more"))
    assert shown[-1].text.startswith("Last")
    hidden = part.message_count
    assert f"- {hidden} previous messages" in shown[0].text, "the counts are sent again"
    assert harness.recall.commits[-1].system_text == shown[0].text


async def test_a_second_summary_includes_the_first() -> None:
    harness = await filled(40)
    assert len(harness.recall.swaps) > 1
    transcript = harness.model.summarised[-1].messages[1].text
    assert transcript.startswith('{"role": "summary", "content": "- They talked."}')
    part = summary_of(harness)
    gone = [m for m in harness.recall.log.values() if m.role is not MessageRole.SUMMARY]
    kept = {m.id for m in harness.recall.messages}
    assert part.message_count == len([m for m in gone if m.id not in kept])
    assert (part.first_sequence, part.first_message_id) == (1, gone[0].id)


async def test_a_plain_turn_with_enough_space_makes_no_additional_call() -> None:
    harness = await filled(3)
    assert harness.recall.swaps == []
    assert harness.model.summarised == []


async def test_the_exact_count_of_the_provider_decides_where_it_is_known() -> None:
    dense = LoopHarness(window_tokens=4096)
    text = "q" * 4000
    # By the usual estimate this is a third of the window; the provider counts two bytes a token.
    exact = replace(reply("ok"), usage=Usage(prompt_tokens=2100, completion_tokens=5))
    exact = replace(exact, model="test/model")
    await dense.run(dense.request(text), exact)
    await dense.run(dense.request(text), exact)
    assert dense.recall.swaps != [], "the second turn would not have fitted"

    easy = LoopHarness(window_tokens=4096)
    exact = replace(exact, usage=Usage(prompt_tokens=500, completion_tokens=5))
    for _ in range(4):
        await easy.run(easy.request(text), exact)
    assert easy.recall.swaps == [], "16,000 bytes are 2,000 tokens here"


async def test_a_refusal_for_length_compacts_the_window_and_the_request_is_repeated() -> None:
    harness = await filled(6)
    assert harness.recall.swaps == []
    sink = await harness.run(harness.request("Last."), OVERFLOW, reply("Done."))

    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert len(sink.of(WindowCompacted)) == 1
    (restarted,) = sink.of(StepRestarted)
    assert "older messages are summarised" in restarted.reason
    assert len(harness.recall.swaps) == 1


async def test_after_a_second_refusal_the_request_is_halved_and_a_third_ends_the_run() -> None:
    harness = await filled(6)
    sink = await harness.run(harness.request("Last."), OVERFLOW, OVERFLOW, reply("Done."))
    assert sink.outcome.stop_reason is StopReason.END_TURN
    sizes = [text_chars(request) for request in harness.model.requests[-3:]]
    assert sizes[2] <= sizes[1] / 2 < sizes[1] < sizes[0]
    assert len(harness.recall.swaps) == 1

    sink = await harness.run(harness.request("Again."), OVERFLOW, OVERFLOW, OVERFLOW)
    assert sink.outcome.stop_reason is StopReason.LLM_API_ERROR
    assert sink.outcome.failure is not None
    assert sink.outcome.failure.reason is Reason.CONTEXT_WINDOW_EXCEEDED
    assert harness.recall.messages[-1].text == "Again."


def text_chars(request: Any) -> int:
    """Returns the characters of all messages of a model request."""
    return sum(len(message.text) for message in request.messages)


async def test_a_user_message_larger_than_the_window_is_truncated_and_answered() -> None:
    harness = LoopHarness(window_tokens=4096)
    sink = await harness.run(harness.request("q" * 100_000), reply("That is long."))
    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert "[truncated" in harness.model.requests[-1].messages[-1].text
    assert harness.recall.messages[1].text == "q" * 100_000, "stored messages are never cut"


async def test_huge_returns_of_many_calls_fit_a_tiny_window() -> None:
    harness = LoopHarness(window_tokens=4096)
    harness.tools.text = "r" * 30_000
    names = ["reads"] * 5
    sink = await harness.run(None, *[harness.calls(*names) for _ in range(4)], reply("Done."))
    assert sink.outcome.stop_reason is StopReason.END_TURN
    for request in harness.model.requests:
        assert_answered(request.messages)
        assert text_chars(request) < 4096 * 3.2
    assert len(harness.recall.swaps) > 0
    assert_answered(VIEW.chats(harness.recall.messages))


async def test_pinned_messages_survive_any_number_of_compactions() -> None:
    harness = await filled(2)
    for position in (1, 4):
        harness.recall.messages[position] = replace(harness.recall.messages[position], pinned=True)
    pinned = [m.id for m in harness.recall.messages if m.pinned]
    for number in range(40):
        await harness.run(harness.request(f"More {number} " + "q" * 400), reply("a" * 400))
    assert len(harness.recall.swaps) > 2
    assert [m.id for m in harness.recall.messages if m.pinned] == pinned
    roles = [m.role for m in harness.recall.messages[:3]]
    assert roles == [MessageRole.SYSTEM, MessageRole.SUMMARY, MessageRole.USER]
    assert harness.recall.messages[2].id == pinned[0], "pinned messages follow the summary"


async def test_memory_without_space_for_messages_causes_no_summary_at_each_turn() -> None:
    harness = await filled(6)
    assert harness.recall.swaps == []
    usable = TokenBudget(harness.ports.tokens, harness.models.settings, harness.agent.id).max_bytes
    harness.memory.text = "<memory_blocks>\n" + "m" * int(usable * 0.97) + "\n</memory_blocks>"
    for number in range(6):
        sink = await harness.run(harness.request(f"Then {number} " + "q" * 400), reply("a" * 400))
        assert sink.outcome.stop_reason is StopReason.END_TURN
        assert f"Then {number} " in harness.model.requests[-1].messages[-1].text
    assert harness.model.summarised == []
    assert harness.recall.swaps == []

    harness.memory.text = "<memory_blocks>\nsmall\n</memory_blocks>"
    for number in range(8):
        await harness.run(harness.request(f"Now {number} " + "q" * 400), reply("a" * 400))
    assert harness.recall.swaps != [], "once there is space, the window is compacted"


async def test_pinned_messages_that_fill_the_space_cause_no_summary_at_each_turn() -> None:
    harness = await filled(10)
    before = len(harness.recall.swaps)
    for position, message in enumerate(harness.recall.messages[1:], start=1):
        if message.role is not MessageRole.SUMMARY:
            harness.recall.messages[position] = replace(message, pinned=True)
    await harness.run(harness.request("p" * 9_000), reply("a"))
    harness.recall.messages[-2] = replace(harness.recall.messages[-2], pinned=True)
    for number in range(4):
        sink = await harness.run(harness.request(f"More {number} " + "q" * 400), reply("a" * 400))
        assert sink.outcome.stop_reason is StopReason.END_TURN
    assert len(harness.recall.swaps) <= before + 1


async def test_open_files_are_closed_before_messages_lose_their_space() -> None:
    harness = await filled(4)
    first_question = "Question 0 "
    usable = TokenBudget(harness.ports.tokens, harness.models.settings, harness.agent.id).max_bytes
    file = '<directories>\n<file status="open" name="a/b">\n{}\n</file>\n</directories>'
    harness.memory.text = file.format("f" * int(usable))
    harness.memory.without_files = "<directories>\nnothing is open\n</directories>"
    sink = await harness.run(harness.request("Go on."), reply("Yes."))

    assert sink.outcome.stop_reason is StopReason.END_TURN
    (most,) = harness.memory.fitted
    assert most < usable * 0.75
    shown = harness.model.requests[-1].messages
    assert "nothing is open" in shown[0].text
    assert first_question in shown[1].text, "no message had to be evicted"
    assert harness.recall.swaps == []
    assert harness.recall.commits[-1].system_text == shown[0].text

    harness.memory.text = file.format("f" * int(usable * 0.5))
    harness.memory.without_files = None
    await harness.run(harness.request("And on."), reply("Yes."))
    assert harness.memory.fitted == [most], "half of the prompt may be files"


async def test_a_refusal_for_length_closes_files_if_they_are_the_reason() -> None:
    harness = await filled(2)
    usable = TokenBudget(harness.ports.tokens, harness.models.settings, harness.agent.id).max_bytes
    file = '<directories>\n<file status="open" name="a/b">\n{}\n</file>\n</directories>'
    harness.memory.text = file.format("f" * int(usable * 0.6))
    harness.memory.without_files = "<directories>\nnothing is open\n</directories>"
    sink = await harness.run(harness.request("Go on."), OVERFLOW, reply("Yes."))
    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert len(harness.memory.fitted) == 1
    assert "nothing is open" in harness.model.requests[-1].messages[0].text


async def test_failed_summaries_do_not_fail_the_turn() -> None:
    harness = await full()
    harness.model.on_summary = lambda request: ModelError(ModelErrorKind.RATE_LIMITED, "429")
    sink = await harness.run(harness.request("Last " + "q" * 400), reply("Done."))
    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert summary_of(harness).text.startswith("No model could be asked")


async def test_the_configured_summarizer_makes_the_summary_and_its_tokens_are_counted() -> None:
    harness = await full()
    other = LoopHarness().model
    other.on_summary = lambda request: reply("- By another.")
    chosen = replace(harness.models.settings, handle="small/model", context_window=32_000)
    harness.models.others["small/model"] = BoundModel(other, chosen)
    compaction = CompactionSettings(model="small/model", mode="all")
    harness.ports.agents.agent = replace(harness.agent, compaction=compaction)  # type: ignore[attr-defined]
    sink = await harness.run(harness.request("Last " + "q" * 400), reply("Done."))

    assert summary_of(harness).text == "- By another."
    assert [m.role.value for m in harness.recall.messages] == [
        "system",
        "summary",
        "user",
        "assistant",
    ]
    assert sink.outcome.usage.prompt_tokens == 20
    assert sink.outcome.step_count == 1


@pytest.mark.parametrize(("position", "summaries"), [(1, 2), (-1, 1)])
async def test_a_message_pinned_during_the_compaction_is_kept(
    position: int, summaries: int
) -> None:
    harness = await full()
    chosen = harness.recall.messages[position].id

    def pin() -> None:
        if not any(m.pinned for m in harness.recall.messages):
            harness.recall.messages = [
                replace(m, pinned=m.id == chosen) for m in harness.recall.messages
            ]
            harness.recall.revision += 1

    harness.recall.on_swap = pin
    sink = await harness.run(harness.request("Last " + "q" * 400), reply("Done."))

    assert sink.outcome.stop_reason is StopReason.END_TURN
    # A message that was to be kept anyway changes nothing in the summary.
    assert len(harness.model.summarised) == summaries
    assert [m.id for m in harness.recall.messages if m.pinned] == [chosen]
    assert len(harness.recall.swaps) == 1


async def test_window_that_keeps_changing_does_not_fail_the_turn() -> None:
    harness = await full()
    tries = 0

    def move() -> None:
        nonlocal tries
        tries += 1
        harness.recall.revision += 1

    harness.recall.on_swap = move
    sink = await harness.run(harness.request("Last " + "q" * 400), reply("Done."))
    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert tries == MAX_SWAPS
    assert sink.of(WindowCompacted) == []


async def test_messages_archived_during_the_turn_stay_archived() -> None:
    harness = await full()
    archived = {message.id for message in harness.recall.messages[1:-2]}

    def archive() -> None:
        # A memory agent evicts older messages; the turn continues with the window that it read.
        shown = harness.recall.messages
        harness.recall.messages = [message for message in shown if message.id not in archived]
        harness.recall.revision += len(harness.recall.messages) < len(shown)

    harness.tools.on_call = archive
    harness.tools.text = "r" * 2_000
    sink = await harness.run(None, harness.calls("reads"), harness.calls("reads"), reply("Done."))
    assert not archived.intersection(message.id for message in harness.recall.messages)
    assert sink.outcome.stop_reason is StopReason.END_TURN


async def test_the_compaction_of_a_replaced_attempt_is_refused() -> None:
    harness = await full()

    def taken_over(request: Any) -> ModelReply:
        harness.recall._fence = (asked.run_id, 2)
        return reply("- Late.")

    harness.model.on_summary = taken_over
    asked = harness.request("Last " + "q" * 400)
    with pytest.raises(AbortedError) as raised:
        await Turn(harness.ports, asked, Sink()).run()
    assert raised.value.reason is Reason.STALE_ATTEMPT
    assert harness.recall.swaps == []


async def test_a_crash_at_any_point_leaves_the_old_or_the_new_window() -> None:
    points = 0
    while True:
        harness = await full()
        old = {m.id for m in harness.recall.messages}
        asked = harness.request("Last " + "q" * 400)
        harness.fate.calls, harness.fate.last = 0, points
        harness.model.replies = [reply("Done.")]
        try:
            await Turn(harness.ports, asked, Sink()).run()
        except Died:
            finished = False
        else:
            finished = True
        harness.fate.last = None
        _assert_nothing_lost(harness, old)
        if not finished:
            harness.model.replies = [reply("Done.")]
            sink = Sink()
            await Turn(harness.ports, replace(asked, attempt=2), sink).run()
            assert sink.outcome.stop_reason is StopReason.END_TURN
            _assert_nothing_lost(harness, old)
            assert len(harness.recall.swaps) == 1, (
                "a second dispatch does not repeat the compaction"
            )
            assert [m.text for m in harness.recall.messages[-2:]] == [asked_text(asked), "Done."]
        if finished:
            break
        points += 1
    assert points > 5


def asked_text(request: Any) -> str:
    return str(request.inputs[0].parts[0].text)


def _assert_nothing_lost(harness: LoopHarness, old: set[str]) -> None:
    """Asserts that each message is in the window or covered by the summary."""
    shown: list[Message] = harness.recall.messages
    assert len({m.id for m in shown}) == len(shown)
    now = {m.id for m in shown}
    if harness.recall.swaps:
        assert summary_of(harness).message_count == len(old - now)
    else:
        assert old <= now


async def test_tokens_of_a_summary_are_counted_even_if_it_cannot_be_stored() -> None:
    harness = await full()

    async def refuse(_: WindowSwap) -> Window:
        raise AbortedError("taken over", reason=Reason.STALE_ATTEMPT)

    harness.recall.swap_window = refuse  # type: ignore[assignment,method-assign]
    sink = Sink()
    with pytest.raises(AbortedError):
        await Turn(harness.ports, harness.request("Last " + "q" * 400), sink).run()

    (arrived,) = sink.of(ReplyReceived)
    assert arrived.message_id not in harness.recall.log
    assert arrived.usage.total_tokens > 0
