"""The run of a group: each turn of a member is a run of its own, and this run relays its events.

The member's run has a request id that is made from the group's run and the number of the turn. A
group's run that is dispatched again, here or by another gateway, goes through its turns from the
first: a run that was accepted before is found by its request id and followed from its log, so no
member speaks twice, and none is skipped. Which of the relayed events are in the group's log
already is for `LiveRun` to tell. The members that a manager agent asks by its tool have runs whose
request ids are made from its call; their events are relayed beside those of the manager agent.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from strata.api.agent_loop.v1 import group_service_pb2 as group_pb
from strata.api.agent_loop.v1 import turn_service_pb2 as turn_pb
from strata.api.common.v1 import message_pb2, run_event_pb2
from strata.gateway.groups.asked import AskedMembers
from strata.gateway.groups.exchange import Exchange
from strata.gateway.groups.holders import Holders
from strata.gateway.groups.managers import (
    GroupManager,
    HandOver,
    Reply,
    Swarm,
    Turn,
    manager_of,
)
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
from strata.shared.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    NotFoundError,
    StrataError,
)
from strata.shared.ids import default_conversation_id, new_id
from strata.shared.json_text import JsonTextError, parse_json
from strata.shared.logs import get_logger
from strata.shared.replies import words_of
from strata.shared.tool_catalogue import HAND_OVER

Response = turn_pb.ExecuteRunResponse
RunEvent = run_event_pb2.RunEvent

_GOES_ON = frozenset({StopReason.END_TURN, StopReason.TOOL_RULE, StopReason.MAX_STEPS})

# A member that is busy is shown the rest when it is free; nothing that comes later overtakes it.
_REST_S = 10.0

_log = get_logger(__name__)


@dataclass(slots=True)
class _Ended:
    """How a turn of a member ended, and what was said in it.

    Attributes:
        calls: Arguments of its calls of ``hand_over``, by call id.
        hand_over: The last of them that was accepted.
    """

    stop_reason: StopReason
    failure: RunFailure | None = None
    usage: Usage = field(default_factory=Usage)
    step_count: int = 0
    words: list[str] = field(default_factory=list)
    labels: set[message_pb2.Provenance.ValueType] = field(default_factory=set)
    calls: dict[str, str] = field(default_factory=dict)
    hand_over: HandOver | None = None

    @property
    def reply(self) -> Reply:
        """What the turn came to; a turn that did not end well hands nothing over."""
        hand_over = self.hand_over if self.stop_reason in _GOES_ON else None
        return Reply("\n\n".join(self.words), sorted(self.labels), hand_over)

    def note(self, event: RunEvent) -> None:
        """Takes in an event of the member's run."""
        if event.HasField("message_stored"):
            self._note_message(event.message_stored.message)
        elif event.HasField("run_finished"):
            end = event.run_finished
            self.stop_reason, self.failure = stop_of(end)
            self.usage, self.step_count = usage_of(end.usage), end.step_count

    def _note_message(self, message: message_pb2.Message) -> None:
        self.words += words_of(message)
        self.labels.update(UNTRUSTED.intersection(message.provenance))
        for part in message.parts:
            if part.HasField("tool_call") and part.tool_call.name == HAND_OVER:
                self.calls[part.tool_call.tool_call_id] = part.tool_call.arguments
            elif part.HasField("tool_return") and part.tool_return.name == HAND_OVER:
                self._note_return(part.tool_return)

    def _note_return(self, tool_return: message_pb2.ToolReturnPart) -> None:
        arguments = self.calls.get(tool_return.tool_call_id)
        if arguments is not None and tool_return.status == message_pb2.TOOL_STATUS_OK:
            self.hand_over = _hand_over(arguments) or self.hand_over


class _GroupRun:
    """One dispatch of a group's run.

    Attributes:
        stop: Set when the run was cancelled, or its time is over: no turn begins any more.
        late: Whether its time is over.
        asked: Turns of members that the turn under way, or the last one, has asked.
        taint: Labels of the text of others in the windows of the members.
    """

    def __init__(
        self, request: turn_pb.ExecuteRunRequest, cancel: asyncio.Event, holder: str
    ) -> None:
        self.request = request
        exchange = Exchange(request.messages)
        self.manager: GroupManager = manager_of(request.group, exchange, holder=holder)
        self.stop = asyncio.Event()
        remaining = request.remaining_time.ToTimedelta().total_seconds()
        self.late = request.cancel and remaining <= 0
        self.usage = Usage()
        self.step_count = 0
        self.asked = 0
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

    def add(self, end: run_event_pb2.RunFinished) -> None:
        """Adds what the run of a member cost."""
        self.usage += usage_of(end.usage)
        self.step_count += end.step_count
        self.taint.update(end.taint)


@dataclass(frozen=True, slots=True)
class _Speaker:
    """Whose events are relayed.

    Attributes:
        agent: The agent.
        asked: See `asked.Asked.number`; 0 for the agent that has the turn.
        manager: See `Turn`.
    """

    agent: group_pb.GroupMember
    asked: int = 0
    manager: bool = False


