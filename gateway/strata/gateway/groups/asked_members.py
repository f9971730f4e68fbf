"""Merges the events of a manager agent's turn with the events of the members that it calls.

The agent asks by a tool, which starts a run of each member (decision 0090). These runs are found in
the store: another gateway may have accepted them.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from strata.api.agent_loop.v1.group_service_pb2 import GroupMember
from strata.api.common.v1 import run_event_pb2
from strata.gateway.runs.domain.chains import ChainStore
from strata.gateway.runs.events.run_follower import RunFollower
from strata.protocol.errors import StrataError
from strata.shared.logs import get_logger
from strata.shared.tool_catalogue import ASK_MEMBERS, CODE_TOOLS

RunEvent = run_event_pb2.RunEvent

# Runs of members start at the beginning of a call, which may last for minutes: each look-up that
# finds no new run makes the pause before the next one longer.
_FIRST_LOOK_S = 0.1
_LAST_LOOK_S = 2.0
_EVENTS_AHEAD = 64

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class AskedTurn:
    """A turn in which a member answers the agent that asked it.

    Attributes:
        member: The member.
        run_id: Its run.
        number: Number of the turn; the turn of the agent that asks is 0.
    """

    member: GroupMember
    run_id: str
    number: int


class AskedMembers:
    """Follows the run of an agent and the runs of the members that it asks.

    Args:
        store: Finds the runs that an agent has started.
        follower: Streams the events of runs.
        project_id: The project.
        run_id: The run of the agent that asks.
        members: The members, in order.
    """

    def __init__(
        self,
        store: ChainStore,
        follower: RunFollower,
        project_id: str,
        run_id: str,
        members: Sequence[GroupMember],
    ) -> None:
        self._store = store
        self._follower = follower
        self._project_id = project_id
        self._run_id = run_id
        self._members = {member.agent_id: member for member in members}
        self._positions = {member.agent_id: position for position, member in enumerate(members)}
        self._events: asyncio.Queue[tuple[AskedTurn | None, RunEvent | Exception | None]]
        self._events = asyncio.Queue(_EVENTS_AHEAD)
        self._followed: dict[str, asyncio.Task[None]] = {}
        self._calls_by_member: Counter[str] = Counter()
        self._open = 0
        self._calls: set[str] = set()
        # Events of the agent that asks, each with whether member runs were looked up before it.
        self._own_events: deque[tuple[RunEvent, bool]] = deque()
        # Finished runs whose last events must come before these.
        self._awaited: set[str] = set()
        # Runs whose last event was passed on.
        self._finished_runs: set[str] = set()
        self._look_lock = asyncio.Lock()
        self._search_task: asyncio.Task[None] | None = None

    async def events(self) -> AsyncGenerator[tuple[AskedTurn | None, RunEvent], None]:
        """Yields events with their turn, None for the agent that asks; ends when all runs have.

        The events of the members come before the end of the call that asked them. Their runs are
        numbered in the order of the group, call by call, so that following the runs again gives
        the same numbers.

        Raises:
            StrataError: A run cannot be followed.
        """
        try:
            self._follow(None, self._run_id)
            while self._open or self._own_events:
                if self._own_events and not self._awaited:
                    event, looked = self._own_events.popleft()
                    if not looked and _may_follow_answers(event):
                        await self._look(wait=True)
                        self._own_events.appendleft((event, True))
                        continue
                    yield None, event
                    self._track_calls(event)
                    continue
                turn, event_or_end = await self._events.get()
                if isinstance(event_or_end, Exception):
                    raise event_or_end
                if event_or_end is None:
                    self._open -= 1
                    if turn is not None:
                        self._finished_runs.add(turn.run_id)
                        self._awaited.discard(turn.run_id)
                elif turn is None:
                    self._own_events.append((event_or_end, False))
                else:
                    yield turn, event_or_end
        finally:
            for task in (*self._followed.values(), self._search_task):
                if task is not None:
                    task.cancel()

    def _track_calls(self, event: RunEvent) -> None:
        match event.WhichOneof("event"):
            case "tool_started" if event.tool_started.name == ASK_MEMBERS:
                self._calls.add(event.tool_started.tool_call_id)
                if self._search_task is None or self._search_task.done():
                    self._search_task = asyncio.create_task(self._search())
            case "tool_finished" if event.tool_finished.tool_return.name == ASK_MEMBERS:
                self._calls.discard(event.tool_finished.tool_return.tool_call_id)
            case "run_finished":
                self._calls.clear()
            case _:
                pass

    async def _search(self) -> None:
        pause = _FIRST_LOOK_S
        calls: set[str] = set()
        while self._calls:
            followed_count = len(self._followed)
            try:
                await self._look()
            except StrataError as error:
                _log.warning("runs of asked members not found", error=repr(error))
            if len(self._followed) > followed_count or self._calls - calls:
                pause = _FIRST_LOOK_S
            calls = set(self._calls)
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _LAST_LOOK_S)

    async def _look(self, *, wait: bool = False) -> None:
        """Follows the member runs that were started since the last look-up.

        Args:
            wait: Whether the events of finished runs must come before any other event.
        """
        async with self._look_lock:
            for run in await self._store.asked(self._project_id, self._run_id):
                member = self._members.get(run.agent_id)
                if member is None:
                    continue
                if run.run_id not in self._followed:
                    earlier = self._calls_by_member[run.agent_id] * len(self._members)
                    self._calls_by_member[run.agent_id] += 1
                    number = earlier + self._positions[run.agent_id] + 1
                    self._follow(AskedTurn(member, run.run_id, number), run.run_id)
                if wait and run.state.final and run.run_id not in self._finished_runs:
                    self._awaited.add(run.run_id)

    def _follow(self, turn: AskedTurn | None, run_id: str) -> None:
        self._open += 1
        self._followed[run_id] = asyncio.create_task(self._read(turn, run_id))

    async def _read(self, turn: AskedTurn | None, run_id: str) -> None:
        try:
            follow = self._follower.follow(self._project_id, run_id, 0, tokens=True)
            async with aclosing(follow) as events:
                async for event in events:
                    await self._events.put((turn, event))
        except Exception as error:  # noqa: BLE001 - raised to the reader
            await self._events.put((turn, error))
        else:
            await self._events.put((turn, None))


def _may_follow_answers(event: RunEvent) -> bool:
    """Whether events of members may belong before an event of the agent that asked them.

    Code may have asked them: calls from code have no events.
    """
    if event.HasField("tool_finished"):
        return event.tool_finished.tool_return.name in {ASK_MEMBERS, *CODE_TOOLS}
    return event.HasField("run_finished")
