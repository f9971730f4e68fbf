"""The events of a turn whose agent asks the members of its group, joined with those of the members.

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
from strata.gateway.runs.chains import ChainStore
from strata.gateway.runs.follow import RunFollower
from strata.shared.errors import StrataError
from strata.shared.logs import get_logger
from strata.shared.tool_catalogue import ASK_MEMBERS, CODE_TOOLS

RunEvent = run_event_pb2.RunEvent

# The members are asked at the beginning of a call: a look that finds nothing new makes the pause
# before the next one longer, for a call may last for minutes.
_FIRST_LOOK_S = 0.1
_LAST_LOOK_S = 2.0
_EVENTS_AHEAD = 64

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Asked:
    """A turn in which a member answers the agent that asked it.

    Attributes:
        member: The member.
        run_id: Its run.
        number: Number of the turn, counted from the turn of the agent that asks, which is 0.
    """

    member: GroupMember
    run_id: str
    number: int


class AskedMembers:
    """Follows the run of an agent and the runs of the members that it asks.

    Args:
        store: Knows which runs were asked for.
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
        self._places = {member.agent_id: place for place, member in enumerate(members)}
        self._events: asyncio.Queue[tuple[Asked | None, RunEvent | Exception | None]]
        self._events = asyncio.Queue(_EVENTS_AHEAD)
        self._followed: dict[str, asyncio.Task[None]] = {}
        self._questions: Counter[str] = Counter()
        self._open = 0
        self._calls: set[str] = set()
        # Events of the agent that asks, and whether the runs asked for were looked for before.
        self._own: deque[tuple[RunEvent, bool]] = deque()
        # Runs that are over, whose last events are to be shown before these.
        self._awaited: set[str] = set()
        # Runs whose last event was shown.
        self._over: set[str] = set()
        self._looking = asyncio.Lock()
        self._searching: asyncio.Task[None] | None = None

    async def events(self) -> AsyncGenerator[tuple[Asked | None, RunEvent], None]:
        """Yields events with whose they are, None for the agent that asks; ends behind all ends.

        The answers that a call returns come before its end. The runs of the members are numbered in
        the order of the group, question by question, so that following the runs once more gives
        the same numbers.

        Raises:
            StrataError: A run cannot be followed.
        """
        try:
            self._follow(None, self._run_id)
            while self._open or self._own:
                if self._own and not self._awaited:
                    event, looked = self._own.popleft()
                    if not looked and _may_follow_answers(event):
                        await self._look(wait=True)
                        self._own.appendleft((event, True))
                        continue
                    yield None, event
                    self._note(event)
                    continue
                asked, happened = await self._events.get()
                if isinstance(happened, Exception):
                    raise happened
                if happened is None:
                    self._open -= 1
                    if asked is not None:
                        self._over.add(asked.run_id)
                        self._awaited.discard(asked.run_id)
                elif asked is None:
                    self._own.append((happened, False))
                else:
                    yield asked, happened
        finally:
            for task in (*self._followed.values(), self._searching):
                if task is not None:
                    task.cancel()

    def _note(self, event: RunEvent) -> None:
        match event.WhichOneof("event"):
            case "tool_started" if event.tool_started.name == ASK_MEMBERS:
                self._calls.add(event.tool_started.tool_call_id)
                if self._searching is None or self._searching.done():
                    self._searching = asyncio.create_task(self._search())
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
            known = len(self._followed)
            try:
                await self._look()
            except StrataError as error:
                _log.warning("runs of asked members not found", error=repr(error))
            if len(self._followed) > known or self._calls - calls:
                pause = _FIRST_LOOK_S
            calls = set(self._calls)
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _LAST_LOOK_S)

    async def _look(self, *, wait: bool = False) -> None:
        """Follows the runs that were asked for since.

        Args:
            wait: Whether the events of those that are over are shown before any other.
        """
        async with self._looking:
            for run in await self._store.asked(self._project_id, self._run_id):
                member = self._members.get(run.agent_id)
                if member is None:
                    continue
                if run.run_id not in self._followed:
                    earlier = self._questions[run.agent_id] * len(self._members)
                    self._questions[run.agent_id] += 1
                    number = earlier + self._places[run.agent_id] + 1
                    self._follow(Asked(member, run.run_id, number), run.run_id)
                if wait and run.state.final and run.run_id not in self._over:
                    self._awaited.add(run.run_id)

    def _follow(self, asked: Asked | None, run_id: str) -> None:
        self._open += 1
        self._followed[run_id] = asyncio.create_task(self._read(asked, run_id))

    async def _read(self, asked: Asked | None, run_id: str) -> None:
        try:
            follow = self._follower.follow(self._project_id, run_id, 0, tokens=True)
            async with aclosing(follow) as events:
                async for event in events:
                    await self._events.put((asked, event))
        except Exception as error:  # noqa: BLE001 - raised to the reader
            await self._events.put((asked, error))
        else:
            await self._events.put((asked, None))


def _may_follow_answers(event: RunEvent) -> bool:
    """Says whether what members have answered comes before an event of the agent that asked.

    Code may have asked, whose calls have no events of their own.
    """
    if event.HasField("tool_finished"):
        return event.tool_finished.tool_return.name in {ASK_MEMBERS, *CODE_TOOLS}
    return event.HasField("run_finished")
