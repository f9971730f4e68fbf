"""The run of a group: each turn of a member is a run of its own, and this run relays its events.

The member's run has a request id that is made from the group's run and the number of the turn. A
group's run that is dispatched again, here or by another gateway, goes through its turns from the
first: a run that was accepted before is found by its request id and followed from its log, so no
member speaks twice, and none is skipped. Which of the relayed events are in the group's log
already is for `LiveRun` to tell.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from strata.api.agent_loop.v1 import turn_service_pb2 as turn_pb
from strata.api.common.v1 import message_pb2, run_event_pb2
from strata.gateway.groups.exchange import Exchange
from strata.gateway.groups.managers import GroupManager, Turn, manager_of
from strata.gateway.runs.convert import (
    UNTRUSTED,
    failure_of,
    finished,
    principal_of,
    stop_of,
    usage_of,
)
from strata.gateway.runs.domain import (
    Accepted,
    NewRun,
    Run,
    RunFailure,
    RunKind,
    RunStore,
    StopReason,
    Usage,
)
from strata.gateway.runs.follow import RunFollower
from strata.shared.context import require_caller
from strata.shared.errors import DeadlineExceededError, FailedPreconditionError, NotFoundError
from strata.shared.ids import default_conversation_id, new_id
from strata.shared.logs import get_logger
from strata.shared.replies import words_of

Response = turn_pb.ExecuteRunResponse
RunEvent = run_event_pb2.RunEvent

_GOES_ON = frozenset({StopReason.END_TURN, StopReason.TOOL_RULE, StopReason.MAX_STEPS})

_log = get_logger(__name__)


@dataclass(slots=True)
class _Ended:
    """How a turn of a member ended, and what was said in it."""

    stop_reason: StopReason
    failure: RunFailure | None = None
    usage: Usage = field(default_factory=Usage)
    step_count: int = 0
    words: list[str] = field(default_factory=list)
    labels: set[message_pb2.Provenance.ValueType] = field(default_factory=set)


class _GroupRun:
    """One dispatch of a group's run.

    Attributes:
        stop: Set when the run was cancelled, or its time is over: no turn begins any more.
        late: Whether its time is over.
        taint: Labels of the text of others in the windows of the members.
    """

    def __init__(self, request: turn_pb.ExecuteRunRequest, cancel: asyncio.Event) -> None:
        self.request = request
        self.manager: GroupManager = manager_of(request.group, Exchange(request.messages))
        self.stop = asyncio.Event()
        remaining = request.remaining_time.ToTimedelta().total_seconds()
        self.late = request.cancel and remaining <= 0
        self.usage = Usage()
        self.step_count = 0
        self.taint: set[message_pb2.Provenance.ValueType] = set()
        if request.cancel:
            self.stop.set()
        self._cancel = cancel
        self._remaining = remaining

    async def watch(self) -> None:
        """Waits until the run has to stop."""
        if self.stop.is_set():
            return
        try:
            async with asyncio.timeout(self._remaining):
                await self._cancel.wait()
        except TimeoutError:
            self.late = True
        self.stop.set()

    def add(self, ended: _Ended, taint: Sequence[message_pb2.Provenance.ValueType]) -> None:
        """Adds what a turn cost."""
        self.usage += ended.usage
        self.step_count += ended.step_count
        self.taint.update(taint)


class GroupTurns:
    """Implements `dispatcher.TurnClient` for the runs of groups.

    Args:
        store: The runs.
        follower: Streams the runs of the members.
    """

    def __init__(self, store: RunStore, follower: RunFollower) -> None:
        self._store = store
        self._follower = follower
        self._accept: Callable[[NewRun], Awaitable[Accepted]]
        self._cancel_run: Callable[[str], Awaitable[object]]

    def connect(
        self,
        accept: Callable[[NewRun], Awaitable[Accepted]],
        cancel_run: Callable[[str], Awaitable[object]],
    ) -> None:
        """Says how runs are begun and stopped; the dispatcher, which does it, needs this first.

        Args:
            accept: Makes sure that the agent of a run exists, and accepts the run.
            cancel_run: Stops a run of the calling project.
        """
        self._accept, self._cancel_run = accept, cancel_run

    async def execute(
        self, request: turn_pb.ExecuteRunRequest, cancel: asyncio.Event, *, seconds: float
    ) -> AsyncGenerator[Response, None]:
        """See `TurnClient.execute`; the runs of the members go on when the iteration is left."""
        run = _GroupRun(request, cancel)
        watching = asyncio.create_task(run.watch())
        try:
            started = run_event_pb2.RunStarted(attempt=request.attempt)
            yield Response(event=RunEvent(run_started=started))
            number, last = 0, _Ended(StopReason.END_TURN)
            while last.stop_reason in _GOES_ON:
                turn = run.manager.next_turn()
                if turn is None:
                    last = _Ended(StopReason.END_TURN)
                    break
                number += 1
                last = _Ended(StopReason.CANCELLED)
                member_run = await self._member_run(run, turn, number)
                if member_run is None:
                    break
                async with aclosing(self._relay(run, turn, number, member_run, last)) as relayed:
                    async for response in relayed:
                        yield response
                run.manager.note_reply(turn, "\n\n".join(last.words), sorted(last.labels))
            if not run.stop.is_set():
                await self._show_rest(run)
            yield Response(event=RunEvent(run_finished=_finished(run, last)))
        finally:
            watching.cancel()

    async def _member_run(self, run: _GroupRun, turn: Turn, number: int) -> Run | None:
        """Returns the run of a turn; None if it is not to begin any more."""
        new = _new_run(run.request, turn, f"turn {number}")
        if run.stop.is_set():
            assert new.request_id is not None
            return await self._store.find_request(new.principal.project_id, new.request_id)
        return (await self._accept(new)).run

    async def _relay(
        self, run: _GroupRun, turn: Turn, number: int, member_run: Run, ended: _Ended
    ) -> AsyncGenerator[Response, None]:
        """Yields the events of a member's run; `ended` says in the end how it went."""
        stopping = asyncio.create_task(self._stop_with(run, member_run.id))
        follow = self._follower.follow(member_run.project_id, member_run.id, 0, tokens=True)
        try:
            async with aclosing(follow) as events:
                async for event in events:
                    if event.HasField("message_stored"):
                        message = event.message_stored.message
                        ended.words += words_of(message)
                        ended.labels.update(UNTRUSTED.intersection(message.provenance))
                    if event.HasField("run_finished"):
                        end = event.run_finished
                        ended.stop_reason, ended.failure = stop_of(end)
                        ended.usage, ended.step_count = usage_of(end.usage), end.step_count
                    yield Response(event=_relayed(event, turn, number, run.step_count))
                    if event.HasField("run_finished"):
                        run.add(ended, event.run_finished.taint)
        finally:
            stopping.cancel()

    async def _stop_with(self, run: _GroupRun, member_run_id: str) -> None:
        await run.stop.wait()
        await self._cancel_run(member_run_id)

    async def _show_rest(self, run: _GroupRun) -> None:
        """Stores in the window of each member what was said since it spoke last."""
        for place, turn in enumerate(run.manager.rest()):
            try:
                new = _new_run(run.request, turn, f"rest {place}", record_only=True)
                accepted = await self._accept(new)
            except (NotFoundError, FailedPreconditionError) as error:
                # It was deleted meanwhile, or its conversation waits for an approval.
                _log.info("the rest of a group's run is not shown", error=repr(error))
                continue
            follow = self._follower.follow(
                accepted.run.project_id, accepted.run.id, 0, tokens=False
            )
            async with aclosing(follow) as events:
                async for _ in events:
                    pass


