"""Shares of calls and streams per project, and the end of idle uploads."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from loop_time import put_forward
from polling import settle
from strata.protocol.errors import DeadlineExceededError, Reason, ResourceExhaustedError
from strata.protocol.shapes import RpcShape
from strata.shared import fair_slots
from strata.shared.context import Caller, RequestContext, calling_project, use
from strata.shared.foreground_work import ForegroundWork
from strata.shared.interceptors.admission import Admission
from strata.shared.interceptors.fair_calls import FairCalls
from strata.shared.interceptors.idle_uploads import IdleUploads
from strata.shared.interceptors.pipeline import ServedMethod
from strata.shared.project_use import ProjectUse

UNARY = ServedMethod("/a.B/Get", "a.B", RpcShape(False, False))
ANOTHER = ServedMethod("/a.C/Search", "a.C", RpcShape(False, False))
UPLOAD = ServedMethod("/a.B/InsertMany", "a.B", RpcShape(True, False))
BOTH_WAYS = ServedMethod("/a.B/UploadMany", "a.B", RpcShape(True, True))
ASKING = ServedMethod("/a.B/RunCode", "a.B", RpcShape(True, True))


def of(project: str) -> Any:
    return use(RequestContext(caller=Caller("org", project, "key")))


@pytest.mark.parametrize("method", [UNARY, UPLOAD], ids=["calls", "streams"])
async def test_one_project_cannot_take_every_slot(method: ServedMethod) -> None:
    released = asyncio.Event()

    async def proceed(call: Any) -> str:
        await released.wait()
        return "done"

    admission = Admission(max_unary=8, max_streams=8, retry_after_s=0.5, share=0.75)
    run = admission.bind(method, proceed)

    async def call(project: str) -> Any:
        with of(project):
            return await run(SimpleNamespace())  # type: ignore[arg-type]

    held = [asyncio.create_task(call("noisy")) for _ in range(6)]
    await settle(5)
    with pytest.raises(ResourceExhaustedError, match="The project has 6") as refused:
        await call("noisy")
    assert refused.value.reason is Reason.OVERLOADED
    assert refused.value.retry_after
    others = [asyncio.create_task(call(name)) for name in ("quiet", "other")]
    await settle(5)
    with pytest.raises(ResourceExhaustedError, match="The server"):
        await call("quiet")
    released.set()
    assert await asyncio.gather(*held, *others) == ["done"] * 8
    assert await call("noisy") == "done"
    assert not admission._slots[False]._taken_of_project


async def test_a_call_of_a_quiet_project_overtakes_those_of_a_busy_one() -> None:
    ended: list[str] = []

    async def proceed(call: Any) -> None:
        for _ in range(10):
            await asyncio.sleep(0)
        ended.append(calling_project())

    fair = FairCalls(256)
    runs = [fair.bind(method, proceed) for method in (UNARY, ANOTHER)]

    async def call(project: str, run: Any) -> None:
        with of(project):
            await run(SimpleNamespace())

    await call("quiet", runs[0])
    busy = [asyncio.create_task(call("busy", runs[n % 2])) for n in range(100)]
    await settle(5)
    await call("quiet", runs[1])
    assert ended.count("busy") <= 4
    await asyncio.gather(*busy)
    assert Counter(ended) == {"busy": 100, "quiet": 2}


@pytest.mark.parametrize(("run_id", "expected"), [("run-1", True), (None, False)])
async def test_background_work_gives_way_to_calls_of_runs(
    run_id: str | None, expected: bool
) -> None:
    foreground = ForegroundWork(pause_s=0.0)

    async def proceed(call: Any) -> bool:
        return foreground.is_active

    run = FairCalls(256, foreground).bind(UNARY, proceed)
    with use(RequestContext(caller=Caller("org", "project", "key", run_id=run_id))):
        assert await run(SimpleNamespace()) is expected  # type: ignore[arg-type]
    assert not foreground.is_active


async def test_waiting_calls_do_not_block_other_calls_of_their_project() -> None:
    released = asyncio.Event()

    async def proceed(call: Any) -> None:
        await released.wait()

    async def answer(call: Any) -> str:
        return "done"

    fair = FairCalls(256)
    slow = fair.bind(UNARY, proceed)

    async def wait() -> None:
        await slow(SimpleNamespace())  # type: ignore[arg-type]

    with of("other"):
        assert await fair.bind(UNARY, answer)(SimpleNamespace()) == "done"  # type: ignore[arg-type]
    with of("busy"):
        waiting = [asyncio.create_task(wait()) for _ in range(6)]
        await settle(5)
        assert await fair.bind(ANOTHER, answer)(SimpleNamespace()) == "done"  # type: ignore[arg-type]
    assert not any(task.done() for task in waiting)
    released.set()
    await asyncio.gather(*waiting)


class Held:
    """Calls that go on until they are ended, at a server that clients call.

    Attributes:
        use: What projects use.
        served: The calls that were begun, by project.
    """

    def __init__(self) -> None:
        self.use = ProjectUse(lambda: 100.0)
        self.served: Counter[str] = Counter()
        self._ended = asyncio.Event()
        fair = FairCalls(256, use=self.use, from_clients=True)
        self._runs = {method: fair.bind(method, self._proceed) for method in (UNARY, UPLOAD)}
        self._tasks: list[asyncio.Future[None]] = []

    async def begin(
        self, method: ServedMethod, project: str, count: int = 1, **caller: Any
    ) -> None:
        """Begins calls, each with two messages if it is an upload."""
        organization = caller.pop("organization", "org")
        with use(RequestContext(caller=Caller(organization, project, "key", **caller))):
            for _ in range(count):
                call: Any = SimpleNamespace(request=_messages(0, 0))
                self._tasks.append(asyncio.ensure_future(self._runs[method](call)))
        await settle(5)

    async def end(self) -> None:
        """Ends all calls."""
        self._ended.set()
        await asyncio.gather(*self._tasks)

    async def _proceed(self, call: Any) -> None:
        async for _ in call.request:
            self.served[calling_project()] += 1
            await self._ended.wait()


@pytest.fixture
def without_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets calls count as long as they take."""
    monkeypatch.setattr(fair_slots, "_SHORT_S", None)


