"""Runs of groups: each turn of a member is a separate run; the group's run relays its events.

The request id of a member's run is derived from the group's run and the number of the turn. When a
group's run is dispatched again, here or by another gateway, it repeats its turns from the first
one. Runs that were accepted before are found by their request ids and followed from their logs, so
no member replies twice and none is skipped. `LiveRun` drops relayed events that the group's log
already contains. A manager agent can ask members by a tool; the request ids of these runs are
derived from the call, and their events are relayed beside those of the manager agent.
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
from strata.gateway.groups.asked_members import AskedMembers
from strata.gateway.groups.exchange import GroupMessages
from strata.gateway.groups.holders import SwarmHolders
from strata.gateway.groups.managers import (
    GroupManager,
    GroupTurn,
    HandOver,
    Swarm,
    TurnReply,
    manager_of,
)
from strata.gateway.runs.convert.runs import (
    UNTRUSTED,
    build_run_finished,
    failure_of,
    principal_of,
    stop_of,
)
from strata.gateway.runs.domain.runs import Accepted, NewRun, Run, RunFailure, RunKind, RunStore
from strata.gateway.runs.events.run_follower import RunFollower
from strata.protocol.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    NotFoundError,
    Reason,
    StrataError,
)
from strata.shared.context import require_caller
from strata.shared.convert.usage import usage_from_proto
from strata.shared.ids import default_conversation_id, new_id
from strata.shared.json_text import JsonTextError, parse_json
from strata.shared.logs import get_logger
from strata.shared.replies import words_of
from strata.shared.stop_reasons import StopReason
from strata.shared.tool_catalogue import HAND_OVER
from strata.shared.usage import Usage

Response = turn_pb.ExecuteRunResponse
RunEvent = run_event_pb2.RunEvent

_CONTINUING_REASONS = frozenset({StopReason.END_TURN, StopReason.TOOL_RULE, StopReason.MAX_STEPS})

# Maximum seconds to wait for storing unseen messages. A busy member gets them when it is free,
# before any later message.
_REST_TIMEOUT_S = 10.0

_log = get_logger(__name__)


@dataclass(slots=True)
class _TurnResult:
    """Result of a member's turn: how it ended, and its texts.

    Attributes:
        calls: Arguments of its calls of ``hand_over``, by call id.
        hand_over: The last of them that was accepted.
    """

    stop_reason: StopReason
    failure: RunFailure | None = None
    usage: Usage = field(default_factory=Usage)
    step_count: int = 0
    texts: list[str] = field(default_factory=list)
    labels: set[message_pb2.Provenance.ValueType] = field(default_factory=set)
    calls: dict[str, str] = field(default_factory=dict)
    hand_over: HandOver | None = None

    @property
    def reply(self) -> TurnReply:
        """The reply of the turn; only a turn that ended normally hands over."""
        hand_over = self.hand_over if self.stop_reason in _CONTINUING_REASONS else None
        return TurnReply("\n\n".join(self.texts), sorted(self.labels), hand_over)

    def note(self, event: RunEvent) -> None:
        """Processes an event of the member's run."""
        if event.HasField("message_stored"):
            self._note_message(event.message_stored.message)
        elif event.HasField("run_finished"):
            end = event.run_finished
            self.stop_reason, self.failure = stop_of(end)
            if self.failure is not None and self.failure.reason == Reason.AGENT_NOT_FOUND.value:
                # It existed when its turn was accepted, so it was deleted meanwhile.
                self.stop_reason, self.failure = StopReason.CANCELLED, None
            self.usage, self.step_count = usage_from_proto(end.usage), end.step_count

    def _note_message(self, message: message_pb2.Message) -> None:
        self.texts += words_of(message)
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
    """State of one dispatch of a group's run.

    Attributes:
        stop: Set when the run is cancelled or has passed its deadline: no further turn starts.
        late: Whether it has passed its deadline.
        asked: Number of member turns within the present or last turn.
        taint: Labels of untrusted content in the windows of the members.
    """

    def __init__(
        self, request: turn_pb.ExecuteRunRequest, cancel: asyncio.Event, holder: str
    ) -> None:
        self.request = request
        exchange = GroupMessages(request.messages)
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
        """Adds the usage of a member's run."""
        self.usage += usage_from_proto(end.usage)
        self.step_count += end.step_count
        self.taint.update(end.taint)