def _new_run(
    request: turn_pb.ExecuteRunRequest, turn: Turn, name: str, *, record_only: bool = False
) -> NewRun:
    """Returns the run of an agent of a group; the same name gives the same request id."""
    agent_id = turn.agent.agent_id
    conversation_id = default_conversation_id(agent_id)
    execute = turn_pb.ExecuteRunRequest(
        agent_id=agent_id,
        conversation_id=conversation_id,
        messages=[line.message for line in turn.lines],
        senders=[line.sender_agent_id for line in turn.lines],
        max_steps=request.max_steps,
        group_id=request.group.id,
        record_only=record_only,
    )
    payload_hash = hashlib.sha256(execute.SerializeToString(deterministic=True)).digest()
    if turn.manager:
        # A manager answers with a name, whatever format its replies have elsewhere. It is not in
        # the hash: a run of an older release may have accepted the turn without it.
        execute.response_format.text.SetInParent()
    named = hashlib.sha256(f"{request.run_id} {name}".encode())
    return NewRun(
        id=new_id("run"),
        principal=principal_of(require_caller()),
        agent_id=agent_id,
        conversation_id=conversation_id,
        kind=RunKind.FOREGROUND,
        payload=execute.SerializeToString(deterministic=True),
        payload_hash=payload_hash,
        max_steps=request.max_steps,
        request_id=f"groups-{named.hexdigest()}",
        parent_run_id=request.run_id,
    )


def _relayed(event: RunEvent, turn: Turn, number: int, steps_before: int) -> RunEvent:
    """Returns an event of a member's run as the group's run has it."""
    out = RunEvent()
    out.CopyFrom(event)
    out.member.CopyFrom(
        run_event_pb2.EventMember(
            agent_id=turn.agent.agent_id,
            agent_name=turn.agent.name,
            run_id=event.run_id,
            sequence=event.sequence,
            turn=number,
        )
    )
    match event.WhichOneof("event"):
        case "run_started":
            begun = run_event_pb2.TurnStarted(
                conversation_id=event.run_started.conversation_id, manager=turn.manager
            )
            out.turn_started.CopyFrom(begun)
        case "run_finished":
            end = event.run_finished
            ended = run_event_pb2.TurnFinished(
                stop_reason=end.stop_reason,
                usage=end.usage,
                step_count=end.step_count,
                taint=end.taint,
            )
            if end.HasField("error"):
                ended.error.CopyFrom(end.error)
            out.turn_finished.CopyFrom(ended)
        case "step_started":
            out.step_started.step += steps_before
        case "step_restarted":
            out.step_restarted.step += steps_before
        case _:
            pass
    return out


def _finished(run: _GroupRun, last: _Ended) -> run_event_pb2.RunFinished:
    stop_reason, failure = last.stop_reason, last.failure
    if run.late:
        late = DeadlineExceededError("The run took longer than a run may take.")
        stop_reason, failure = StopReason.ERROR, failure_of(late, retryable=True)
    elif run.stop.is_set():
        stop_reason, failure = StopReason.CANCELLED, None
    end = finished(stop_reason, run.usage, run.step_count, failure)
    end.taint.extend(sorted(run.taint))
    return end