@pytest.mark.usefixtures("without_timers")
async def test_calls_and_uploads_of_a_project_have_few_slots_together_beside_others() -> None:
    held = Held()
    await held.begin(UNARY, "quiet")
    await held.begin(UPLOAD, "noisy", 10)
    await held.begin(UNARY, "noisy", 10)
    assert held.served == {"quiet": 1, "noisy": 1}
    # Calls for runs are a part of work that has begun, and background work makes few.
    await held.begin(UNARY, "noisy", run_id="run-1")
    await held.begin(UNARY, "noisy", organization="")
    await held.begin(UPLOAD, "noisy", run_id="run-1")
    assert held.served["noisy"] == 4
    await held.begin(UPLOAD, "quiet")
    assert held.served["quiet"] == 1, "its first call is under way"
    await held.begin(UPLOAD, "third")
    assert held.served["third"] == 1
    await held.end()
    assert held.served == {"quiet": 4, "third": 2, "noisy": 46}


async def test_uploads_of_a_project_alone_do_not_wait() -> None:
    held = Held()
    await held.begin(UPLOAD, "noisy", 20)
    assert held.served["noisy"] == 20
    await held.end()
    assert held.served["noisy"] == 40


@pytest.mark.usefixtures("without_timers")
async def test_calls_of_background_work_hold_nobody_back() -> None:
    held = Held()
    for _ in range(2000):
        held.use.take("busy")
        held.use.release("busy")
    await held.begin(UNARY, "noisy", organization="")
    assert not held.use.gives_way("busy")
    await held.begin(UNARY, "noisy")
    assert held.use.gives_way("busy")
    await held.end()


_IDLE_S = 60.0


async def _pass_time(seconds: float) -> None:
    put_forward(seconds)
    await settle()


async def _messages(*pauses: float) -> AsyncIterator[int]:
    for number, pause in enumerate(pauses):
        await (_pass_time(pause) if pause else asyncio.sleep(0))
        yield number


async def _receive(method: ServedMethod, pauses: list[float], work: float = 0.0) -> list[int]:
    async def proceed(call: Any) -> list[int]:
        numbers = []
        async for message in call.request:
            await _pass_time(work)
            numbers.append(message)
        return numbers

    run = IdleUploads(_IDLE_S).bind(method, proceed)
    numbers: list[int] = await run(SimpleNamespace(request=_messages(*pauses)))  # type: ignore[arg-type]
    return numbers


@pytest.mark.parametrize("method", [UPLOAD, BOTH_WAYS], ids=["one way", "both ways"])
async def test_an_upload_that_sends_nothing_is_ended(method: ServedMethod) -> None:
    assert await _receive(method, [0, 0.8 * _IDLE_S, 0.8 * _IDLE_S]) == [0, 1, 2]
    with pytest.raises(DeadlineExceededError, match="sent nothing for 60 seconds"):
        await _receive(method, [0, 1.1 * _IDLE_S])


async def test_the_working_time_of_the_server_does_not_count_as_idle() -> None:
    assert await _receive(UPLOAD, [0, 0], work=1.5 * _IDLE_S) == [0, 1]


async def test_streams_whose_client_only_answers_may_be_idle() -> None:
    assert await _receive(ASKING, [0, 2 * _IDLE_S]) == [0, 1]