@dataclass(frozen=True, slots=True)
class _Speaker:
    """The agent whose events are relayed.

    Attributes:
        agent: The agent.
        asked: See `asked.Asked.number`; 0 for the agent that has the turn.
        manager: See `GroupTurn`.
    """

    agent: group_pb.GroupMember
    asked: int = 0
    manager: bool = False


class GroupTurns:
    """Implements `dispatcher.TurnClient` for the runs of groups.

    Args:
        store: The runs.
        follower: Streams the runs of the members.
        holders: Stores which members hold the conversations of swarms.
    """

    def __init__(self, store: RunStore, follower: RunFollower, holders: SwarmHolders) -> None:
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
        """Sets the functions that start and stop runs, which need this object themselves.

        Args:
            accept: Checks that the agent of a run exists, and accepts the run.
            cancel_run: Stops a run of the calling project.
        """
        self._accept, self._cancel_run = accept, cancel_run

    async def execute(
        self, request: turn_pb.ExecuteRunRequest, cancel: asyncio.Event, *, seconds: float
    ) -> AsyncGenerator[Response, None]:
        """See `TurnClient.execute`; the members' runs continue when the iteration is left."""
        holder = ""
        if request.group.manager.type == group_pb.MANAGER_TYPE_SWARM:
            holder = await self._holders.begin(request.group.id, request.run_id)
        run = _GroupRun(request, cancel, holder)
        watching = asyncio.create_task(run.watch())
        try:
            started = run_event_pb2.RunStarted(attempt=request.attempt)
            yield Response(event=RunEvent(run_started=started))
            number, last = 0, _TurnResult(StopReason.END_TURN)
            while last.stop_reason in _CONTINUING_REASONS:
                turn = run.manager.next_turn()
                if turn is None:
                    last = _TurnResult(StopReason.END_TURN)
                    break
                number += 1
                last = _TurnResult(StopReason.CANCELLED)
                try:
                    member_run = await self._member_run(run, turn, number)
                except NotFoundError as error:
                    # The agent was deleted. The others still get the messages that they have not
                    # seen.
                    _log.info("a run of a group ends early", error=repr(error))
                    break
                except FailedPreconditionError as error:
                    last = _TurnResult(StopReason.ERROR, failure_of(error, retryable=True))
                    break
                if member_run is None:
                    break
                async with aclosing(
                    self._relay_turn(run, turn, number, member_run, last)
                ) as relayed:
                    async for response in relayed:
                        yield response
                await self._note_reply(run, turn, last)
                number += run.asked
            await self._store_unseen(run)
            yield Response(event=RunEvent(run_finished=_finished(run, last)))
        finally:
            watching.cancel()

    async def _note_reply(self, run: _GroupRun, turn: GroupTurn, result: _TurnResult) -> None:
        manager = run.manager
        before = manager.hand_overs if isinstance(manager, Swarm) else 0
        manager.note_reply(turn, result.reply)
        if isinstance(manager, Swarm) and manager.hand_overs > before:
            request = run.request
            await self._holders.hand_over(
                request.group.id, request.run_id, manager.hand_overs, manager.holder.agent_id
            )

    async def _member_run(self, run: _GroupRun, turn: GroupTurn, number: int) -> Run | None:
        """Returns the run of a turn; None if the turn must no longer start."""
        new = _new_run(run.request, turn, f"turn {number}")
        if run.stop.is_set():
            assert new.request_id is not None
            return await self._store.find_request(new.principal.project_id, new.request_id)
        return (await self._accept(new)).run

    async def _relay_turn(
        self, run: _GroupRun, turn: GroupTurn, number: int, member_run: Run, result: _TurnResult
    ) -> AsyncGenerator[Response, None]:
        """Yields the events of a member's run; `result` has its result at the end."""
        stopping = asyncio.create_task(self._stop_with(run, member_run.id))
        try:
            async with aclosing(self._member_events(run, turn, member_run)) as events:
                async for speaker, event in events:
                    if speaker.asked:
                        run.asked = max(run.asked, speaker.asked)
                    else:
                        result.note(event)
                    yield Response(event=_relayed(event, speaker, number + speaker.asked))
                    if event.HasField("run_finished"):
                        run.add(event.run_finished)
        finally:
            stopping.cancel()

    async def _member_events(
        self, run: _GroupRun, turn: GroupTurn, member_run: Run
    ) -> AsyncGenerator[tuple[_Speaker, RunEvent], None]:
        project_id, run_id = member_run.project_id, member_run.id
        manager_speaker = _Speaker(turn.agent, manager=turn.manager)
        if turn.asks:
            members = run.request.group.members
            asking = AskedMembers(self._store, self._follower, project_id, run_id, members)
            async with aclosing(asking.events()) as joined:
                async for member_turn, event in joined:
                    speaker = (
                        manager_speaker
                        if member_turn is None
                        else _Speaker(member_turn.member, member_turn.number)
                    )
                    yield speaker, event
            return
        async with aclosing(self._follower.follow(project_id, run_id, 0, tokens=True)) as events:
            async for event in events:
                yield manager_speaker, event

    async def _stop_with(self, run: _GroupRun, member_run_id: str) -> None:
        await run.stop.wait()
        await self._cancel_run(member_run_id)

    async def _store_unseen(self, run: _GroupRun) -> None:
        """Stores in the window of each member the messages since its last turn.

        It waits for the runs that store them, so that the windows are complete when the group's run
        ends; but at most `_REST_TIMEOUT_S`, and not after the run was stopped.
        """
        accepted = []
        for position, turn in enumerate(run.manager.rest()):
            new = _new_run(run.request, turn, f"rest {position}", record_only=True)
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
                (stored, stopped), timeout=_REST_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED
            )
            if stored.done():
                stored.result()
        finally:
            stored.cancel()
            stopped.cancel()

    async def _until_ended(self, runs: Sequence[Run]) -> None:
        # In any order: all of them have to end.
        for run in runs:
            follow = self._follower.follow(run.project_id, run.id, 0, tokens=False)
            async with aclosing(follow) as events:
                async for _ in events:
                    pass


