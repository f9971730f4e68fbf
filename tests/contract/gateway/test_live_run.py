"""Events of a running run: stored, shown and withdrawn; on the real PostgreSQL."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from contract.gateway.stores import Gateways
from gateway_records import new_run
from strata.api.agent_loop.v1.turn_service_pb2 import ModelRequestSent, ReplyReceived
from strata.api.common.v1.message_pb2 import ROLE_ASSISTANT, Message, Part, TextPart
from strata.api.common.v1.run_event_pb2 import (
    STOP_REASON_CANCELLED,
    STOP_REASON_END_TURN,
    MessageStored,
    ModelCall,
    RunEvent,
    RunFinished,
    RunStarted,
    StepRestarted,
    StepStarted,
    TextDelta,
    ToolCallDelta,
    ToolFinished,
)
from strata.api.common.v1.usage_pb2 import Usage
from strata.gateway.runs.domain.runs import Dispatch, Fence, StoredEvent
from strata.gateway.runs.events import live_run as live_run_module
from strata.gateway.runs.events.live_run import LiveRun
from strata.gateway.runs.store.base import LeaseTerms
from strata.gateway.runs.store.runs import PostgresRunStore
from strata.protocol.errors import UnavailableError
from strata.shared.clock import ManualClock, SystemClock


class SlowRedispatch(PostgresRunStore):
    """Store whose `redispatch` commits and returns later."""

    def __init__(self, gateways: Gateways) -> None:
        super().__init__(gateways.database, gateways.worker, LeaseTerms("gateway-1"))
        self.committed, self.may_return = asyncio.Event(), asyncio.Event()

    async def redispatch(self, fence: Fence) -> Fence:
        following = await super().redispatch(fence)
        self.committed.set()
        await self.may_return.wait()
        return following


async def test_flush_during_a_redispatch_uses_the_new_attempt(
    gateways: Gateways, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SlowRedispatch(gateways)
    accepted = await store.accept(new_run())
    assert accepted.dispatch is not None
    run = LiveRun(accepted.dispatch, "gateway-1", store, SystemClock())
    await run.append(RunEvent(run_started=RunStarted(attempt=1)))
    again = asyncio.create_task(run.redispatch())
    await store.committed.wait()
    # The timer flushes, at the worst moment.
    flushing = asyncio.create_task(run.flush())
    await asyncio.sleep(0.1)
    store.may_return.set()
    await asyncio.gather(again, flushing)
    assert run.fence.attempt == 2
    monkeypatch.setattr(live_run_module, "_DELAY_S", 600.0)
    await run.append(RunEvent(step_started=StepStarted(step_id="step-1", step=1)))
    await run.flush()
    page = await store.events(run.project_id, run.fence.run_id, 0)
    kinds = [RunEvent.FromString(event.payload).WhichOneof("event") for event in page.events]
    assert kinds == ["run_started", "step_started"]
    run.close()


class FailingStore(PostgresRunStore):
    """A store that fails as scripted, before or after its commit; it can be delayed."""

    def __init__(self, gateways: Gateways, plan: Sequence[str] = ()) -> None:
        super().__init__(gateways.database, gateways.worker, LeaseTerms("gateway-1"))
        self.open = asyncio.Event()
        self.open.set()
        self._plan = iter(plan)

    async def append(
        self, fence: Fence, events: Sequence[StoredEvent], *, progressed: bool = False
    ) -> None:
        await self.open.wait()
        how = next(self._plan, "")
        if how == "before":
            raise UnavailableError("the database is away")
        await super().append(fence, events, progressed=progressed)
        if how == "behind":
            raise UnavailableError("the answer to the commit was lost")


async def live_run(store: PostgresRunStore) -> LiveRun:
    accepted = await store.accept(new_run())
    assert accepted.dispatch is not None
    # If no reply was stored, the end of the run uses the sent text.
    return LiveRun(replace(accepted.dispatch, payload=b""), "gateway-1", store, SystemClock())


def step_event(step: int, message_id: str = "") -> RunEvent:
    return RunEvent(
        step_started=StepStarted(step_id=f"step-{step}", step=step, message_id=message_id)
    )


def delta(text: str, message_id: str = "message-1") -> RunEvent:
    return RunEvent(text_delta=TextDelta(message_id=message_id, text=text))


def completion(tokens: int) -> Usage:
    return Usage(completion_tokens=tokens, total_tokens=tokens)


def stored_message(message_id: str, tokens: int = 0) -> RunEvent:
    usage = completion(tokens)
    message = Message(id=message_id, role=ROLE_ASSISTANT, usage=usage)
    return RunEvent(message_stored=MessageStored(message=message))


async def test_events_are_shown_once_stored_and_deltas_keep_their_order(
    gateways: Gateways,
) -> None:
    store = FailingStore(gateways)
    run = await live_run(store)
    store.open.clear()
    with run.subscribe(0, tokens=True) as (_, subscription):
        seen: list[RunEvent] = []

        async def follow() -> None:
            async for event in subscription:
                seen.append(event)  # noqa: PERF401 - looked at before the end

        following = asyncio.create_task(follow())
        await run.append(RunEvent(run_started=RunStarted(attempt=1)))
        await run.append(step_event(1))
        await run.append(delta("a"))
        await run.append(delta("b"))
        flushing = asyncio.create_task(run.flush())
        await asyncio.sleep(0.2)
        assert seen == []
        await run.append(delta("c"))
        store.open.set()
        await flushing
        run.close()
        await following
    assert [event.sequence for event in seen] == [1, 2, 0, 0, 0]
    assert [event.text_delta.text for event in seen[2:]] == ["a", "b", "c"]


@pytest.mark.parametrize("seed", range(5))
async def test_stored_events_equal_the_shown_events_after_failed_commits(
    gateways: Gateways, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_run_module, "_RETRY_S", 0.001)
    chance = random.Random(seed)
    store = FailingStore(gateways, chance.choices(["before", "behind", ""], k=30))
    run = await live_run(store)
    with run.subscribe(0, tokens=True) as (_, subscription):
        await run.append(RunEvent(run_started=RunStarted(attempt=1)))
        for number in range(1, 30):
            await run.append(step_event(number))
            await run.append(delta("x", f"message-{number}"))
            await run.append(RunEvent(tool_finished=ToolFinished(duration_ms=number)))
            await run.append(stored_message(f"message-{number}"))
            await asyncio.sleep(chance.choice([0, 0, 0.001, 0.01]))
        await run.finish(RunFinished(stop_reason=STOP_REASON_END_TURN), take_next=False)
        shown = [event async for event in subscription]
    durable = [event for event in shown if event.sequence]
    assert [event.sequence for event in durable] == list(range(1, len(durable) + 1))
    page = await store.events(run.project_id, run.fence.run_id, 0)
    assert [event.payload for event in page.events] == [e.SerializeToString() for e in durable]
    # Each delta comes after its step and before its message.
    order = [event.WhichOneof("event") for event in shown]
    for first, second in itertools.pairwise(order):
        assert (second == "text_delta") == (first == "step_started"), order


async def test_a_repeated_step_withdraws_its_message_before_new_text(
    gateways: Gateways,
) -> None:
    run = await live_run(FailingStore(gateways))
    with run.subscribe(0, tokens=True) as (_, subscription):
        await run.append(step_event(1, "message-1"))
        await run.append(delta("half", "message-1"))
        await run.redispatch()
        await run.append(step_event(1, "message-2"))
        await run.append(delta("whole", "message-2"))
        await run.append(stored_message("message-2"))
        await run.finish(RunFinished(stop_reason=STOP_REASON_END_TURN), take_next=False)
        shown = [event async for event in subscription]
    kinds = [event.WhichOneof("event") for event in shown]
    assert kinds[1:5] == ["text_delta", "step_restarted", "step_started", "text_delta"]
    assert shown[2].step_restarted.message_id == "message-1"


async def test_text_of_a_step_that_is_continued_with_its_reply_is_not_withdrawn(
    gateways: Gateways,
) -> None:
    run = await live_run(FailingStore(gateways))
    with run.subscribe(0, tokens=True) as (_, subscription):
        await run.append(step_event(1, "message-1"))
        await run.append(delta("whole", "message-1"))
        await run.redispatch()
        await run.append(step_event(1, "message-1"))
        await run.append(stored_message("message-1"))
        await run.finish(RunFinished(stop_reason=STOP_REASON_END_TURN), take_next=False)
        shown = [event async for event in subscription]
    kinds = [event.WhichOneof("event") for event in shown]
    assert kinds == ["step_started", "text_delta", "message_stored", "run_finished"]


async def test_reply_that_was_lost_after_it_arrived_is_counted(gateways: Gateways) -> None:
    run = await live_run(FailingStore(gateways))
    await run.append(step_event(1, "message-1"))
    run.note_reply(ReplyReceived(message_id="message-1", usage=completion(7)))
    await run.append(stored_message("message-1", 7))
    await run.append(step_event(2, "message-2"))
    # The number of tokens is known, so nothing is estimated.
    run.note_request(ModelRequestSent(message_id="message-2", prompt_tokens=90, bytes_per_token=4))
    run.note_reply(ReplyReceived(message_id="message-2", usage=completion(5)))
    await run.redispatch()
    await run.append(step_event(2, "message-3"))
    run.note_reply(ReplyReceived(message_id="message-3", usage=completion(6)))
    await run.append(stored_message("message-3", 6))
    end = RunFinished(stop_reason=STOP_REASON_END_TURN, usage=completion(13))
    await run.finish(end, take_next=False)
    page = await run._store.events(run.project_id, run.fence.run_id, 0)
    finished = RunEvent.FromString(page.events[-1].payload).run_finished
    assert finished.usage == completion(18)
    assert (await run._store.get(run.project_id, run.fence.run_id)).usage.total_tokens == 18


async def finished_usage(run: LiveRun, reported: Usage) -> Usage:
    """Ends a run with the usage of its last attempt; returns the stored usage."""
    end = RunFinished(stop_reason=STOP_REASON_END_TURN, usage=reported)
    await run.finish(end, take_next=False)
    page = await run._store.events(run.project_id, run.fence.run_id, 0)
    finished = RunEvent.FromString(page.events[-1].payload).run_finished
    stored = (await run._store.get(run.project_id, run.fence.run_id)).usage
    assert stored.total_tokens == finished.usage.total_tokens
    assert stored.estimated == finished.usage.estimated
    return finished.usage


async def test_tokens_of_a_reply_interrupted_by_a_crash_are_estimated(
    gateways: Gateways,
) -> None:
    run = await live_run(FailingStore(gateways))
    await run.append(step_event(1, "message-1"))
    run.note_request(ModelRequestSent(message_id="message-1", prompt_tokens=100, bytes_per_token=4))
    await run.append(delta("0123456", "message-1"))
    arguments = ToolCallDelta(message_id="message-1", name="look", arguments="{}")
    await run.append(RunEvent(tool_call_delta=arguments))
    assert run.usage.total_tokens == 104
    await run.redispatch()
    assert run.usage.total_tokens == 0
    await run.append(step_event(1, "message-2"))
    run.note_request(ModelRequestSent(message_id="message-2", prompt_tokens=90, bytes_per_token=4))
    await run.append(delta("text", "message-2"))
    run.note_reply(ReplyReceived(message_id="message-2", usage=completion(6)))
    await run.append(stored_message("message-2", 6))
    # 13 bytes of text, name and arguments make 4 tokens.
    expected = Usage(
        prompt_tokens=100, completion_tokens=4 + 6, total_tokens=104 + 6, estimated=True
    )
    assert await finished_usage(run, completion(6)) == expected


async def test_a_reply_stored_after_the_stream_broke_is_counted_once(
    gateways: Gateways,
) -> None:
    run = await live_run(FailingStore(gateways))
    await run.append(step_event(1, "message-1"))
    run.note_request(ModelRequestSent(message_id="message-1", prompt_tokens=100, bytes_per_token=4))
    await run.append(delta("half", "message-1"))
    # The stream to agent_loop breaks; agent_loop continues the step.
    await run.redispatch()
    await run.append(stored_message("message-1", 120))
    assert await finished_usage(run, completion(120)) == completion(120)


async def test_calls_before_the_stored_reply_of_a_lost_attempt_are_counted(
    gateways: Gateways,
) -> None:
    run = await live_run(FailingStore(gateways))
    await run.append(step_event(1, "message-1"))
    # One empty reply, and then the reply that is stored.
    run.note_reply(ReplyReceived(message_id="message-1", usage=completion(5)))
    run.note_reply(ReplyReceived(message_id="message-1", usage=completion(7)))
    await run.append(stored_message("message-1", 7))
    assert run.usage.total_tokens == 12
    await run.redispatch()
    assert await finished_usage(run, completion(7)) == completion(12)


CANCELLED = RunFinished(stop_reason=STOP_REASON_CANCELLED)


async def stored_kinds(run: LiveRun) -> list[str | None]:
    page = await run._store.events(run.project_id, run.fence.run_id, 0)
    return [RunEvent.FromString(event.payload).WhichOneof("event") for event in page.events]


async def test_text_that_is_not_stored_at_the_end_of_a_run_is_withdrawn_in_the_event_log(
    gateways: Gateways,
) -> None:
    run = await live_run(FailingStore(gateways))
    with run.subscribe(0, tokens=True) as (_, subscription):
        await run.append(step_event(1, "message-1"))
        await run.append(delta("half", "message-1"))
        await run.finish(CANCELLED, take_next=False)
        shown = [event async for event in subscription]
    kinds = [event.WhichOneof("event") for event in shown]
    assert kinds == ["step_started", "text_delta", "step_restarted", "run_finished"]
    assert [event.sequence for event in shown] == [1, 0, 2, 3]
    restarted = shown[2].step_restarted
    assert restarted.given_up
    assert (restarted.step_id, restarted.step) == ("step-1", 1)
    assert restarted.message_id == "message-1"
    page = await run._store.events(run.project_id, run.fence.run_id, 0)
    durable = [event.SerializeToString() for event in shown if event.sequence]
    assert [event.payload for event in page.events] == durable
    assert page.last_sequence == 3


@pytest.mark.parametrize(
    "events",
    [
        [step_event(1, "message-1")],
        [step_event(1, "message-1"), delta("whole"), stored_message("message-1")],
        [
            step_event(1, "message-1"),
            delta("half"),
            RunEvent(step_restarted=StepRestarted(step=1, given_up=True)),
        ],
    ],
    ids=["no text was streamed", "the text is stored", "agent_loop withdrew it"],
)
async def test_run_without_unstored_text_ends_without_withdrawing_text(
    gateways: Gateways, events: list[RunEvent]
) -> None:
    run = await live_run(FailingStore(gateways))
    for event in events:
        await run.append(event)
    await run.finish(CANCELLED, take_next=False)
    expected = [event.WhichOneof("event") for event in events if not event.HasField("text_delta")]
    assert await stored_kinds(run) == [*expected, "run_finished"]


class FailingAtTheEnd(FailingStore):
    """A store that fails at the first end of a run."""

    attempts = 0

    async def finish(self, *args: Any, **names: Any) -> Dispatch | None:
        self.attempts += 1
        if self.attempts == 1:
            raise UnavailableError("the database is away")
        return await super().finish(*args, **names)


async def test_text_is_withdrawn_once_if_the_end_of_the_run_is_stored_at_the_second_try(
    gateways: Gateways,
) -> None:
    run = await live_run(FailingAtTheEnd(gateways))
    await run.append(step_event(1, "message-1"))
    await run.append(delta("half", "message-1"))
    with pytest.raises(UnavailableError):
        await run.finish(CANCELLED, take_next=False)
    await run.finish(CANCELLED, take_next=False)
    assert await stored_kinds(run) == ["step_started", "step_restarted", "run_finished"]


async def restored_run(store: FailingStore) -> LiveRun:
    """Returns a run that was taken over from a dead gateway that had shown text."""
    accepted = await store.accept(new_run())
    assert accepted.dispatch is not None
    before = LiveRun(accepted.dispatch, "gateway-1", store, SystemClock())
    await before.append(step_event(1, "message-1"))
    await before.append(delta("half", "message-1"))
    await before.flush()
    await before.redispatch()
    before.close()
    held = replace(accepted.dispatch.run, attempt=before.fence.attempt, last_sequence=1)
    run = LiveRun(
        replace(accepted.dispatch, run=held, payload=b""), "gateway-1", store, SystemClock()
    )
    await run.restore()
    return run


async def test_text_shown_by_an_earlier_gateway_is_withdrawn_at_the_end_of_the_run(
    gateways: Gateways,
) -> None:
    store = FailingStore(gateways)
    run = await restored_run(store)
    await run.finish(CANCELLED, take_next=False)
    assert await stored_kinds(run) == ["step_started", "step_restarted", "run_finished"]


async def test_text_is_withdrawn_when_the_replacing_attempt_is_lost_after_its_commit(
    gateways: Gateways,
) -> None:
    store = FailingStore(gateways)
    run = await restored_run(store)
    # The second attempt stored message-2 in recall and died with all events of its own.
    await run.append(stored_message("message-2"))
    await run.append(step_event(2, "message-3"))
    await run.flush()
    page = await store.events(run.project_id, run.fence.run_id, 0)
    events = [RunEvent.FromString(event.payload) for event in page.events]
    kinds = [event.WhichOneof("event") for event in events]
    assert kinds == ["step_started", "step_restarted", "message_stored", "step_started"]
    assert events[1].step_restarted.message_id == "message-1"
    run.close()


async def test_stored_events_have_their_time_and_the_ended_model_calls(
    gateways: Gateways,
) -> None:
    store, clock = FailingStore(gateways), ManualClock()
    accepted = await store.accept(new_run())
    assert accepted.dispatch is not None
    run = LiveRun(replace(accepted.dispatch, age_s=2.0, payload=b""), "gateway-1", store, clock)
    await run.append(step_event(1, "message-1"))
    run.note_request(
        ModelRequestSent(
            message_id="message-1", prompt_tokens=1, bytes_per_token=4, model="test/one"
        )
    )
    clock.advance(0.5)
    await run.append(delta("half", "message-1"))
    clock.advance(0.25)
    await run.append(delta("whole", "message-1"))
    run.note_reply(ReplyReceived(message_id="message-1", usage=completion(7)))
    summary = ReplyReceived(message_id="summary", usage=completion(3), model="test/two")
    run.note_reply(summary)
    clock.advance(0.25)
    await run.append(stored_message("message-1"))
    run.note_request(ModelRequestSent(message_id="message-2", prompt_tokens=1, bytes_per_token=4))
    await run.finish(CANCELLED, take_next=False)
    page = await store.events(run.fence.project_id, run.fence.run_id, 0)
    stored = [RunEvent.FromString(event.payload) for event in page.events]
    assert [event.elapsed_ms for event in stored] == [2000, 3000, 3000]
    assert list(stored[0].model_calls) == []
    assert list(stored[1].model_calls) == [
        ModelCall(
            message_id="message-1",
            start_ms=2000,
            first_token_ms=500,
            duration_ms=750,
            usage=completion(7),
            model="test/one",
        ),
        ModelCall(message_id="summary", usage=completion(3), model="test/two"),
    ]
    assert [(call.message_id, call.lost) for call in stored[2].model_calls] == [("message-2", True)]


MESSAGE = 1_500_000
"""Bytes of a message; the largest replies and returns have about as many."""


def large_message(number: int) -> RunEvent:
    part = Part(text=TextPart(text=f"{number:06}" * (MESSAGE // 6)))
    message = Message(id=f"message-{number}", role=ROLE_ASSISTANT, parts=[part])
    return RunEvent(message_stored=MessageStored(message=message))


async def test_a_page_of_large_events_is_bounded_in_bytes_and_has_at_least_one_event(
    gateways: Gateways,
) -> None:
    run = await live_run(FailingStore(gateways))
    for number in range(4):
        await run.append(large_message(number))
    await run.append(step_event(2))
    await run.flush()
    sizes, after = [], 0
    while page := (await run._store.events(run.project_id, run.fence.run_id, after)).events:
        sizes.append(len(page))
        after = page[-1].sequence
    assert sizes == [1, 1, 1, 2]
    run.close()


async def test_large_events_are_not_buffered_in_memory_for_late_or_slow_followers(
    gateways: Gateways,
) -> None:
    run = await live_run(FailingStore(gateways))
    with run.subscribe(0, tokens=True) as (_, slow):
        for number in range(20):
            await run.append(large_message(number))
            await run.flush()
            for held in (run._publisher._recent, slow._events):
                assert sum(size for size, _ in held) < 8 * 1024 * 1024
        # The follower reads the missed events from the database.
        assert [event async for event in slow] == []
    with run.subscribe(0, tokens=True) as (stored_until, late):
        assert stored_until == 20
        await run.append(step_event(21))
        await run.flush()
        run.close()
        assert [event.sequence async for event in late] == [21]


async def test_large_events_that_cannot_be_stored_make_the_turn_wait(gateways: Gateways) -> None:
    store = FailingStore(gateways)
    run = await live_run(store)
    store.open.clear()
    appended = 0

    async def turn() -> None:
        nonlocal appended
        for number in range(20):
            await run.append(large_message(number))
            appended += 1

    playing = asyncio.create_task(turn())
    await asyncio.wait({playing}, timeout=0.5)
    assert appended * MESSAGE < 12 * 1024 * 1024
    store.open.set()
    await playing
    await run.flush()
    page = await store.events(run.project_id, run.fence.run_id, 19)
    assert [event.sequence for event in page.events] == [20]
    run.close()
