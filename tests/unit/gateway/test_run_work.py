"""Working slots of runs: few runs of a busy project work concurrently, any number may wait."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from loop_time import put_forward
from polling import settle
from strata.api.agent_loop.v1 import turn_service_pb2 as turn_pb
from strata.api.common.v1 import message_pb2, run_event_pb2
from strata.gateway.runs.dispatch import run_work
from strata.gateway.runs.dispatch.attempts import DispatchTerms
from strata.gateway.runs.dispatch.dispatcher import Dispatcher
from strata.gateway.runs.dispatch.run_work import RunWork, slots_of_working_runs
from strata.gateway.runs.domain.principals import Principal
from strata.gateway.runs.domain.runs import (
    Accepted,
    Dispatch,
    NewRun,
    Run,
    RunKind,
)
from strata.gateway.runs.domain.states import RunState
from strata.gateway.runs.events.live_run import RunHub
from strata.shared.clock import SystemClock
from strata.shared.project_use import ProjectUse
from strata.shared.usage import Usage

_RUNS = 20


@pytest.fixture(autouse=True)
def slots_are_held_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine work takes longer than the time after which it no longer counts."""
    monkeypatch.setattr(run_work, "_HOLD_S", 600.0)


class Store:
    """A store that accepts each run and stores nothing."""

    def __init__(self) -> None:
        self.accepting: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    async def accept(self, new: NewRun, *, may_start: bool = True) -> Accepted:
        project = new.principal.project_id
        self.accepting[project] += 1
        self.most[project] = max(self.most[project], self.accepting[project])
        for _ in range(5):
            await asyncio.sleep(0)
        self.accepting[project] -= 1
        run = Run(
            new.principal.project_id,
            new.id,
            new.agent_id,
            new.conversation_id,
            new.kind,
            RunState.RUNNING,
            None,
            None,
            Usage(),
            0,
            1,
            0,
            "",
            datetime.now(UTC),
            None,
            None,
        )
        return Accepted(run, Dispatch(run, new.principal, new.payload, 0, 60.0))

    async def append(self, *_: object, **__: object) -> None:
        pass

    async def finish(self, *_: object, **__: object) -> None:
        pass

    async def release(self) -> None:
        pass


class Turns:
    """An agent loop whose turns take some steps of the event loop and then call the model."""

    def __init__(self) -> None:
        self.model = asyncio.Event()
        self.beginning: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.asked: Counter[str] = Counter()
        self.began: list[str] = []

    async def execute(
        self, request: turn_pb.ExecuteRunRequest, cancel: asyncio.Event, *, seconds: float
    ) -> AsyncGenerator[turn_pb.ExecuteRunResponse, None]:
        project = request.run_id.partition("-")[0]
        self.began.append(project)
        self.beginning[project] += 1
        self.most[project] = max(self.most[project], self.beginning[project])
        for _ in range(10):
            await asyncio.sleep(0)
        self.beginning[project] -= 1
        self.asked[project] += 1
        yield turn_pb.ExecuteRunResponse(request=turn_pb.ModelRequestSent(message_id="message-1"))
        await self.model.wait()
        finished = run_event_pb2.RunFinished(stop_reason=run_event_pb2.STOP_REASON_END_TURN)
        yield turn_pb.ExecuteRunResponse(event=run_event_pb2.RunEvent(run_finished=finished))


class Signer:
    """A signer of constant tokens."""

    def mint(self, *_: object, **__: object) -> str:
        return "token"


def new_run(project: str, number: int, kind: RunKind = RunKind.FOREGROUND) -> NewRun:
    return NewRun(
        id=f"{project}-{number}",
        principal=Principal("organization-1", project, "key-1", frozenset()),
        agent_id="agent-1",
        conversation_id=f"conversation-{number}",
        kind=kind,
        payload=b"",
        payload_hash=b"",
    )