def _new_run(
    request: turn_pb.ExecuteRunRequest, turn: GroupTurn, name: str, *, record_only: bool = False
) -> NewRun:
    """Returns the run of an agent of a group; the same name gives the same request id."""
    agent_id = turn.agent.agent_id
    conversation_id = default_conversation_id(agent_id)
    execute = turn_pb.ExecuteRunRequest(
        agent_id=agent_id,
        conversation_id=conversation_id,
        messages=[message.message for message in turn.messages],
        senders=[message.sender_agent_id for message in turn.messages],
        max_steps=request.max_steps,
        group_id=request.group.id,
        record_only=record_only,
        group_tool=turn.tool,
    )
    payload_hash = hashlib.sha256(execute.SerializeToString(deterministic=True)).digest()
    if turn.manager:
        # A manager answers with a name, even if its replies have another format elsewhere. The
        # format is not in the hash: an older release may have accepted the turn without it.
        execute.response_format.text.SetInParent()
    digest = hashlib.sha256(f"{request.run_id} {name}".encode())
    return NewRun(
        id=new_id("run"),
        principal=principal_of(require_caller()),
        agent_id=agent_id,
        conversation_id=conversation_id,
        # A run that only stores messages continues after the group's run is cancelled.
        kind=RunKind.BACKGROUND if record_only else RunKind.FOREGROUND,
        payload=execute.SerializeToString(deterministic=True),
        payload_hash=payload_hash,
        max_steps=request.max_steps,
        request_id=f"groups-{digest.hexdigest()}",
        parent_run_id=request.run_id,
        group_run_id=request.run_id,
        takes_slot=not turn.asks,
    )


def _hand_over(arguments: str) -> HandOver | None:
    """Parses the arguments of a call of ``hand_over``; None if they are invalid."""
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
    """Returns an event of a member's run as an event of the group's run."""
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
            turn_started = run_event_pb2.TurnStarted(
                conversation_id=event.run_started.conversation_id, manager=speaker.manager
            )
            out.turn_started.CopyFrom(turn_started)
        case "run_finished":
            end = event.run_finished
            result = run_event_pb2.TurnFinished(
                stop_reason=end.stop_reason,
                usage=end.usage,
                step_count=end.step_count,
                taint=end.taint,
            )
            if end.HasField("error"):
                result.error.CopyFrom(end.error)
            out.turn_finished.CopyFrom(result)
        case _:
            pass
    return out


def _finished(run: _GroupRun, last: _TurnResult) -> run_event_pb2.RunFinished:
    stop_reason, failure = last.stop_reason, last.failure
    if run.late:
        late = DeadlineExceededError("The run took longer than a run may take.")
        stop_reason, failure = StopReason.ERROR, failure_of(late, retryable=True)
    elif run.stop.is_set():
        stop_reason, failure = StopReason.CANCELLED, None
    end = build_run_finished(stop_reason, run.usage, run.step_count, failure)
    end.taint.extend(sorted(run.taint))
    return end
