"""Turns of the loop over in-memory services."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from security_examples import durability_examples
from strata.agent_loop.domain.model.chat import (
    FinishReason,
    ModelReply,
    ReasoningPart,
    ToolCall,
)
from strata.agent_loop.domain.model.errors import ModelError, ModelErrorKind
from strata.agent_loop.domain.ports import ArchivalStats, CommittedStep, StepCommit
from strata.agent_loop.domain.run.events import (
    ModelRequestSent,
    ReplyReceived,
    StepRestarted,
    ToolFinished,
)
from strata.agent_loop.domain.run.runs import RunRequest
from strata.agent_loop.domain.tools import ToolSet
from strata.agent_loop.loop.turn import Turn
from strata.protocol.errors import (
    AbortedError,
    FailedPreconditionError,
    InternalError,
    Reason,
    StrataError,
    UnavailableError,
)
from strata.shared.messages import MessageRole, ToolStatus
from strata.shared.stop_reasons import StopReason
from strata.shared.usage import Usage
from unit.agent_loop.loop.in_memory_ports import Sink
from unit.agent_loop.loop.journals import Died
from unit.agent_loop.loop.loop_harness import LoopHarness, assert_pairs_are_whole, content, roles
from unit.agent_loop.loop.model_replies import USAGE, lost, reply


async def test_usage_is_summed_and_steps_are_counted() -> None:
    harness = LoopHarness()
    sink = await harness.run(None, harness.calls("reads"), harness.calls("keyed"), reply("Done."))

    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert sink.outcome.step_count == 3
    assert sink.outcome.usage == USAGE + USAGE + USAGE
    assert roles(harness) == ["system", "user"] + ["assistant", "tool"] * 2 + ["assistant"]


async def test_a_plain_turn_writes_no_journal_and_reads_memory_and_counts_once() -> None:
    harness = LoopHarness()
    await harness.run(None, reply("Hello."))

    assert harness.journal.opened == 0
    assert harness.archival.asked == 1
    assert harness.memory.compiled == 1
    assert harness.recall.commits[0].system_text is None
    assert harness.recall.commits[0].metadata_stale is None


async def test_refused_calls_write_no_journal() -> None:
    harness = LoopHarness()
    sink = await harness.run(None, harness.calls("nonsense", "rubbish"), reply("Sorry."))

    assert harness.journal.opened == 0
    assert [e.result.tool_return.status for e in sink.of(ToolFinished)] == [ToolStatus.FAILED] * 2
    assert "Cannot call rubbish, valid tools include: ['keyed'" in content(harness, 3, 1)


async def test_good_calls_run_beside_refused_ones_and_returns_keep_the_order() -> None:
    harness = LoopHarness()
    await harness.run(None, harness.calls("acts", "nonsense", "reads"), reply("Done."))

    assert_pairs_are_whole(harness.recall.messages)
    statuses = [part.status for part in harness.recall.messages[3].tool_returns]
    assert statuses == [ToolStatus.OK, ToolStatus.FAILED, ToolStatus.OK]


async def test_memory_edit_rebuilds_the_prompt_for_the_next_step_and_stores_it_with_it() -> None:
    harness = LoopHarness()

    def edit() -> None:
        harness.memory.text = "<memory_blocks>\nnew\n</memory_blocks>"

    harness.tools.on_edit = edit
    harness.archival.answer = ArchivalStats(2, ("a", "b"))
    await harness.run(None, harness.calls("edits"), reply("Done."))

    first, second = (request.messages[0].text for request in harness.model.requests)
    assert "empty" in first
    assert "new" in second
    assert "Available archival memory tags: a, b" in first
    assert "Available archival memory tags: a, b" in second
    assert [commit.system_text for commit in harness.recall.commits] == [first, second]
    assert harness.archival.asked == 1
    assert harness.recall.commits[1].metadata_stale is False


async def test_a_rebuilt_prompt_that_no_step_stored_is_rebuilt_in_the_next_turn() -> None:
    harness = LoopHarness()
    harness.memory.text = "<memory_blocks>\nnew\n</memory_blocks>"
    await harness.run(None, ModelError(ModelErrorKind.BAD_REQUEST, "no"))
    assert "empty" in harness.recall.messages[0].text

    await harness.run(None, reply("Hello."))
    assert "new" in harness.recall.messages[0].text


async def test_unavailable_counts_stay_and_are_requested_again() -> None:
    harness = LoopHarness()
    harness.recall.stale = True
    harness.archival.answer = ArchivalStats(7, ("x",))
    await harness.run(None, reply("Hello."))
    assert harness.recall.stale is False

    harness.recall.stale = True
    harness.archival.answer = UnavailableError("down")
    await harness.run(None, reply("Hello."))
    assert "- 7 total memories" in harness.recall.messages[0].text
    assert harness.recall.stale is True


async def test_a_new_date_rebuilds_the_prompt_once_a_day() -> None:
    harness = LoopHarness()
    await harness.run(None, reply("Hello."))
    assert harness.recall.commits[-1].system_text is None
    harness.clock.advance(24 * 3600)
    await harness.run(None, reply("Hello."))
    system_text = harness.recall.commits[-1].system_text
    assert system_text is not None
    assert f"date is: {harness.clock.now():%B %d, %Y}\n" in system_text
    await harness.run(None, reply("Hello."))
    assert harness.recall.commits[-1].system_text is None


async def test_the_window_does_not_grow_with_the_conversation() -> None:
    harness = LoopHarness(window_tokens=4096)
    sizes = []
    for number in range(60):
        asked = harness.request(f"Question {number} " + "q" * 400)
        sink = await harness.run(asked, reply("a" * 400))
        assert sink.outcome.stop_reason is StopReason.END_TURN
        sizes.append(len(harness.recall.messages))
    assert max(sizes[30:]) <= max(sizes[:30])
    assert harness.recall.messages[-2].text.startswith("Question 59")
    assert harness.recall.hidden + len(harness.recall.messages) == 121 + len(harness.recall.swaps)
    out_of_view = harness.recall.hidden - (len(harness.recall.swaps) - 1)
    assert f"- {out_of_view} previous" in harness.recall.messages[0].text
    assert 0 < len(harness.recall.swaps) < 20
    assert len(harness.model.summarised) == len(harness.recall.swaps)


async def test_hidden_messages_are_counted_and_never_negative() -> None:
    harness = LoopHarness()
    harness.recall.stale = True
    harness.recall.hidden = 12
    await harness.run(None, reply("Hello."))
    assert "- 12 previous messages between you and the user" in harness.recall.messages[0].text

    harness.recall.stale = True
    harness.recall.hidden = -5
    await harness.run(None, reply("Hello."))
    assert "- 0 previous messages between you and the user" in harness.recall.messages[0].text


async def test_repeated_call_ids_are_made_unique() -> None:
    harness = LoopHarness()
    same = (ToolCall("call_0", "reads", ""), ToolCall("call_0", "acts", ""))
    await harness.run(None, reply("", *same), reply("", *same), reply("Done."))

    ids = [call.id for message in harness.recall.messages for call in message.tool_calls]
    assert len(set(ids)) == 4
    assert list(harness.tools.acted.values()) == [1, 1]
    assert_pairs_are_whole(harness.recall.messages)


async def test_characters_that_cannot_be_stored_are_removed() -> None:
    harness = LoopHarness()
    bad = ToolCall("c\0", "reads", '{"a": "\ud800"}')
    await harness.run(None, reply("a\0b\udc00", bad), reply("Done."))

    stored = harness.recall.messages[2]
    assert stored.text == "ab?"
    assert stored.tool_calls[0].arguments == '{"a": "?"}'


@pytest.mark.parametrize("proof", [{"signature": "a\0b"}, {"redacted": "a\ud800"}])
async def test_reasoning_whose_proof_cannot_be_stored_loses_it(proof: dict[str, str]) -> None:
    harness = LoopHarness()
    whole, broken = ReasoningPart("one", "c2ln"), ReasoningPart("two", **proof)
    answer = reply("Done.")
    await harness.run(None, replace(answer, content=(whole, broken, *answer.content)))

    stored = harness.recall.messages[2]
    assert stored.parts[:2] == (whole, ReasoningPart("two"))


async def test_cut_reply_runs_its_whole_calls_and_stops() -> None:
    harness = LoopHarness()
    calls = (ToolCall("a", "acts", "{}"), ToolCall("b", "acts", '{"x": '))
    sink = await harness.run(None, reply("", *calls, finish=FinishReason.LENGTH))

    assert sink.outcome.stop_reason is StopReason.MAX_TOKENS_EXCEEDED
    assert len(harness.tools.acted) == 1
    assert "cut at the limit of output tokens" in content(harness, 3, 1)


async def test_reply_cut_before_any_text_fails_with_advice() -> None:
    harness = LoopHarness()
    sink = await harness.run(None, reply("", finish=FinishReason.LENGTH))

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
async def test_a_model_error_ends_the_run_with_its_reason(
    kind: str, stop: str, reason: str, retryable: bool
) -> None:
    harness = LoopHarness()
    error = ModelError(ModelErrorKind(kind), "What the provider said.")
    if kind == "not_configured":
        harness.models.error = error
        sink = await harness.run()
    else:
        sink = await harness.run(None, *[error] * 3)

    assert sink.outcome.stop_reason.value == stop
    assert sink.outcome.failure is not None
    assert sink.outcome.failure.reason.value == reason
    assert sink.outcome.failure.retryable is retryable
    assert roles(harness) == ["system", "user"]


async def test_broken_stream_is_restarted_at_most_twice() -> None:
    harness = LoopHarness()
    broken = ModelError(ModelErrorKind.CUT_OFF, "cut")
    sink = await harness.run(None, broken, broken, reply("Whole."))
    assert len(sink.of(StepRestarted)) == 2
    assert sink.outcome.stop_reason is StopReason.END_TURN

    sink = await harness.run(None, broken, broken, broken)
    assert len(sink.of(StepRestarted)) == 2
    assert sink.outcome.stop_reason is StopReason.LLM_API_ERROR


async def test_tokens_of_an_interrupted_reply_are_estimated() -> None:
    harness = LoopHarness()
    broken = ModelError(ModelErrorKind.CUT_OFF, "cut")
    sink = await harness.run(None, broken, reply("Whole."))

    sent, again = sink.of(ModelRequestSent)
    lost_reply, whole_reply = sink.of(ReplyReceived)
    assert sent.message_id == again.message_id == lost_reply.message_id == whole_reply.message_id
    # "half" was received before the connection broke.
    completion = math.ceil(len("half") / sent.bytes_per_token)
    assert lost_reply.usage == Usage(sent.prompt_tokens, completion, estimated=True)
    assert sent.prompt_tokens > 0
    assert whole_reply.usage == USAGE
    assert sink.outcome.usage == lost_reply.usage + USAGE


async def test_request_that_the_provider_refused_costs_nothing() -> None:
    harness = LoopHarness()
    harness.model.says_before_failure = ""
    sink = await harness.run(None, ModelError(ModelErrorKind.BAD_REQUEST, "No."))
    assert len(sink.of(ModelRequestSent)) == 1
    assert [event.usage for event in sink.of(ReplyReceived)] == [Usage()]
    assert sink.outcome.usage == Usage()


async def test_system_prompt_larger_than_the_window_never_reaches_the_model() -> None:
    harness = LoopHarness(window_tokens=4096)
    harness.memory.text = "<memory_blocks>\n" + "x" * 40_000 + "\n</memory_blocks>"
    sink = await harness.run()

    stop = StopReason.CONTEXT_WINDOW_OVERFLOW_IN_SYSTEM_PROMPT
    assert sink.outcome.stop_reason is stop
    assert harness.model.requests == []


async def test_definite_refusal_of_a_service_ends_the_run_with_the_message_stored() -> None:
    harness = LoopHarness()

    async def refuse(
        names: Sequence[str], *, skip_missing: bool = False, run_id: str = "", max_bytes: int = 0
    ) -> None:
        raise FailedPreconditionError("No.", reason=Reason.SCHEMA_OUTDATED)

    harness.tools.resolve = refuse  # type: ignore[assignment,method-assign]
    sink = await harness.run()

    assert sink.outcome.stop_reason is StopReason.ERROR
    assert sink.outcome.failure is not None
    assert sink.outcome.failure.reason is Reason.SCHEMA_OUTDATED
    assert roles(harness) == ["system", "user"]


async def test_an_unreachable_service_leaves_the_run_open() -> None:
    harness = LoopHarness()

    async def away(*_: object, **__: object) -> ToolSet:
        raise UnavailableError("down")

    harness.tools.resolve = away  # type: ignore[method-assign]
    sink = Sink()
    with pytest.raises(UnavailableError):
        await Turn(harness.ports, harness.request(), sink).run()
    assert "RunFinished" not in sink.kinds
    assert roles(harness) == ["system", "user"]


@pytest.mark.parametrize("broke", [True, False], ids=["in mid-call", "before the call"])
async def test_keyed_calls_are_repeated_until_the_executor_is_available(broke: bool) -> None:
    harness = LoopHarness()
    error: StrataError = UnavailableError("ipv4:10.0.0.1:7605: refused")
    harness.tools.error = lost(error) if broke else error
    turn = asyncio.create_task(harness.run(None, harness.calls("keyed"), reply("Done.")))
    while len(harness.tools.batches) < 3:
        await asyncio.sleep(0.01)
    harness.tools.error = None
    sink = await turn
    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert [part.status for part in harness.recall.messages[3].tool_returns] == [ToolStatus.OK]
    assert sink.kinds.count("ToolStarted") == 1
    assert len(harness.tools.keys) == 1


async def test_call_that_may_have_acted_is_unknown_and_never_failed() -> None:
    harness = LoopHarness()
    harness.tools.error = lost(InternalError("Received RST_STREAM"))
    sink = await harness.run(None, harness.calls("acts", "keyed"), reply("Pity."))
    assert [part.status for part in harness.recall.messages[3].tool_returns] == [
        ToolStatus.UNKNOWN,
        ToolStatus.UNKNOWN,
    ]
    assert sink.outcome.stop_reason is StopReason.END_TURN
    # The keyed call was sent again; the other one must not be.
    assert [[call.name for call in batch.calls] for batch in harness.tools.batches] == [
        ["acts", "keyed"],
        ["keyed"],
        ["keyed"],
    ]


async def test_reply_is_requested_once_and_committed_once_recall_is_available_again() -> None:
    harness = LoopHarness()
    commit, away = harness.recall.commit_step, 3

    async def commit_later(step: StepCommit) -> CommittedStep:
        nonlocal away
        if away:
            away -= 1
            raise UnavailableError("down")
        return await commit(step)

    harness.recall.commit_step = commit_later  # type: ignore[assignment,method-assign]
    sink = await harness.run(None, reply("Hello."))
    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert sink.outcome.usage == USAGE
    assert len(harness.model.requests) == 1
    assert roles(harness) == ["system", "user", "assistant"]


@pytest.mark.parametrize("method", ["open_step", "record"])
async def test_an_unavailable_journal_repeats_neither_reply_nor_call(
    method: str,
) -> None:
    harness = LoopHarness()
    write, away = getattr(harness.journal, method), 3

    async def write_later(*args: Any) -> None:
        nonlocal away
        if away:
            away -= 1
            raise UnavailableError("down")
        await write(*args)

    setattr(harness.journal, method, write_later)
    sink = await harness.run(None, harness.calls("acts", "reads"), reply("Done."))
    assert away == 0
    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert len(harness.model.requests) == 2
    assert len(harness.tools.batches) == 1
    returns = harness.recall.messages[3].tool_returns
    assert [part.status for part in returns] == [ToolStatus.OK, ToolStatus.OK]


async def test_refusal_of_the_executor_is_reported_to_the_model() -> None:
    harness = LoopHarness()
    harness.tools.error = FailedPreconditionError("Not now.", reason=Reason.IN_USE)
    sink = await harness.run(None, harness.calls("acts", "reads"), reply("Pity."))

    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert content(harness, 3) == "The tool could not be run: Not now."
    assert_pairs_are_whole(harness.recall.messages)


async def die(harness: LoopHarness, request: RunRequest) -> None:
    with pytest.raises(Died):
        await harness.run(request)


async def test_a_journalled_reply_is_not_requested_again_and_unknown_outcomes_are_reported() -> (
    None
):
    harness = LoopHarness()
    harness.model.replies = [harness.calls("acts", "keyed", "reads", "acts"), reply("Done.")]
    request = harness.request()
    # Dies in the middle of the third call; the first was journalled at once.
    harness.fate.last = 13
    await die(harness, request)
    asked = len(harness.model.requests)
    assert asked == 1
    assert sum(harness.tools.acted.values()) == 1

    harness.fate.last = None
    sink = await harness.run(replace(request, attempt=2))

    assert len(harness.model.requests) == asked + 1
    statuses = [part.status for part in harness.recall.messages[3].tool_returns]
    assert statuses == [ToolStatus.OK, ToolStatus.OK, ToolStatus.OK, ToolStatus.UNKNOWN]
    assert max(harness.tools.acted.values()) == 1
    assert sink.outcome.usage == USAGE + USAGE


async def test_a_replaced_attempt_is_stopped_by_the_fence() -> None:
    harness = LoopHarness()
    harness.model.hold = asyncio.Event()
    harness.model.replies = [harness.calls("acts"), reply("From the second.")]
    request = harness.request()
    first = asyncio.create_task(Turn(harness.ports, request, Sink()).run())
    while not harness.model.requests:
        await asyncio.sleep(0)
    held, harness.model.hold = harness.model.hold, None
    sink = await harness.run(replace(request, attempt=2))
    held.set()
    with pytest.raises(AbortedError):
        await first

    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert harness.tools.acted == {}
    assert roles(harness) == ["system", "user", "assistant"]


def scripts() -> st.SearchStrategy[list[list[str]]]:
    names = st.sampled_from(["keyed", "reads", "acts", "edits", "files", "nonsense"])
    return st.lists(st.lists(names, min_size=1, max_size=3), max_size=4)


@durability_examples
@given(script=scripts(), deaths=st.lists(st.integers(0, 25), max_size=4))
async def test_no_crash_loses_or_duplicates_messages_or_separates_pairs(
    script: list[list[str]], deaths: list[int]
) -> None:
    harness = LoopHarness()
    request = harness.request("Say this once.")
    asked_before: dict[int, ModelReply] = {}

    def queue_replies() -> None:
        done = len(harness.recall.commits)
        rest = [
            asked_before.setdefault(done + index, harness.calls(*names))
            for index, names in enumerate(script[done:])
        ]
        harness.model.replies = [*rest, reply("Done.")]

    sink = None
    for attempt in range(1, len(deaths) + 2):
        resumed = harness.journal.rows.get(request.run_id, (0, None))[1]
        queue_replies()
        if resumed is not None and resumed.step == len(harness.recall.commits) + 1:
            # A journalled reply is not requested again.
            harness.model.replies = harness.model.replies[1:]
        last = deaths[attempt - 1] if attempt <= len(deaths) else None
        harness.fate.last = None if last is None else harness.fate.calls + last
        try:
            sink = await harness.run(replace(request, attempt=attempt))
            break
        except Died:
            continue

    assert sink is not None
    assert sink.outcome.stop_reason is StopReason.END_TURN
    users = [m for m in harness.recall.messages if m.role is MessageRole.USER and not m.hidden]
    assert [m.text for m in users] == ["Say this once."]
    assert_pairs_are_whole(harness.recall.messages)
    visible = [m.role.value for m in harness.recall.messages if not m.hidden]
    assert visible[2:] == ["assistant", "tool"] * len(script) + ["assistant"]
    # A tool with side effects acts once, or its outcome is unknown and the model sees that.
    assert all(times == 1 for times in harness.tools.acted.values())
    assert sink.outcome.step_count == len(script) + 1
    assert isinstance(sink.outcome.usage, Usage)