def use_beside(busy: str) -> ProjectUse:
    """Returns the use of a process by a busy project; its clock stands still, so no wait ends."""
    project_use = ProjectUse(lambda: 100.0)
    for _ in range(2000):
        project_use.take(busy, arriving=True)
        project_use.release(busy, arriving=True)
    return project_use


def dispatcher_of(
    turns: Turns, runs: Store | None = None, project_use: ProjectUse | None = None
) -> Dispatcher:
    store, signer = cast("Any", runs or Store()), cast("Any", Signer())
    hub, terms = RunHub(lambda _: None), DispatchTerms()
    return Dispatcher(
        store,
        hub,
        turns,
        signer,
        SystemClock(),
        owner="gateway-1",
        terms=terms,
        use=project_use or ProjectUse(),
    )


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0)


async def test_beside_another_project_the_runs_of_one_project_start_singly() -> None:
    turns = Turns()
    dispatcher = dispatcher_of(turns)
    await dispatcher.accept(new_run("quiet", 0))
    await until(lambda: turns.asked["quiet"] == 1)
    for number in range(_RUNS):
        await dispatcher.accept(new_run("noisy", number))
    await until(lambda: turns.asked["noisy"] == _RUNS)
    assert turns.most["noisy"] == 1
    turns.model.set()
    await dispatcher.close()


async def test_a_run_of_a_quiet_project_starts_before_the_queued_runs_of_a_busy_one() -> None:
    turns = Turns()
    dispatcher = dispatcher_of(turns, project_use=use_beside("noisy"))
    await dispatcher.accept(new_run("quiet", 0))
    await until(lambda: turns.asked["quiet"] == 1)
    accepting = [
        asyncio.create_task(dispatcher.accept(new_run("noisy", number))) for number in range(_RUNS)
    ]
    await until(lambda: turns.asked["noisy"] >= 5)
    begun = len(turns.began)
    assert begun < _RUNS
    await dispatcher.accept(new_run("quiet", 1))
    await until(lambda: turns.asked["quiet"] == 2)
    # At most one more run of the busy project began before the one of the quiet project.
    assert turns.began[begun:].index("quiet") <= 1
    assert len(turns.began) - begun <= 2
    await asyncio.gather(*accepting)
    turns.model.set()
    await dispatcher.close()


async def test_beside_another_project_messages_of_one_project_are_accepted_singly() -> None:
    turns, store = Turns(), Store()
    dispatcher = dispatcher_of(turns, store)
    await dispatcher.accept(new_run("quiet", 0))
    await until(lambda: turns.asked["quiet"] == 1)
    noisy = [new_run("noisy", number) for number in range(_RUNS)]
    await asyncio.gather(*map(dispatcher.accept, noisy))
    assert store.most["noisy"] == 1
    turns.model.set()
    await dispatcher.close()


async def test_no_work_of_others_begins_between_the_acceptance_and_the_start_of_a_run() -> None:
    turns = Turns()
    dispatcher = dispatcher_of(turns, project_use=use_beside("noisy"))
    slots = dispatcher._working
    accepting = asyncio.create_task(dispatcher.accept(new_run("quiet", 0)))
    await until(lambda: dispatcher._acceptances.held("quiet"))
    waiting = asyncio.create_task(slots.acquire("noisy"))
    await until(lambda: slots.waiting("noisy"))
    assert not accepting.done()
    await accepting
    await until(lambda: turns.asked["quiet"] == 1)
    assert not waiting.done()
    turns.model.set()
    await waiting
    slots.release("noisy")
    await dispatcher.close()


async def test_a_single_active_project_starts_many_runs_at_once() -> None:
    turns = Turns()
    dispatcher = dispatcher_of(turns)
    noisy = [new_run("noisy", number) for number in range(_RUNS)]
    await asyncio.gather(*map(dispatcher.accept, noisy))
    await until(lambda: turns.asked["noisy"] == _RUNS)
    assert turns.most["noisy"] == _RUNS
    turns.model.set()
    await dispatcher.close()


