"""Time and tokens of a run, computed from its stored events."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from strata.api.agent_loop.v1.turn_service_pb2 import ModelRequestSent, ReplyReceived
from strata.api.common.v1 import message_pb2
from strata.api.common.v1 import run_event_pb2 as pb
from strata.api.common.v1.usage_pb2 import Usage as WireUsage
from strata.gateway.runs.domain.runs import Run, RunKind
from strata.gateway.runs.domain.states import RunState
from strata.gateway.runs.events.model_calls import MAX_CALLS, ModelCalls
from strata.gateway.runs.explanation.convert import explanation_to_pb, step_to_pb
from strata.gateway.runs.explanation.prices import ModelPrice
from strata.gateway.runs.explanation.spans import SpanBuilder
from strata.shared.stop_reasons import StopReason
from strata.shared.usage import Usage

ACCEPTED = datetime(2026, 1, 1, tzinfo=UTC)


def run_started_after(milliseconds: int) -> Run:
    return Run(
        project_id="project-1",
        id="run-1",
        agent_id="agent-1",
        conversation_id="conversation-1",
        kind=RunKind.FOREGROUND,
        state=RunState.COMPLETED,
        stop_reason=StopReason.END_TURN,
        failure=None,
        usage=Usage(),
        step_count=1,
        attempt=1,
        last_sequence=9,
        request_id="",
        create_time=ACCEPTED,
        start_time=ACCEPTED + timedelta(milliseconds=milliseconds),
        finish_time=None,
    )


RUN = run_started_after(5)


def at(elapsed_ms: int, *calls: pb.ModelCall, **fields: Any) -> pb.RunEvent:
    return pb.RunEvent(elapsed_ms=elapsed_ms, model_calls=calls, **fields)


def began(attempt: int = 1) -> pb.RunStarted:
    return pb.RunStarted(attempt=attempt)


def step(number: int, model: str = "test/one") -> pb.StepStarted:
    return pb.StepStarted(step=number, step_id=f"step-{number}", model=model)


def replied(start_ms: int, duration_ms: int, prompt: int = 10, **fields: Any) -> pb.ModelCall:
    usage = WireUsage(prompt_tokens=prompt, completion_tokens=2, total_tokens=prompt + 2)
    return pb.ModelCall(start_ms=start_ms, duration_ms=duration_ms, usage=usage, **fields)


def tool_end(call_id: str, name: str, duration_ms: int) -> pb.ToolFinished:
    returned = message_pb2.ToolReturnPart(
        tool_call_id=call_id, name=name, status=message_pb2.TOOL_STATUS_OK
    )
    return pb.ToolFinished(tool_return=returned, duration_ms=duration_ms)


STORED = pb.MessageStored(message=message_pb2.Message(role=message_pb2.ROLE_ASSISTANT))
END = pb.RunFinished(stop_reason=pb.STOP_REASON_END_TURN)


def explained(*events: pb.RunEvent, run: Run = RUN) -> SpanBuilder:
    explanation = SpanBuilder(run)
    for event in events:
        explanation.note(event)
    return explanation


def shares(explanation: SpanBuilder) -> list[tuple[str, str, int]]:
    return [(span.kind.value, span.name, span.share_ms) for span in explanation.spans]


def test_time_before_the_start_time_of_a_run_is_a_delay() -> None:
    run = replace(run_started_after(5_020), run_at=ACCEPTED + timedelta(milliseconds=5_000))
    explanation = explained(at(5_030, run_started=began()), at(5_040, run_finished=END), run=run)
    assert shares(explanation) == [
        ("delay", "start_time", 5_000),
        ("wait", "queue", 20),
        ("begin", "", 10),
        ("commit", "", 10),
    ]


def test_run_cancelled_before_its_start_time_was_never_in_the_queue() -> None:
    run = replace(
        run_started_after(0),
        start_time=None,
        run_at=ACCEPTED + timedelta(seconds=5),
        finish_time=ACCEPTED + timedelta(seconds=2),
    )
    explanation = explained(at(2_000, run_finished=END), run=run)
    assert shares(explanation) == [("delay", "start_time", 2_000)]
    assert explained(run=replace(run, finish_time=None)).total_ms == 0


def test_each_part_of_a_turn_with_a_tool_has_its_time() -> None:
    explanation = explained(
        at(20, run_started=began()),
        at(25, step_started=step(1)),
        at(
            131,
            replied(26, 100, first_token_ms=40),
            tool_started=pb.ToolStarted(tool_call_id="a", name="search"),
        ),
        at(161, tool_finished=tool_end("a", "search", 29)),
        at(170, message_stored=STORED),
        at(170, message_stored=STORED),
        at(172, step_started=step(2)),
        at(290, replied(172, 110), message_stored=STORED),
        at(291, run_finished=END),
    )
    assert shares(explanation) == [
        ("wait", "queue", 5),
        ("begin", "", 15),
        ("compile", "", 5),
        ("model", "test/one", 101),
        ("commit", "", 5),
        ("tool", "search", 30),
        ("commit", "", 9),
        ("compile", "", 2),
        ("model", "test/one", 110),
        ("commit", "", 8),
        ("commit", "", 1),
    ]
    assert explanation.total_ms == 291
    [tool] = [span for span in explanation.spans if span.kind == "tool"]
    assert (tool.duration_ms, tool.status) == (29, message_pb2.TOOL_STATUS_OK)
    assert explanation.spans[3].first_token_ms == 40
    assert [(s.number, s.step_id) for s in explanation.steps] == [(1, "step-1"), (2, "step-2")]
    # The request of a step is a part of that step.
    assert explanation.steps[1].spans[0].kind.value == "compile"


def test_the_pause_before_a_repeated_model_call_is_a_wait_with_its_reason() -> None:
    explanation = explained(
        at(10, run_started=began()),
        at(10, step_started=step(1)),
        at(
            60,
            replied(10, 50),
            step_restarted=pb.StepRestarted(step=1, reason="The reply broke off."),
        ),
        at(200, replied(160, 40), message_stored=STORED),
        at(200, run_finished=END),
    )
    model = ("model", "test/one")
    assert shares(explanation)[2:] == [(*model, 50), ("wait", "retry", 100), (*model, 40)]
    assert explanation.spans[2].note == "The reply broke off."


def test_tokens_and_time_are_those_of_the_model_that_was_called() -> None:
    another = pb.StepRestarted(step=1, reason="test/one could not answer.", model="test/two")
    explanation = explained(
        at(10, run_started=began()),
        at(10, step_started=step(1)),
        at(40, replied(10, 30, prompt=0, model="test/one"), step_restarted=another),
        at(
            140,
            replied(40, 60, model="test/two"),
            message_stored=STORED,
        ),
        at(140, step_started=step(2, "test/two")),
        at(200, replied(140, 60, prompt=30, model="test/two"), message_stored=STORED),
        at(200, run_finished=END),
    )
    calls = [span for span in explanation.spans if span.kind == "model"]
    assert [(span.name, span.model, span.share_ms) for span in calls] == [
        ("test/one", "test/one", 30),
        ("test/two", "test/two", 60),
        ("test/two", "test/two", 60),
    ]
    assert calls[0].note == "test/one could not answer."
    price = ModelPrice(input=1, output=1)
    shown = explanation_to_pb(RUN, explanation, {"test/two": price})
    assert [(used.model, used.calls, used.usage.total_tokens) for used in shown.models] == [
        ("test/one", 1, 2),
        ("test/two", 2, 44),
    ]
    assert not shown.models[0].HasField("cost_micros")
    assert shown.models[1].cost_micros == shown.cost_micros
    assert step_to_pb(RUN, explanation.steps[0], {}).model == "test/two"


def test_a_compaction_has_its_time_and_the_tokens_of_its_summary() -> None:
    summary = pb.ModelCall(usage=WireUsage(prompt_tokens=70, total_tokens=70))
    compacted = pb.WindowCompacted(tokens_before=900, tokens_after=200)
    explanation = explained(
        at(10, run_started=began()),
        at(10, step_started=step(1)),
        at(90, replied(10, 20, prompt=0), summary, window_compacted=compacted),
        at(140, replied(95, 45), message_stored=STORED),
        at(140, run_finished=END),
    )
    assert shares(explanation)[2:] == [
        ("model", "test/one", 20),
        ("compaction", "test/one", 60),
        ("compile", "", 5),
        ("model", "test/one", 45),
    ]
    compaction = explanation.spans[3]
    assert compaction.usage is not None
    assert compaction.usage.prompt_tokens == 70
    assert compaction.note == "about 900 to 200 tokens"


def test_a_take_over_is_a_wait_and_each_attempt_has_its_spans() -> None:
    explanation = explained(
        at(10, run_started=began()),
        at(10, step_started=step(1)),
        at(10, tool_started=pb.ToolStarted(tool_call_id="a", name="search")),
        at(9010, run_started=began(2)),
        at(9011, step_started=step(1)),
        at(9100, replied(9011, 89), message_stored=STORED),
        at(9100, run_finished=END),
    )
    assert ("wait", "take-over", 9000) in shares(explanation)
    assert [span.attempt for span in explanation.spans] == [1, 1, 1, 1, 2, 2, 2]
    [tool] = [span for span in explanation.spans if span.kind == "tool"]
    assert tool.note == "its end is not known"


def test_tools_that_run_at_once_share_the_time_and_have_their_own_durations() -> None:
    explanation = explained(
        at(10, run_started=began()),
        at(10, step_started=step(1)),
        at(20, replied(10, 10), tool_started=pb.ToolStarted(tool_call_id="a", name="slow")),
        at(20, tool_started=pb.ToolStarted(tool_call_id="b", name="fast")),
        at(30, tool_finished=tool_end("b", "fast", 10)),
        at(50, tool_finished=tool_end("a", "slow", 30)),
        at(50, message_stored=STORED),
        at(50, run_finished=END),
    )
    tools = [span for span in explanation.spans if span.kind == "tool"]
    assert [(t.name, t.duration_ms, t.share_ms) for t in tools] == [
        ("slow", 30, 30),
        ("fast", 10, 0),
    ]


def test_an_event_without_a_run_time_counts_by_its_create_time() -> None:
    event = pb.RunEvent(run_finished=END)
    event.create_time.FromDatetime(ACCEPTED + timedelta(milliseconds=80))
    assert explained(event).total_ms == 80


moments = st.integers(min_value=0, max_value=10_000)
calls = st.lists(
    st.builds(replied, moments, moments)
    | st.just(pb.ModelCall(usage=WireUsage(completion_tokens=3, total_tokens=3))),
    max_size=3,
)
happenings = st.sampled_from(
    [
        {"run_started": began()},
        {"run_started": began(2)},
        {"step_started": step(1)},
        {"step_started": step(2)},
        {"step_restarted": pb.StepRestarted(step=1, reason="again")},
        {"tool_started": pb.ToolStarted(tool_call_id="a", name="a")},
        {"tool_started": pb.ToolStarted(tool_call_id="b", name="b")},
        {"tool_finished": tool_end("a", "a", 7)},
        {"tool_finished": tool_end("b", "b", 7)},
        {"tool_finished": tool_end("c", "c", 7)},
        {"message_stored": STORED},
        {"approval_requested": pb.ApprovalRequested()},
        {"window_compacted": pb.WindowCompacted(tokens_before=2, tokens_after=1)},
        {"run_finished": END},
    ]
)


@given(moments, st.lists(st.tuples(moments, calls, happenings), max_size=25))
def test_shares_add_up_to_the_total_for_any_events(
    queued: int, log: list[tuple[int, list[pb.ModelCall], dict[str, Any]]]
) -> None:
    explanation = explained(
        *(at(moment, *ended, **what) for moment, ended, what in log),
        run=run_started_after(queued),
    )
    spans = explanation.spans
    assert sum(span.share_ms for span in spans) == explanation.total_ms
    assert sum(part.share_ms for part in explanation.parts) == explanation.total_ms
    assert all(span.share_ms >= 0 for span in spans)
    starts = [span.start_ms for span in spans]
    assert starts == sorted(starts)
    in_steps = sum(span.share_ms for s in explanation.steps for span in s.spans)
    assert in_steps <= explanation.total_ms
    wire = explanation_to_pb(RUN, explanation, {"test/one": ModelPrice(input=1, output=1)})
    tokens = sum(s.usage.prompt_tokens for s in wire.spans)
    usages = [call.usage for _, ended, _ in log for call in ended]
    assert tokens == sum(usage.prompt_tokens for usage in usages)


def test_the_cost_includes_the_models_with_a_price() -> None:
    explanation = explained(
        at(10, run_started=began()),
        at(10, step_started=step(1)),
        at(20, replied(10, 10, prompt=1000), message_stored=STORED),
        at(20, step_started=step(2, "test/other")),
        at(30, replied(20, 10, prompt=1000), message_stored=STORED),
        at(30, run_finished=END),
    )
    wire = explanation_to_pb(RUN, explanation, {"test/one": ModelPrice(input=2, output=8)})
    assert wire.cost_micros == 1000 * 2 + 2 * 8
    one, other = (
        step_to_pb(RUN, s, {"test/one": ModelPrice(input=2, output=8)}) for s in explanation.steps
    )
    assert one.cost_micros == wire.cost_micros
    assert not other.HasField("cost_micros")
    assert not explanation_to_pb(RUN, explanation, {}).HasField("cost_micros")


def test_cached_tokens_have_their_own_price() -> None:
    usage = Usage(1000, 10, cached_input_tokens=600, cache_write_tokens=100)
    assert ModelPrice(input=2, output=8).micros(usage) == 2000 + 80
    price = ModelPrice(input=2, output=8, cached_input=0.5, cache_write=3)
    assert price.micros(usage) == 300 * 2 + 600 * 0.5 + 100 * 3 + 80


@pytest.mark.parametrize(
    "wrong", [{"input": -1, "output": 1}, {"input": 1}, {"input": float("nan"), "output": 1}]
)
def test_an_invalid_price_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        ModelPrice.model_validate(wrong)


def test_model_calls_of_one_event_are_bounded_and_lose_no_tokens() -> None:
    ended = ModelCalls()
    for number in range(MAX_CALLS + 8):
        name = f"message-{number}"
        sent = ModelRequestSent(message_id=name, model="test/one")
        ended.note_request(sent, number * 10)
        reply = ReplyReceived(message_id=name, usage=WireUsage(completion_tokens=1, total_tokens=1))
        ended.note_reply(reply, number * 10 + 7)
    taken = ended.take()
    assert len(taken) == MAX_CALLS
    assert sum(call.usage.total_tokens for call in taken) == MAX_CALLS + 8
    assert taken[-1].start_ms + taken[-1].duration_ms == (MAX_CALLS + 7) * 10 + 7
    assert ended.take() == []
