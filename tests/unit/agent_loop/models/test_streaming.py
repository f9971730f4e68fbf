"""Retries and time limits of model streams."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from doubles.bench import request
from loop_watch import counted_turns
from strata.agent_loop.domain.model.chat import (
    FinishReason,
    ModelEvent,
    ModelReply,
    ModelRequest,
    ModelSettings,
    ReplyPart,
    TextDelta,
    TextPart,
    Timeouts,
    ToolCall,
)
from strata.agent_loop.domain.model.errors import ModelError, ModelErrorKind
from strata.agent_loop.models.stream_pauses import StreamPauses
from strata.agent_loop.models.streaming import (
    EventStream,
    ReplyBuilder,
    RetryPolicy,
    StreamedModel,
    StreamLimits,
    retrying,
)
from strata.shared.context import background_work_of
from strata.shared.project_use import ProjectUse
from strata.shared.redaction import Redactor
from strata.shared.spare_capacity import SpareCapacity
from strata.shared.usage import Usage


class Flaky:
    """A stream that fails a number of times, after a number of events."""

    def __init__(self, failures: int, after: int = 0) -> None:
        self.left, self.after = failures, after
        self.calls = 0
        self.closed = 0
        self.waits: list[float] = []

    async def __call__(self) -> AsyncGenerator[ModelEvent, None]:
        self.calls += 1
        try:
            for _ in range(self.after):
                yield TextDelta("x")
            if self.left:
                self.left -= 1
                raise ModelError(ModelErrorKind.UNAVAILABLE, "down")
            yield TextDelta("done")
        finally:
            self.closed += 1

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)


async def test_the_delay_grows_with_each_retry() -> None:
    flaky = Flaky(failures=2)
    seen = [event async for event in retrying(flaky, RetryPolicy(), flaky.sleep)]
    assert seen == [TextDelta("done")]
    assert flaky.calls == flaky.closed == 3
    first, second = flaky.waits
    assert 0.375 <= first <= 0.5
    assert 0.75 <= second <= 1.0


async def test_a_request_is_not_repeated_after_the_first_event() -> None:
    flaky = Flaky(failures=1, after=1)
    with pytest.raises(ModelError):
        async for _ in retrying(flaky, RetryPolicy(), flaky.sleep):
            pass
    assert flaky.calls == 1


async def test_closing_the_stream_early_closes_the_call() -> None:
    flaky = Flaky(failures=0, after=5)
    events = retrying(flaky, RetryPolicy())
    await anext(events)
    await events.aclose()
    assert flaky.closed == 1


async def test_first_event_limit_does_not_apply_after_the_first_event() -> None:
    limits = StreamLimits(Timeouts(first_event=0.05, total=60))
    limits.mark_started()
    await limits.wait(asyncio.sleep(0.1))


async def test_cancelling_is_not_a_time_out() -> None:
    limits = StreamLimits(Timeouts())
    task = asyncio.create_task(limits.wait(asyncio.sleep(60)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


class Burst:
    """Events that have all arrived already."""

    def __init__(self, count: int) -> None:
        self.left = count

    async def __anext__(self) -> str:
        if not self.left:
            raise StopAsyncIteration
        self.left -= 1
        return "x"

    async def close(self) -> None:
        pass


class Letters(ReplyBuilder[str]):
    """Joins the letters of a burst."""

    def __init__(self) -> None:
        super().__init__()
        self.letters: list[str] = []

    def take(self, event: str) -> list[ModelEvent]:
        self.letters.append(event)
        return [TextDelta(event)]

    def content(self) -> tuple[ReplyPart, ...]:
        return (TextPart("".join(self.letters)),)

    def tool_calls(self) -> tuple[ToolCall, ...]:
        return ()

    def everything(self) -> str:
        return "".join(self.letters)

    def finish_reason(self) -> FinishReason:
        return FinishReason.STOP

    def usage(self) -> Usage | None:
        return Usage()


def busy_pauses() -> StreamPauses:
    """The pauses of a process whose processors are busy."""
    return StreamPauses(ProjectUse(lambda: 100.0))


class FastModel(StreamedModel[str]):
    """A model whose whole reply has arrived before it is read."""

    def __init__(self, count: int, pauses: StreamPauses | None = None) -> None:
        settings = ModelSettings("test/fast", "openai", "fast", "http://127.0.0.1", "key")
        super().__init__(
            settings, RetryPolicy(first_delay=0.0), Redactor({}), pauses or busy_pauses()
        )
        self.count = count

    async def _open(self, request: ModelRequest, limits: StreamLimits) -> EventStream:
        return Burst(self.count)

    async def _next(self, raw: EventStream, limits: StreamLimits) -> str | None:
        try:
            return str(await limits.wait(raw.__anext__()))
        except StopAsyncIteration:
            return None

    def _new_reply(self) -> Letters:
        return Letters()

    def _finish(self, reply: ReplyBuilder[str], request: ModelRequest) -> ModelReply:
        usage = reply.usage()
        assert usage is not None
        return ModelReply(reply.content(), (), reply.finish_reason(), usage, "fast")


async def test_other_tasks_run_while_a_reply_that_has_arrived_is_read() -> None:
    async with counted_turns(pause=0) as turns:
        await asyncio.sleep(0)
        before = turns()
        events = [event async for event in FastModel(3_200).stream(request())]
        during = turns() - before
    assert len(events) == 3_202
    assert during >= 90


@pytest.mark.parametrize(("beside_others", "at_once"), [(True, 2), (False, 20)])
async def test_beside_others_few_replies_of_a_project_are_read_between_two_parts_of_other_work(
    beside_others: bool, at_once: int
) -> None:
    pauses = busy_pauses()
    if beside_others:
        with background_work_of("quiet"):
            await pauses.pause()
    pieces = 0

    async def read() -> None:
        nonlocal pieces
        async for event in ArrivedModel(640, pauses=pauses).stream(request()):
            pieces += isinstance(event, TextDelta)

    with background_work_of("busy"):
        replies = [asyncio.create_task(read()) for _ in range(20)]
    await asyncio.sleep(0)
    counts: list[int] = []
    while not all(reply.done() for reply in replies):
        before = pieces
        await asyncio.sleep(0)
        counts.append(pieces - before)
    await asyncio.gather(*replies)
    assert pieces == 20 * 20
    assert max(counts) == at_once


class ArrivedModel(FastModel):
    """A model that can tell whether events have arrived; the reply may break after them."""

    def __init__(
        self, count: int, *, breaks: bool = False, pauses: StreamPauses | None = None
    ) -> None:
        super().__init__(count, pauses)
        self.breaks = breaks

    def _has_arrived(self, raw: EventStream) -> bool:
        return True

    async def _next(self, raw: EventStream, limits: StreamLimits) -> str | None:
        event = await super()._next(raw, limits)
        if event is None and self.breaks:
            raise ModelError(ModelErrorKind.CUT_OFF, "The stream broke off.")
        return event


@pytest.mark.parametrize("count", [1, 31, 32, 33, 100])
async def test_text_that_has_arrived_together_is_passed_on_in_few_pieces(count: int) -> None:
    events = [event async for event in ArrivedModel(count).stream(request())]
    texts = [event.text for event in events if isinstance(event, TextDelta)]
    assert "".join(texts) == "x" * count
    assert len(texts) == -(-count // 32)


class SlowModel(FastModel):
    """A model that writes a piece every 0.01 s; only its pauses let time pass otherwise."""

    def __init__(self, count: int, *, level: int) -> None:
        self.time = 100.0
        use = ProjectUse(lambda: self.time, capacity=Capacity(level))
        super().__init__(count, StreamPauses(use, now=lambda: self.time, sleep=self.sleep))
        self.read = 0

    async def sleep(self, seconds: float) -> None:
        self.time += seconds

    @property
    def written(self) -> int:
        return round((self.time - 100) / 0.01)

    async def _next(self, raw: EventStream, limits: StreamLimits) -> str | None:
        if self.read >= self.written:
            self.time += 0.01
        self.read += 1
        return await super()._next(raw, limits)

    def _has_arrived(self, raw: EventStream) -> bool:
        return self.written > self.read


class Capacity(SpareCapacity):
    """Processors whose idle share is known."""

    def __init__(self, level: int) -> None:
        super().__init__()
        self.known_level = level

    def level(self) -> int:
        return self.known_level


@pytest.mark.parametrize(("level", "last_pieces"), [(1, {4}), (2, {1})])
async def test_the_pieces_of_a_slow_model_are_read_in_steps_unless_processors_are_idle(
    level: int, last_pieces: set[int]
) -> None:
    events = [event async for event in SlowModel(130, level=level).stream(request())]
    sizes = [len(event.text) for event in events if isinstance(event, TextDelta)]
    assert sum(sizes) == 130
    # For a quarter of a second each piece is passed on when it arrives.
    assert set(sizes[:26]) == {1}
    assert set(sizes[26:-1]) == last_pieces


@pytest.mark.parametrize("count", [0, 1, 40])
async def test_text_that_arrived_before_an_error_is_passed_on_first(count: int) -> None:
    texts: list[str] = []

    async def read() -> None:
        async for event in ArrivedModel(count, breaks=True).stream(request()):
            texts.append(event.text if isinstance(event, TextDelta) else "")  # noqa: PERF401

    with pytest.raises(ModelError, match="broke off"):
        await read()
    assert "".join(texts) == "x" * count


async def test_the_last_text_is_passed_on_before_the_response_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order: list[str] = []

    async def close(_burst: Burst) -> None:
        order.append("closed")

    monkeypatch.setattr(Burst, "close", close)
    events = ArrivedModel(3).stream(request())
    first = await anext(events)
    assert (first, order) == (TextDelta("xxx"), [])
    assert isinstance([event async for event in events][-1], ModelReply)
    assert order == ["closed"]