async def test_a_run_waiting_for_a_slot_can_be_cancelled() -> None:
    turns = Turns()
    dispatcher = dispatcher_of(turns)
    slots = dispatcher._working
    # Another project is active, and a run of this project is executed.
    slots.take("quiet")
    slots.take("noisy")
    await dispatcher.accept(new_run("noisy", 1, RunKind.BACKGROUND))
    await until(lambda: slots.waiting("noisy") == 1)
    dispatcher.cancel("noisy-1")
    await until(lambda: not dispatcher._active)
    await until(lambda: slots.waiting("noisy") == 0)
    assert turns.began == []
    assert slots.held("noisy") == 1
    await dispatcher.close()


Response = turn_pb.ExecuteRunResponse
REQUEST = Response(request=turn_pb.ModelRequestSent())
REPLY = Response(reply=turn_pb.ReplyReceived())


def tool_started(call_id: str) -> Response:
    started = run_event_pb2.ToolStarted(tool_call_id=call_id)
    return Response(event=run_event_pb2.RunEvent(tool_started=started))


def tool_finished(call_id: str) -> Response:
    tool_return = message_pb2.ToolReturnPart(tool_call_id=call_id)
    finished = run_event_pb2.ToolFinished(tool_return=tool_return)
    return Response(event=run_event_pb2.RunEvent(tool_finished=finished))


async def test_a_run_holds_a_slot_except_while_it_waits_for_a_model_or_tools() -> None:
    slots = slots_of_working_runs()
    work = RunWork(slots, "project")
    await work.begin()
    held = [slots.held("project")]
    for response in (
        REQUEST,
        REPLY,
        tool_started("a"),
        tool_started("b"),
        tool_finished("a"),
        tool_finished("b"),
        REQUEST,
        REPLY,
    ):
        work.note(response)
        held.append(slots.held("project"))
    work.pause()
    assert held == [1, 0, 1, 0, 0, 0, 1, 0, 1]
    assert slots.held("project") == 0


@pytest.mark.parametrize("wait", [REQUEST, tool_started("a")])
async def test_beside_others_no_run_begins_while_a_model_or_tool_answers_at_once(
    wait: Response, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine the test takes longer than the usual time.
    monkeypatch.setattr(run_work, "_SHORT_WAIT_S", 60.0)
    slots = slots_of_working_runs()
    first, second = RunWork(slots, "noisy"), RunWork(slots, "noisy")
    slots.take("quiet")
    await first.begin()
    first.note(wait)
    assert not second.begin_now()
    first.note(REPLY if wait is REQUEST else tool_finished("a"))
    put_forward(2 * run_work._SHORT_WAIT_S)
    await settle()
    assert slots.held("noisy") == 1, "it works again"
    first.note(wait)
    put_forward(2 * run_work._SHORT_WAIT_S)
    await second.begin()
    assert slots.held("noisy") == 1, "the first one waits for long"
    second.pause()


async def test_a_reply_is_processed_even_if_no_slot_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_work, "_SHORT_WAIT_S", 0.0)
    slots = slots_of_working_runs()
    first, second = RunWork(slots, "noisy"), RunWork(slots, "noisy")
    await first.begin()
    first.note(REQUEST)
    slots.take("quiet")
    await second.begin()
    first.note(REPLY)
    assert slots.held("noisy") == 2
    second.note(REQUEST)
    await asyncio.sleep(0.001)
    third = RunWork(slots, "noisy")
    assert not third.begin_now()
    slots.release("quiet")
    first.pause()
    assert third.begin_now()
    third.pause()


@pytest.mark.parametrize("response", [REQUEST, REPLY, tool_started("a"), tool_finished("a")])
async def test_a_run_without_slots_never_waits(response: Response) -> None:
    work = RunWork(None, "project")
    await work.begin()
    work.note(response)
    work.pause()