class GroupTurns:
    """Implements `dispatcher.TurnClient` for the runs of groups.

    Args:
        store: The runs.
        follower: Streams the runs of the members.
        holders: Knows who holds the conversations of swarms.
    """

    def __init__(self, store: RunStore, follower: RunFollower, holders: Holders) -> None:
        self._store = store
        self._follower = follower
        self._holders = holders
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
        holder = ""
        if request.group.manager.type == group_pb.MANAGER_TYPE_SWARM:
            holder = await self._holders.begin(request.group.id, request.run_id)
        run = _GroupRun(request, cancel, holder)
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
                await self._note_reply(run, turn, last)
                number += run.asked
            await self._show_rest(run)
            yield Response(event=RunEvent(run_finished=_finished(run, last)))
        finally:
            watching.cancel()

    async def _note_reply(self, run: _GroupRun, turn: Turn, ended: _Ended) -> None:
        manager = run.manager
        before = manager.hand_overs if isinstance(manager, Swarm) else 0
        manager.note_reply(turn, ended.reply)
        if isinstance(manager, Swarm) and manager.hand_overs > before:
            request = run.request
            await self._holders.hand_over(
                request.group.id, request.run_id, manager.hand_overs, manager.holder.agent_id
            )

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
        try:
            async with aclosing(self._followed(run, turn, member_run)) as events:
                async for speaker, event in events:
                    if speaker.asked:
                        run.asked = max(run.asked, speaker.asked)
                    else:
                        ended.note(event)
                    yield Response(event=_relayed(event, speaker, number + speaker.asked))
                    if event.HasField("run_finished"):
                        run.add(event.run_finished)
        finally:
            stopping.cancel()

    async def _followed(
        self, run: _GroupRun, turn: Turn, member_run: Run
    ) -> AsyncGenerator[tuple[_Speaker, RunEvent], None]:
        project_id, run_id = member_run.project_id, member_run.id
        own = _Speaker(turn.agent, manager=turn.manager)
        if turn.asks:
            members = run.request.group.members
            asking = AskedMembers(self._store, self._follower, project_id, run_id, members)
            async with aclosing(asking.events()) as joined:
                async for asked, event in joined:
                    speaker = own if asked is None else _Speaker(asked.member, asked.number)
                    yield speaker, event
            return
        async with aclosing(self._follower.follow(project_id, run_id, 0, tokens=True)) as events:
            async for event in events:
                yield own, event

    async def _stop_with(self, run: _GroupRun, member_run_id: str) -> None:
        await run.stop.wait()
        await self._cancel_run(member_run_id)

    async def _show_rest(self, run: _GroupRun) -> None:
        """Stores in the window of each member what was said since it spoke last.

        The runs that do it are waited for, so that the windows are complete when the group's run
        is over; but not for long, and not once the run has to stop.
        """
        accepted = []
        for place, turn in enumerate(run.manager.rest()):
            new = _new_run(run.request, turn, f"rest {place}", record_only=True)
            try:
                accepted.append((await self._accept(new)).run)
            except (NotFoundError, FailedPreconditionError) as error:
                # It was deleted meanwhile, or its conversation waits for an approval.
                _log.info("the rest of a group's run is not shown", error=repr(error))
            except StrataError as error:
                if not run.stop.is_set():
                    raise
                _log.warning("the rest of a stopped run is not shown", error=repr(error))
        stored = asyncio.create_task(self._until_ended(accepted))
        stopped = asyncio.create_task(run.stop.wait())
        try:
            await asyncio.wait(
                (stored, stopped), timeout=_REST_S, return_when=asyncio.FIRST_COMPLETED
            )
            if stored.done():
                stored.result()
        finally:
            stored.cancel()
            stopped.cancel()

    async def _until_ended(self, runs: Sequence[Run]) -> None:
        # Their order does not matter: all of them have to end.
        for run in runs:
            follow = self._follower.follow(run.project_id, run.id, 0, tokens=False)
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
        group_tool=turn.tool,
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
        # Nobody waits for an answer to what is only stored: it outlives a cancelled group run.
        kind=RunKind.BACKGROUND if record_only else RunKind.FOREGROUND,
        payload=execute.SerializeToString(deterministic=True),
        payload_hash=payload_hash,
        max_steps=request.max_steps,
        request_id=f"groups-{named.hexdigest()}",
        parent_run_id=request.run_id,
        group_run_id=request.run_id,
        takes_slot=not turn.asks,
    )


def _hand_over(arguments: str) -> HandOver | None:
    """Returns what a call of ``hand_over`` says; None if that cannot be read."""
    try:
        values = parse_json(arguments)
    except JsonTextError:
        return None
    if not isinstance(values, dict):
        return None
    agent, message = values.get("agent"), values.get("message")
    if not isinstance(agent, str):
        return None
    return HandOver(agent, message if isinstance(message, str) else "")


def _relayed(event: RunEvent, speaker: _Speaker, number: int) -> RunEvent:
    """Returns an event of a member's run as the group's run has it."""
    out = RunEvent()
    out.CopyFrom(event)
    out.member.CopyFrom(
        run_event_pb2.EventMember(
            agent_id=speaker.agent.agent_id,
            agent_name=speaker.agent.name,
            run_id=event.run_id,
            sequence=event.sequence,
            turn=number,
        )
    )
    match event.WhichOneof("event"):
        case "run_started":
            begun = run_event_pb2.TurnStarted(
                conversation_id=event.run_started.conversation_id, manager=speaker.manager
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
