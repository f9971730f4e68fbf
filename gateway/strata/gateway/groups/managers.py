"""Managers of groups, which choose the next speaker. Pure: equal replies give equal turns.

A run of a group that is taken over is played again from its first turn with the stored replies,
so nothing here may depend on anything else.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from strata.api.agent_loop.v1 import group_service_pb2 as pb
from strata.api.agent_loop.v1 import turn_service_pb2 as turn_pb
from strata.api.common.v1.message_pb2 import MessageInput, Part, TextPart
from strata.gateway.groups.exchange import ExchangeMessage, GroupMessages, Labels, named_message
from strata.protocol.errors import FailedPreconditionError, Reason
from strata.shared.member_labels import labels_of, member_lines, position_of
from strata.shared.tool_catalogue import ASK_MEMBERS, HAND_OVER

_MAX_DESCRIPTION = 2_000


@dataclass(frozen=True, slots=True)
class GroupTurn:
    """The next turn of a run of a group.

    Attributes:
        agent: The agent that replies.
        messages: The messages that it has not seen.
        manager: Whether it is the manager agent, which picks the next speaker.
        tool: A tool of the group that it gets in addition to its own; None for none.
    """

    agent: pb.GroupMember
    messages: Sequence[ExchangeMessage]
    manager: bool = False
    tool: turn_pb.GroupTool | None = None

    @property
    def asks(self) -> bool:
        """Whether the agent can ask the members of the group, as part of this turn."""
        return self.tool is not None and self.tool.name == ASK_MEMBERS


@dataclass(frozen=True, slots=True)
class HandOver:
    """A call of ``hand_over`` that was accepted.

    Attributes:
        agent: The member, as the model named it.
        message: The model's message to the member.
    """

    agent: str
    message: str


@dataclass(frozen=True, slots=True)
class TurnReply:
    """Result of a turn.

    Attributes:
        text: Text of the reply.
        taint: Provenance labels of the text: WEB, MCP.
        hand_over: The last hand-over of the turn; None for none.
    """

    text: str
    taint: Labels = ()
    hand_over: HandOver | None = None


class GroupManager(ABC):
    """Chooses the next speaker.

    Args:
        group: The group.
        exchange: The messages of the run; the manager adds the replies.
    """

    def __init__(self, group: pb.Group, exchange: GroupMessages) -> None:
        self.group = group
        self.exchange = exchange

    @abstractmethod
    def next_turn(self) -> GroupTurn | None:
        """Returns the next turn; None at the end of the run."""

    @abstractmethod
    def note_reply(self, turn: GroupTurn, reply: TurnReply) -> None:
        """Processes the result of a turn."""

    def rest(self) -> Sequence[GroupTurn]:
        """Returns the messages that members have not seen at the end of the run, to be stored."""
        unseen = (
            (member, self.exchange.unseen_by(member.agent_id)) for member in self.group.members
        )
        return [GroupTurn(member, messages) for member, messages in unseen if messages]

    def _turn(
        self,
        agent: pb.GroupMember,
        *more: ExchangeMessage,
        manager: bool = False,
        tool: turn_pb.GroupTool | None = None,
    ) -> GroupTurn:
        messages = [*self.exchange.unseen_by(agent.agent_id), *more]
        self.exchange.note_shown(agent.agent_id)
        return GroupTurn(agent, messages, manager, tool)

    @property
    def _max_turns(self) -> int:
        return self.group.manager.max_turns or len(self.group.members)


class RoundRobin(GroupManager):
    """The members reply in their order."""

    def __init__(self, group: pb.Group, exchange: GroupMessages) -> None:
        super().__init__(group, exchange)
        self._turn_count = 0

    def next_turn(self) -> GroupTurn | None:
        """See `GroupManager.next_turn`."""
        if self._turn_count >= self._max_turns:
            return None
        members = self.group.members
        turn = self._turn(members[self._turn_count % len(members)])
        self._turn_count += 1
        return turn

    def note_reply(self, turn: GroupTurn, reply: TurnReply) -> None:
        """See `GroupManager.note_reply`."""
        self.exchange.add_reply(turn.agent, reply.text, reply.taint)


class Dynamic(GroupManager):
    """The manager agent picks the next speaker, or ends the run with the termination token.

    If the choice names no member, the manager agent is asked once more; then the next member in
    order speaks.
    """

    def __init__(self, group: pb.Group, exchange: GroupMessages) -> None:
        super().__init__(group, exchange)
        self._turn_count = 0
        self._last_position = -1
        self._chosen_position: int | None = None
        self._repeats = False
        self._has_ended = False
        self._labels = labels_of([member.name for member in group.members])

    def next_turn(self) -> GroupTurn | None:
        """See `GroupManager.next_turn`."""
        if self._has_ended or self._turn_count >= self._max_turns:
            return None
        if self._chosen_position is None:
            return self._turn(
                self.group.manager_agent, ExchangeMessage(self._question()), manager=True
            )
        self._last_position, self._chosen_position = self._chosen_position, None
        self._turn_count += 1
        return self._turn(self.group.members[self._last_position])

    def note_reply(self, turn: GroupTurn, reply: TurnReply) -> None:
        """See `GroupManager.note_reply`."""
        ended = self.group.manager.termination_token in reply.text
        if not turn.manager:
            self.exchange.add_reply(turn.agent, reply.text, reply.taint)
            self._has_ended = ended
            return
        choice = self._choice(reply.text)
        if choice is None and ended:
            self._has_ended = True
        elif choice is None and not self._repeats:
            self._repeats = True
        else:
            count = len(self.group.members)
            self._chosen_position = (self._last_position + 1) % count if choice is None else choice
            self._repeats = False

    @property
    def _options(self) -> Sequence[int]:
        """Positions of the members that may reply next; the last author only if it is alone."""
        positions = range(len(self.group.members))
        return [
            position
            for position in positions
            if position != self._last_position or len(positions) == 1
        ]

    def _choice(self, text: str) -> int | None:
        """Returns the member in an answer, by id or else by name; None if there is none.

        The first one in the text wins, and among names with the same beginning the longest.
        """
        folded = text.casefold()
        ids = [member.agent_id for member in self.group.members]
        for spellings in (ids, self._labels):
            mentions = []
            for position in self._options:
                spelling = spellings[position].casefold()
                # Match whole words only: "nobody" does not name "Bo".
                match = (
                    re.search(rf"(?<!\w){re.escape(spelling)}(?!\w)", folded) if spelling else None
                )
                if match is not None:
                    mentions.append((match.start(), -len(spelling), position))
            if mentions:
                return min(mentions)[2]
        return None

    def _question(self) -> MessageInput:
        members = self.group.members
        member_texts = member_lines(
            [member.name for member in members], [member.description for member in members]
        )
        listed = "\n".join(
            f"- {members[position].agent_id}: {member_texts[position]}"
            for position in self._options
        )
        repetition = "Your answer names none of these agents. " if self._repeats else ""
        token = self.group.manager.termination_token
        text = (
            f"[You manage this group of agents. {repetition}Choose which agent speaks next. Answer"
            f" with its id alone. If the request is settled, answer with {token} alone.]\n{listed}"
        )
        return MessageInput(parts=[Part(text=TextPart(text=text))])


class Paired(GroupManager):
    """The manager agent answers, once.

    The member is its memory agent, which runs in the background after this turn as after any
    other turn of the manager agent.
    """

    def __init__(self, group: pb.Group, exchange: GroupMessages) -> None:
        super().__init__(group, exchange)
        self._has_ended = False

    def next_turn(self) -> GroupTurn | None:
        """See `GroupManager.next_turn`."""
        return None if self._has_ended else self._turn(self.group.manager_agent, tool=self._offered)

    def note_reply(self, turn: GroupTurn, reply: TurnReply) -> None:
        """See `GroupManager.note_reply`."""
        self._has_ended = True

    def rest(self) -> Sequence[GroupTurn]:
        """See `GroupManager.rest`: members do not get the messages of the user and the manager."""
        return ()

    @property
    def _offered(self) -> turn_pb.GroupTool | None:
        return None


class Supervisor(Paired):
    """The manager agent answers; members get only the questions that it asks with its tool."""

    @property
    def _offered(self) -> turn_pb.GroupTool | None:
        return _tool(ASK_MEMBERS, self.group.members)


class Swarm(GroupManager):
    """The member that holds the conversation answers, or hands it over to another one.

    The tool ``hand_over`` is not offered in the last possible turn of the run, so that the member
    answers itself.

    Attributes:
        hand_overs: Hand-overs of the run so far.

    Args:
        group: The group.
        exchange: The messages of the run.
        holder: The agent that holds the conversation when the run begins; if it is not a member,
            the first member does.
    """

    def __init__(self, group: pb.Group, exchange: GroupMessages, holder: str = "") -> None:
        super().__init__(group, exchange)
        ids = [member.agent_id for member in group.members]
        self.hand_overs = 0
        self._holder_position = ids.index(holder) if holder in ids else 0
        self._turn_count = 0
        self._has_ended = False
        self._note: ExchangeMessage | None = None

    @property
    def holder(self) -> pb.GroupMember:
        """The member that holds the conversation now."""
        return self.group.members[self._holder_position]

    def next_turn(self) -> GroupTurn | None:
        """See `GroupManager.next_turn`."""
        if self._has_ended or self._turn_count >= self._max_turns:
            return None
        self._turn_count += 1
        holder, tool = self.holder, None
        other_members = [
            member for member in self.group.members if member.agent_id != holder.agent_id
        ]
        if other_members and self._turn_count < self._max_turns:
            tool = _tool(HAND_OVER, other_members)
        notes = () if self._note is None else (self._note,)
        return self._turn(holder, *notes, tool=tool)

    def note_reply(self, turn: GroupTurn, reply: TurnReply) -> None:
        """See `GroupManager.note_reply`."""
        self.exchange.add_reply(turn.agent, reply.text, reply.taint)
        position = self._position_of(turn, reply.hand_over)
        if reply.hand_over is None or position is None:
            self._has_ended = True
            return
        self._holder_position = position
        self.hand_overs += 1
        [label] = labels_of([turn.agent.name])
        text = f"[{label} has handed this conversation over to you. Answer the user now.]"
        if reply.hand_over.message.strip():
            text = f"{text}\n\n{reply.hand_over.message}"
        message = named_message(turn.agent, text, reply.taint)
        self._note = ExchangeMessage(message, turn.agent.agent_id)

    def _position_of(self, turn: GroupTurn, hand_over: HandOver | None) -> int | None:
        if hand_over is None or turn.tool is None:
            return None
        other_members = turn.tool.members
        ids = [member.agent_id for member in other_members]
        position = position_of(hand_over.agent, ids, [member.name for member in other_members])
        if position is None:
            return None
        return [member.agent_id for member in self.group.members].index(ids[position])


def _tool(name: str, members: Sequence[pb.GroupMember]) -> turn_pb.GroupTool:
    # The tool shows only the beginning of a description, so the run stores no more.
    shortened = (
        pb.GroupMember(
            agent_id=member.agent_id,
            name=member.name,
            description=member.description[:_MAX_DESCRIPTION],
        )
        for member in members
    )
    return turn_pb.GroupTool(name=name, members=shortened)


_MANAGERS: Mapping[pb.ManagerType.ValueType, type[GroupManager]] = {
    pb.MANAGER_TYPE_ROUND_ROBIN: RoundRobin,
    pb.MANAGER_TYPE_DYNAMIC: Dynamic,
    pb.MANAGER_TYPE_SUPERVISOR: Supervisor,
    pb.MANAGER_TYPE_SWARM: Swarm,
    pb.MANAGER_TYPE_SLEEPTIME: Paired,
    pb.MANAGER_TYPE_VOICE_SLEEPTIME: Paired,
}
_PAIRED = frozenset({pb.MANAGER_TYPE_SLEEPTIME, pb.MANAGER_TYPE_VOICE_SLEEPTIME})
_WITH_MANAGER_AGENT = frozenset({pb.MANAGER_TYPE_DYNAMIC, pb.MANAGER_TYPE_SUPERVISOR})


def manager_of(group: pb.Group, exchange: GroupMessages, *, holder: str = "") -> GroupManager:
    """Returns the manager of a group.

    Args:
        group: The group.
        exchange: The messages of the run.
        holder: The agent that holds the conversation of a swarm; empty for the first member.

    Raises: as `check_group`.
    """
    check_group(group)
    if group.manager.type == pb.MANAGER_TYPE_SWARM:
        return Swarm(group, exchange, holder)
    return _MANAGERS[group.manager.type](group, exchange)


def check_group(group: pb.Group) -> None:
    """Checks that a group can answer a message.

    Raises:
        FailedPreconditionError: It has no members, or lacks its manager agent
            (``GROUP_INCOMPLETE``).
    """
    kind = group.manager.type
    missing = None
    if kind in _PAIRED and not (group.members and group.HasField("manager_agent")):
        missing = (
            "no agent with a memory agent: one of them was deleted. Turn on enable_sleeptime for"
            " the manager agent, then name it as manager with UpdateGroup"
        )
    elif not group.members:
        missing = "no members: all of them were deleted. Give it members with UpdateGroup"
    elif kind in _WITH_MANAGER_AGENT and not group.HasField("manager_agent"):
        missing = "no manager agent: it was deleted. Give it another one with UpdateGroup"
    if missing is not None:
        raise FailedPreconditionError(
            f"The group has {missing}.",
            reason=Reason.GROUP_INCOMPLETE,
            metadata={"id": group.id},
        )
