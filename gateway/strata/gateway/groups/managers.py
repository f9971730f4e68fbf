"""Who speaks next in a group. Pure: the same replies give the same turns.

A run of a group that is taken over is played again from its first turn with the stored replies,
so nothing here may depend on anything else.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from strata.api.agent_loop.v1 import group_service_pb2 as pb
from strata.api.common.v1.message_pb2 import MessageInput, Part, TextPart
from strata.gateway.groups.exchange import Exchange, Labels, Line
from strata.shared.errors import FailedPreconditionError, Reason, UnimplementedError


@dataclass(frozen=True, slots=True)
class Turn:
    """The next turn of a run of a group.

    Attributes:
        agent: Who speaks.
        lines: What it is shown.
        manager: Whether it is the manager agent.
    """

    agent: pb.GroupMember
    lines: Sequence[Line]
    manager: bool = False


class GroupManager(ABC):
    """Decides who speaks next.

    Args:
        group: The group.
        exchange: What is said; the manager adds the replies to it.
    """

    def __init__(self, group: pb.Group, exchange: Exchange) -> None:
        self.group = group
        self.exchange = exchange

    @abstractmethod
    def next_turn(self) -> Turn | None:
        """Returns the next turn; None at the end of the run."""

    @abstractmethod
    def note_reply(self, turn: Turn, text: str, taint: Labels) -> None:
        """Takes in what was said in a turn."""

    def rest(self) -> Sequence[Turn]:
        """Returns what members have not been shown at the end of the run, to be stored."""
        unseen = ((member, self.exchange.unseen(member.agent_id)) for member in self.group.members)
        return [Turn(member, lines) for member, lines in unseen if lines]

    def _turn(self, agent: pb.GroupMember, *more: MessageInput, manager: bool = False) -> Turn:
        lines = [*self.exchange.unseen(agent.agent_id), *(Line(message) for message in more)]
        self.exchange.note_shown(agent.agent_id)
        return Turn(agent, lines, manager)

    @property
    def _max_turns(self) -> int:
        return self.group.manager.max_turns or len(self.group.members)


class RoundRobin(GroupManager):
    """The members speak in their order."""

    def __init__(self, group: pb.Group, exchange: Exchange) -> None:
        super().__init__(group, exchange)
        self._taken = 0

    def next_turn(self) -> Turn | None:
        """See `GroupManager.next_turn`."""
        if self._taken >= self._max_turns:
            return None
        members = self.group.members
        turn = self._turn(members[self._taken % len(members)])
        self._taken += 1
        return turn

    def note_reply(self, turn: Turn, text: str, taint: Labels) -> None:
        """See `GroupManager.note_reply`."""
        self.exchange.add_reply(turn.agent, text, taint)


class Dynamic(GroupManager):
    """The manager agent picks the next speaker, or ends the run with the termination token.

    A choice that names no member is asked for once more; then the next member in order speaks.
    """

    def __init__(self, group: pb.Group, exchange: Exchange) -> None:
        super().__init__(group, exchange)
        self._taken = 0
        self._last = -1
        self._chosen: int | None = None
        self._repeats = False
        self._over = False

    def next_turn(self) -> Turn | None:
        """See `GroupManager.next_turn`."""
        if self._over or self._taken >= self._max_turns:
            return None
        if self._chosen is None:
            return self._turn(self.group.manager_agent, self._question(), manager=True)
        self._last, self._chosen = self._chosen, None
        self._taken += 1
        return self._turn(self.group.members[self._last])

    def note_reply(self, turn: Turn, text: str, taint: Labels) -> None:
        """See `GroupManager.note_reply`."""
        ended = self.group.manager.termination_token in text
        if not turn.manager:
            self.exchange.add_reply(turn.agent, text, taint)
            self._over = ended
            return
        choice = self._choice(text)
        if choice is None and ended:
            self._over = True
        elif choice is None and not self._repeats:
            self._repeats = True
        else:
            count = len(self.group.members)
            self._chosen = (self._last + 1) % count if choice is None else choice
            self._repeats = False

    @property
    def _options(self) -> Sequence[int]:
        """Places of the members that may speak now: not the last speaker, if there are others."""
        places = range(len(self.group.members))
        return [place for place in places if place != self._last or len(places) == 1]

    def _choice(self, text: str) -> int | None:
        """Returns the member that an answer names, by id or else by name; None if it names none.

        The one that is named first counts, and of several with the same beginning the longest.
        """
        folded = text.casefold()
        for spelled in ("agent_id", "name"):
            named = []
            for place in self._options:
                wanted = getattr(self.group.members[place], spelled).casefold()
                # A name counts as a word of its own: "nobody" does not name "Bo".
                match = re.search(rf"(?<!\w){re.escape(wanted)}(?!\w)", folded) if wanted else None
                if match is not None:
                    named.append((match.start(), -len(wanted), place))
            if named:
                return min(named)[2]
        return None

    def _question(self) -> MessageInput:
        members = [self.group.members[place] for place in self._options]
        listed = "\n".join(
            f"- {member.agent_id}: {member.name}"
            + (f" ({member.description})" if member.description else "")
            for member in members
        )
        again = "Your answer names none of these agents. " if self._repeats else ""
        token = self.group.manager.termination_token
        text = (
            f"[You manage this group of agents. {again}Choose which agent speaks next. Answer with"
            f" its id alone. If the request is settled, answer with {token} alone.]\n{listed}"
        )
        return MessageInput(parts=[Part(text=TextPart(text=text))])


_MANAGERS: dict[pb.ManagerType.ValueType, type[GroupManager]] = {
    pb.MANAGER_TYPE_ROUND_ROBIN: RoundRobin,
    pb.MANAGER_TYPE_DYNAMIC: Dynamic,
}


def manager_of(group: pb.Group, exchange: Exchange) -> GroupManager:
    """Returns what decides who speaks in a group.

    Raises: as `check_group`.
    """
    check_group(group)
    return _MANAGERS[group.manager.type](group, exchange)


def check_group(group: pb.Group) -> None:
    """Makes sure that a group can answer a message.

    Raises:
        UnimplementedError: Groups of its kind take no messages (``NOT_BUILT``).
        FailedPreconditionError: It has no members, or lacks its manager agent
            (``GROUP_INCOMPLETE``).
    """
    kind = group.manager.type
    if kind not in _MANAGERS:
        name = pb.ManagerType.Name(kind).removeprefix("MANAGER_TYPE_").lower()
        known = " and ".join(
            pb.ManagerType.Name(each).removeprefix("MANAGER_TYPE_").lower() for each in _MANAGERS
        )
        raise UnimplementedError(
            f"Groups of the kind {name} take no messages in this release; {known} do.",
            reason=Reason.NOT_BUILT,
            metadata={"what": f"group of the kind {name}"},
        )
    missing = None
    if not group.members:
        missing = "no members: all of them were deleted. Give it members with UpdateGroup"
    elif kind == pb.MANAGER_TYPE_DYNAMIC and not group.HasField("manager_agent"):
        missing = "no manager agent: it was deleted. Give it another one with UpdateGroup"
    if missing is not None:
        raise FailedPreconditionError(
            f"The group has {missing}.",
            reason=Reason.GROUP_INCOMPLETE,
            metadata={"id": group.id},
        )
